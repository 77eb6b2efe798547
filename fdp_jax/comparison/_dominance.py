r"""Blackwell dominance: is one guarantee worse than another against every attacker?

M dominates M~ (is at least as informative, so no more private) if f <= f~ everywhere,
which is Delta(M || M~) = 0 (Kaissis et al. 2024, Section 3; Blackwell 1953).  Where
neither dominates the curves cross, and which one is better depends on the attacker.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._record import Record
from ..curves import Bounds
from ..engines import Interval
from ._meet import without_derivative
from .cells import slopes
from .delta import Found, as_bounds, engines_of, search
from .explore import Nodes, secant
from .sources import Request, pair

MOST_CROSSINGS = 8
_ANSWERS = {1: "yes", 0: "undecided", -1: "no"}


class Crossings(Record):
    """The crossings of two Bayes error functions, from the largest epsilon down.

    Arrays of a fixed length, of which the first `count` entries mean something.
    """

    count: Int[Array, ""]
    epsilon: Float[Array, " c"]
    """Thresholds, logit of the prior."""
    epsilon_lower: Float[Array, " c"]
    epsilon_upper: Float[Array, " c"]
    """Between these two the order certainly changes."""
    prior: Float[Array, " c"]
    alpha_a: Float[Array, " c"]
    """About the type I error of the best test of a at this threshold."""
    alpha_b: Float[Array, " c"]
    """Type I errors of b at the crossings."""
    below: Int[Array, " c"]
    """1 if, just below this prior, b is the more private one (R_b > R_a), else -1."""


class Dominance(Record):
    """Whether `a` dominates `b`; its truth value is that of a certified yes."""

    verdict: Int[Array, ""]
    """1: yes, certified.  -1: no, certified.  0: undecided within the bounds."""
    regret: Bounds
    """Delta(a || b), which is at most `tolerance` if a dominates b; see
    `delta_divergence` for its derivative, which here is NaN."""
    reverse: Bounds
    """Delta(b || a)."""
    crossings: Crossings
    tolerance: Float[Array, ""]

    @property
    def answer(self) -> str:
        """The verdict in a word (not under `jax.jit`)."""
        return _ANSWERS[int(self.verdict)]

    def __bool__(self) -> bool:
        return int(self.verdict) == 1


@explained(tolerance=_checks.one(_checks.probability))
def blackwell_dominates(a: Any, b: Any, *, tolerance: Any = 1e-9) -> Dominance:
    """Whether `a` is at least as informative to every attacker as `b`.

    In other words: `b` is at least as private as `a`, whatever the attacker's prior or
    false positive rate.

    Args:
        a: A mechanism (both directions), one direction of it, a curve, or any other
            guarantee.
        b: Another one, under the same neighboring relation.
        tolerance: The regret Delta(a || b) that still counts as dominance, in
            [0, 1/2].  With 0 a yes is possible only where no rounding is involved.

    Returns:
        `Dominance`, with the verdict, the divergences and the crossings.

    Guarantee:
        "yes" means Delta(a || b) <= tolerance and "no" the opposite, both proved.
        Crossings are proved to lie in their brackets; there may be others where the
        two differ by less than the bounds.

    Raises:
        ValueError: If the neighboring relations differ or tolerance is out of range.
        TypeError: If an argument is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> fdp.blackwell_dominates(fdp.Gaussian(1.0), fdp.Gaussian(2.0)).answer
        'yes'
        >>> found = fdp.blackwell_dominates(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> print(found.answer, f"{found.crossings.prior[1]:.6f}")
        no 0.418539

    References:
        Kaissis et al. (2024), Definitions 1 and 2; Blackwell (1953).
    """
    first, second = pair(a, b)
    return _dominance(first, second, tolerance)


@in_float64
def _dominance(first: Request, second: Request, tolerance: Array) -> Dominance:
    found = stop_gradient(search(first, second))
    answer = dominance_of(found, tolerance, engines_of(first, second))
    ends = lambda x: (x.regret, x.reverse)
    fixed = tuple(without_derivative(x, first, second) for x in ends(answer))
    return eqx.tree_at(ends, answer, fixed)


def dominance_of(found: Found, tolerance: Array, name: str) -> Dominance:
    """The answer from what a search has seen, inside the program."""
    forward, backward = found.ends()
    yes, no = forward.upper <= tolerance, forward.lower > tolerance
    verdict = jnp.where(yes, 1, jnp.where(no, -1, 0)).astype(jnp.int32)
    regret, reverse = (as_bounds(x, x.estimate, name) for x in (forward, backward))
    crossings = find_crossings(found.nodes)
    return Dominance(verdict, regret, reverse, crossings, jnp.asarray(tolerance))


class Axis(eqx.Module):
    """Nodes on the whole axis of priors, eps falling."""

    epsilon: Float[Array, " m"]
    gap: Float[Array, " m"]
    sign: Int[Array, " m"]
    """The sign of R_a - R_b where it is certain, else 0."""
    alpha: tuple[Float[Array, " m"], Float[Array, " m"]]
    """Estimates of the type I errors of both best tests."""


def whole_axis(nodes: Nodes) -> Axis:
    """Both half-axes in one; a single one is mirrored."""
    gap = nodes.gap
    sign = jnp.where(gap.lower > 0, 1, jnp.where(gap.upper < 0, -1, 0))
    rates = [_rates(nodes.q, deficit) for deficit in (nodes.one, nodes.other)]
    # Row 0 has q rising from 0, so eps falling to 0; the other half is turned round.
    turn = lambda right, left: jnp.concatenate([right[0], left[-1][::-1]])
    alpha = tuple(turn(first, second) for first, second in rates)
    return Axis(
        turn(nodes.epsilon, -nodes.epsilon),
        turn(gap.estimate, gap.estimate),
        turn(sign, sign),
        (alpha[0], alpha[1]),
    )


def _rates(q: Float[Array, "h n"], deficit: Interval) -> tuple[Array, Array]:
    """Type I errors at eps and at -eps (for the exchanged pair), about.

    With T' = dT/dq the error of the first kind is q T' - T on the right half-axis; on
    the left one that is the error of the second kind, and alpha - beta = 1 - T'.
    """
    # Of the slopes at a kink the middle one; bounds of them do not mind close nodes.
    left, right = slopes(q, deficit)
    slope = 0.5 * (left + jnp.maximum(left, jnp.minimum(right, 2)))
    first = jnp.clip(q * slope - deficit.estimate, 0, 1)
    return first, jnp.clip(1 - slope + first, 0, 1)


def find_crossings(nodes: Nodes) -> Crossings:
    """Changes of the certain sign along the axis."""
    axis = whole_axis(nodes)
    size = axis.sign.size
    places = jnp.arange(size)
    known = jnp.where(axis.sign != 0, places, -1)
    last = jnp.concatenate([jnp.asarray([-1]), jax.lax.cummax(known)[:-1]])
    before = jnp.where(last >= 0, axis.sign[last], 0)
    crossing = (axis.sign * before) < 0
    order = jnp.argsort(~crossing, stable=True)[:MOST_CROSSINGS]
    count = jnp.minimum(jnp.sum(crossing), MOST_CROSSINGS)
    right, left = last[order], order
    used = jnp.arange(MOST_CROSSINGS) < count
    epsilon = _zero(axis, right, left)
    nan = lambda x: jnp.where(used, x, jnp.nan)
    mean = lambda x: 0.5 * (x[right] + x[left])
    return Crossings(
        count=count.astype(jnp.int32),
        epsilon=nan(epsilon),
        epsilon_lower=nan(axis.epsilon[left]),
        epsilon_upper=nan(axis.epsilon[right]),
        prior=nan(jax.nn.sigmoid(epsilon)),
        alpha_a=nan(mean(axis.alpha[0])),
        alpha_b=nan(mean(axis.alpha[1])),
        below=jnp.where(used, -axis.sign[left], 0).astype(jnp.int32),
    )


def _zero(axis: Axis, right: Array, left: Array) -> Array:
    """The zero of the gap between two nodes: the smallest |gap| there, or a secant."""
    places = jnp.arange(axis.sign.size)[:, None]
    inside = (places >= right) & (places <= left)
    size = jnp.where(inside, jnp.abs(axis.gap)[:, None], jnp.inf)
    best = jnp.argmin(size, axis=0)
    there = axis.epsilon[best]
    ends = axis.gap[right], axis.gap[left]
    between = secant(axis.epsilon[right], axis.epsilon[left], *ends)
    smaller = jnp.abs(axis.gap[best]) < 1e-13
    return jnp.where(smaller | ~jnp.isfinite(between), there, between)


@explained
def crossing_priors(found: Crossings) -> np.ndarray:
    """The priors of all crossings, as plain numbers, rising."""
    return np.sort(np.asarray(found.prior)[: int(found.count)])
