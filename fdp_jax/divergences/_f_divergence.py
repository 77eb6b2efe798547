"""The divergence of any convex function, from the privacy profile."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._quadrature import between
from ..curves import Directed
from ..losses import ComposedLoss
from ..losses.log_moment import directions, largest_finite
from ..tradeoff import AbstractTradeOff
from .log_moment import resolved

_FARTHEST, _NODES = 230.0, 20
# Of large losses what counts may be a few units wide; next to zero a share of them.
_SHARES = np.arange(1, 9) / 8, 0.5 ** np.arange(4, 8), 0.5**7 * 0.25 ** np.arange(1, 16)
_ENDS = _FARTHEST * np.concatenate(_SHARES)
_SIDE = 1e-15
_UNSEEN = 1e-12
_CONVEX, _KINK = 1e-7, 1e-6


@explained(phi=_checks.instance_of(Callable, "a function"))
def f_divergence(
    mechanism: Any, phi: Callable[[Array], Array], *, kinks: Sequence[float] = (1.0,)
) -> Float[Array, ""]:
    """Divergence of a convex function: E_P phi(dQ/dP) - phi(1).

    Every such divergence is a functional of the privacy profile,

        D = int_0^inf e^x phi''(e^x) delta(x) + e^-2x phi''(e^-x) delta'(x) dx,

    delta the profile of (P, Q) and delta' that of (Q, P); where phi' jumps, delta
    counts with the height of the jump.  The usual ones are those of t log t (`kl`),
    (t - 1)^2 (`chi_squared`), 1 - sqrt(t) (`squared_hellinger`) and |t - 1| / 2
    (`total_variation`).

    Args:
        mechanism: A mechanism (the larger of both directions), a view, or a trade-off
            function that a mechanism has: T(P, Q).
        phi: A convex function of t > 0 that JAX can differentiate twice, from a scalar
            to a scalar.  It is compiled, once for every function object.
        kinks: Where phi' jumps, t > 0.  Others than 1 have to be named.

    Returns:
        The divergence, an estimate and not a bound.  The relative error is about 1e-10
        for single releases (1e-6 where the losses that count lie beyond 14 and spread
        by no more than 1), and about 2e-5 for compositions of releases with point
        masses, whose profile is known on a grid.  inf where losses beyond 230 would
        matter (among others, if a loss can be infinite and phi grows faster than
        linearly), or where phi'' is beyond all floats at losses that delta knows.

    Differentiable in:
        All parameters (once).

    Raises:
        ValueError: If phi is not convex or has a kink that is not named (looked at for
            t from e^-16 to e^16), or if a kink is not positive.
        TypeError: If `mechanism` is nothing of that kind, or phi not a function.

    Example:
        >>> import fdp_jax as fdp
        >>> def squared_difference(t):
        ...     return (t - 1) ** 2
        >>> release = fdp.Gaussian(1.0)
        >>> print(f"{fdp.divergences.f_divergence(release, squared_difference):.6f}")
        1.718282

    References:
        Sason and Verdú (2016), Proposition 3 (by hockey-stick divergences); Dong, Roth,
        Su (2022), Appendix B.
    """
    bends = _checks.positive("kinks", np.asarray(kinks, float).reshape(-1))
    if isinstance(mechanism, AbstractTradeOff):
        mechanism = mechanism.as_mechanism()
        mechanism = getattr(mechanism, "remove", mechanism)
    subject = resolved(mechanism, "f_divergence").whole
    _require_convex(phi, bends)
    halves = _halves(subject.composed, bends, direction=subject.direction)
    return _weighed(halves, bends, phi=phi)


class _Half(NamedTuple):
    """The part of the profile for likelihood ratios on one side of 1."""

    x: Float[Array, " n"]
    """Absolute losses: nodes, and the farthest loss for the last one."""
    weights: Float[Array, " n"]
    log_delta: Float[Array, " n"]
    at_kinks: Float[Array, " k"]
    """Absolute losses of the kinks on this side, 0 for the others."""
    log_delta_at_kinks: Float[Array, " k"]


# A program for each kind of loss, whatever phi is.
@in_float64(cast_out=False)
def _halves(loss: ComposedLoss, kinks: Array, *, direction: str) -> list[list[_Half]]:
    # Below 1 a direction's profile is that of the other one.  One copy for both.
    each = lambda sign: _either_side(loss, kinks, sign)
    above, below = jax.lax.map(each, jnp.asarray([1.0, -1.0], kinks.dtype))
    way = lambda halves, sign: jax.tree.map(lambda x: x[int(sign < 0)], halves)
    return [[way(above, s), way(below, -s)] for s in directions(direction)]


def _either_side(loss: ComposedLoss, kinks: Array, sign: Array) -> list[_Half]:
    """One profile as the part for ratios above 1, and as that for those below."""
    nodes, weights = _rule(loss, kinks, sign)
    here = jnp.maximum(jnp.stack([jnp.log(kinks), -jnp.log(kinks)]), 0.0)
    x = jnp.append(nodes, _FARTHEST)
    found = _log_delta(loss, jnp.concatenate([x, here.ravel()]), sign)
    profile = x, jnp.append(weights, 0.0), found[: x.size]
    at_kinks = zip(here, found[x.size :].reshape(here.shape), strict=True)
    return [_Half(*profile, *each) for each in at_kinks]


@in_float64
def _weighed(halves: list[list[_Half]], kinks: Array, *, phi: Callable) -> Array:
    return jnp.max(jnp.stack([_one_way(way, kinks, phi) for way in halves]))


def _one_way(halves: list[_Half], kinks: Array, phi: Callable) -> Array:
    slope, bent = jax.vmap(jax.grad(phi)), jax.vmap(jax.grad(jax.grad(phi)))
    jump = slope(kinks * (1 + _SIDE)) - slope(kinks * (1 - _SIDE))
    total, unseen = jnp.zeros((), kinks.dtype), jnp.zeros((), kinks.dtype)
    for side, half in zip((1.0, -1.0), halves, strict=True):
        # dt = e^x dx beyond 1, and t H_{1/t}(P||Q) dt = e^-2x delta' dx below.
        mass = _exp(half.log_delta, half.x if side > 0 else -2 * half.x)
        density = jnp.where(mass > 0, bent(jnp.exp(side * half.x)) * mass, 0.0)
        # What overflows may be anything.
        density = jnp.where(jnp.isnan(density), jnp.inf, density)
        known = jnp.where(half.weights > 0, density, 0.0)
        total = total + half.weights @ known
        unseen = unseen + density[-1]
        own = kinks >= 1 if side > 0 else kinks < 1
        share = _exp(half.log_delta_at_kinks, 0.0 if side > 0 else -half.at_kinks)
        total = total + jnp.sum(jnp.where(own, jump * share, 0.0))
    return jnp.where(unseen > _UNSEEN * total, jnp.inf, total)


def _exp(log_delta: Array, scale: Array | float) -> Array:
    """e^(log delta + scale), without NaN in derivatives where delta is zero."""
    none = jnp.isneginf(log_delta)
    return jnp.where(none, 0.0, jnp.exp(jnp.where(none, 0.0, log_delta) + scale))


def _rule(loss: ComposedLoss, kinks: Array, sign: Array) -> tuple[Array, Array]:
    """Nodes and weights on [0, 230], finer towards 0 and cut where delta has kinks."""
    dtype = kinks.dtype
    places = [jnp.zeros(1, dtype), jnp.asarray(_ENDS), jnp.abs(jnp.log(kinks))]
    places.append(jnp.atleast_1d(largest_finite(loss, sign)))
    if len(loss.terms) == 1 and loss.single:
        places.append(sign * loss.terms[0].atoms().loss)
    inside = jnp.clip(jnp.nan_to_num(jnp.concatenate(places)), 0, _FARTHEST)
    return between(jnp.sort(stop_gradient(inside)), _NODES)


def _log_delta(loss: ComposedLoss, epsilon: Array, sign: Array) -> Array:
    return Directed(loss, sign[None])._bounds_of("log_delta", epsilon).estimate


def _require_convex(phi: Callable, kinks: np.ndarray) -> None:
    """Compare phi' with the integral of phi'', where it is looked at."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        logs = np.concatenate([np.linspace(-16, 16, 129), np.log(kinks)])
        cuts = np.exp(np.unique(np.clip(logs, -16, 16)))
        nodes, weights = between(cuts, 12)
        slope = jax.vmap(jax.grad(phi))
        below = np.asarray(slope(jnp.asarray(cuts * (1 - _SIDE))))
        above = np.asarray(slope(jnp.asarray(cuts * (1 + _SIDE))))
        bent = np.asarray(jax.vmap(jax.grad(jax.grad(phi)))(jnp.asarray(nodes)))
    gained = np.sum((weights * bent).reshape(cuts.size - 1, -1), axis=1)
    rise = below[1:] - above[:-1]
    size = np.abs(below[1:]) + np.abs(above[:-1])
    _checks.require(
        np.all(np.isfinite(gained) & np.isfinite(rise)),
        "phi must have two finite derivatives at every t > 0",
    )
    _checks.require(
        not np.any(bent * nodes < -_CONVEX * (1 + np.abs(bent * nodes)))
        and not np.any(above - below < -_CONVEX * (1 + np.abs(above))),
        "phi must be convex, but its derivative decreases somewhere",
    )
    missed = np.abs(rise - gained) > _KINK * np.abs(rise) + 1e-11 * size
    if np.any(missed):
        at = int(np.argmax(missed))
        raise ValueError(
            f"phi' jumps between t = {cuts[at]:.6g} and {cuts[at + 1]:.6g}: kinks must "
            "name every such place"
        )
