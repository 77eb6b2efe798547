r"""Long compositions of any two mechanisms, symmetric or not, by Berry and Esseen.

Under P the loss X of N releases is about normal with mean -N k and variance N s^2, k
and s^2 of one release, and under Q about normal with N k~ and N s~^2: the error rates
of the test that rejects where X > t lie within g = C be / sqrt(N) and g~ of

    a(t) = Phi(-(t + N k) / (sqrt(N) s)),     b(t) = Phi((t - N k~) / (sqrt(N) s~)).

So R(pi) lies within pi g + (1 - pi) g~ of the least value r(pi) of pi a + (1 - pi) b.
Only for s = s~ is (a, b) the curve of a Gaussian; nothing here needs that.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from ..losses import LossMoments
from ..mechanisms import AbstractMechanism, View
from ._arrays import BERRY_ESSEEN, ArrayMoments, long_runs, moments

_NODES = 1 << 14
_SIDES = ("remove", "add")


@explained
def berry_esseen_bound(
    a: Any,
    b: Any,
    *,
    num_steps_a: Any = 1.0,
    num_steps_b: Any | None = None,
    constant: float = BERRY_ESSEEN,
) -> Float[Array, ""]:
    """Bound of the Delta-divergence of two long compositions, without a premise.

    As `emergent_bound`, for mechanisms that need not be symmetric and for any numbers
    of steps: the largest difference of the normal approximations' Bayes errors, and how
    far they may be from the true ones.

    Args:
        a: A mechanism, or one direction of it: a release, or a composition of different
            releases.
        b: Another one, under the same neighboring relation.
        num_steps_a: How often a is run, at least 1.
        num_steps_b: How often b is run; as often by default.
        constant: Of the Berry-Esseen theorem, at least .4097, and for releases that
            differ at least the default.

    Returns:
        A bound of Delta(a^N || b^N~), at most 1/2.

    Guarantee:
        Upper bound (up to rounding).

    Raises:
        ValueError: If a number of steps is below 1, the constant is too small, a loss
            is of a kind without moments, or the neighboring relations differ.
        TypeError: If an argument is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> step = lambda sigma: fdp.DPSGD(
        ...     noise_multiplier=sigma, sampling_prob=9e-4, num_steps=1
        ... )
        >>> found = fdp.comparison.berry_esseen_bound(
        ...     step(2.0), step(3.0), num_steps_a=1.4e6, num_steps_b=3.4e6
        ... )
        >>> bool(found < 0.003)
        True

    References:
        Kaissis et al. (2024), Theorem 3, where f is symmetric; Shevtsova (2010).
    """
    runs = long_runs(a, b, num_steps_a, num_steps_b, constant)
    _checks.scalar("num_steps_a", runs[0])
    _checks.scalar("num_steps_b", runs[1])
    return _bound(_both_sides(a), _both_sides(b), *runs)


def _both_sides(
    mechanism: AbstractMechanism | View,
) -> tuple[LossMoments | ArrayMoments, ...]:
    """Moments of the loss under P, and of minus the loss under Q."""
    if isinstance(mechanism, View):
        first, inner = mechanism.direction, mechanism.mechanism
    else:
        first, inner = "remove", mechanism
    order = _SIDES[::-1] if first == "add" else _SIDES
    return tuple(moments(getattr(inner, side)) for side in order)


@in_float64
def _bound(
    one: tuple, other: tuple, steps: Array, others: Array, constant: Any
) -> Array:
    prior = jnp.square(jnp.sin(np.linspace(0.0, 0.5 * np.pi, _NODES + 1)))
    error, slope = _least_error(one, steps, prior)
    least, _ = _least_error(other, others, prior)
    # Both are concave: the first one lies below its tangents, the second above chords.
    width = prior[1:] - prior[:-1]
    rise, fall = slope[:-1] * width, -slope[1:] * width
    jump = error[1:] - error[:-1]
    # Where the tangents of a cell's ends meet.
    turn = rise + fall
    share = jnp.where(turn > 0, (jump + fall) / jnp.where(turn > 0, turn, 1.0), 0.0)
    share = jnp.clip(share, 0.0, 1.0)
    inner = jnp.minimum(error[:-1] + share * rise, error[1:] + (1 - share) * fall)
    misses = [
        sum(
            constant * moments[side].berry_esseen / jnp.sqrt(count)
            for moments, count in ((one, steps), (other, others))
        )
        for side in (0, 1)
    ]
    missed = prior * misses[0] + (1 - prior) * misses[1]
    at_nodes = error - least + missed
    between = lambda x: (1 - share) * x[:-1] + share * x[1:]
    in_cells = inner - between(least) + between(missed)
    found = jnp.maximum(jnp.max(at_nodes), jnp.max(in_cells))
    finite = [jnp.isfinite(x.v4) for x in (*one, *other)]
    sure = jnp.all(jnp.stack(finite)) & jnp.isfinite(found)
    return jnp.where(sure, jnp.clip(found, 0.0, 0.5), 0.5)


def _least_error(sides: tuple, steps: Array, prior: Array) -> tuple[Array, Array]:
    """The least value of pi a(t) + (1 - pi) b(t), and its derivative in the prior."""
    p, q = sides
    means = -steps * p.v1, steps * q.v1
    scales = [
        jnp.sqrt(steps * jnp.where(x.variance > 0, x.variance, 1.0)) for x in sides
    ]
    inside = jnp.clip(prior, 1e-300, 1 - 1e-16)
    logit = jnp.log(inside) - jnp.log1p(-inside)
    # The densities of both error rates are equal: a quadratic equation in t.
    halves = [0.5 / jnp.square(s) for s in scales]
    square = halves[1] - halves[0]
    linear = 2 * (means[0] * halves[0] - means[1] * halves[1])
    rest = jnp.square(means[1]) * halves[1] - jnp.square(means[0]) * halves[0]
    rest = rest + logit + jnp.log(scales[1] / scales[0])
    root = jnp.sqrt(jnp.maximum(jnp.square(linear) - 4 * square * rest, 0.0))
    sum_ = -0.5 * (linear - root)  # linear is negative
    safe = jnp.where(square == 0, 1.0, square)
    far = jnp.where(square == 0, jnp.inf, sum_ / safe)
    near = rest / jnp.where(sum_ > 0, sum_, 1.0)
    most = 1e3 * (scales[0] + scales[1]) + means[1] - means[0]
    ends = [jnp.full_like(near, -jnp.inf), jnp.full_like(near, jnp.inf)]
    # At the best test derivatives in its threshold are zero.
    cuts = stop_gradient(jnp.clip(jnp.stack([near, far, *ends]), -most, most))
    a = ndtr(-(cuts - means[0]) / scales[0])
    b = ndtr((cuts - means[1]) / scales[1])
    errors = prior * a + (1 - prior) * b
    best = jnp.argmin(errors, axis=0)[None]
    pick = lambda x: jnp.take_along_axis(x, best, axis=0)[0]
    return pick(errors), pick(a - b)
