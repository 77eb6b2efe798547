"""Expectations of canonical tests and their roots, inside float64."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._implicit import implicit_root
from .._internal._roots import bisect
from ..noise.law import AbstractLaw
from ._counts import Window, binomial_window

_STEPS = 62
_FARTHEST = 2.0**60
Tail = Callable[[AbstractLaw, Window, Array], Array]


def upper_p(law: AbstractLaw, window: Window, released: Array) -> Array:
    """P(X + N >= released) for X of the window."""
    values = law.cdf_on_lattice(window.values[0] - released, window.values.size)
    return jnp.sum(window.probs * values)


def apart_p(law: AbstractLaw, window: Window, released: Array) -> Array:
    """P(X + N >= released) for values that are not next to each other."""
    return jnp.sum(window.probs * law.cdf(window.values - released))


def lower_p(law: AbstractLaw, window: Window, released: Array) -> Array:
    """P(X + N <= released): N is symmetric, and this has its own digits."""
    values = law.cdf_on_lattice(released - window.values[-1], window.values.size)
    return jnp.sum(window.probs * values[::-1])


def tests_p(
    law: AbstractLaw, window: Window, released: Array, center: Array, kind: str
) -> Array:
    """A p-value of "greater", "less", "two-sided" or "bonferroni"."""
    if kind == "greater":
        return upper_p(law, window, released)
    if kind == "less":
        return lower_p(law, window, released)
    if kind == "bonferroni":
        sides = upper_p(law, window, released), lower_p(law, window, released)
        return jnp.minimum(2 * jnp.minimum(*sides), 1.0)
    distance = jnp.abs(released - center)
    above = upper_p(law, window, center + distance)
    return jnp.minimum(above + lower_p(law, window, center - distance), 1.0)


def threshold(
    law: AbstractLaw, window: Window, alpha: Array, tail: Tail = upper_p
) -> Array:
    """The m with P(X + N >= m) = alpha."""
    args, aux, left = (law, window.probs, alpha), window.values, _SizeLeft(tail)
    fixed = stop_gradient(args)
    start = jnp.sum(aux * fixed[1])
    root = root_of(lambda m: left(m, fixed, aux), start)
    return implicit_root(left, root, args, aux)


@dataclasses.dataclass(frozen=True)
class _SizeLeft:
    """The rest of a level at a threshold; equal for equal functions of tails."""

    tail: Tail

    def __call__(self, m: Array, args: tuple, aux: Array) -> Array:
        law, probs, alpha = args
        return alpha - self.tail(law, Window(aux, probs), m)


def root_of(
    increasing: Callable[[Array], Array], start: Array, steps: int = _STEPS
) -> Array:
    """A root on the whole line, by doubling and halving; no derivative."""
    start = stop_gradient(start)

    def reach(sign: float) -> Array:
        def short(size: Array) -> Array:
            value = increasing(start + sign * size)
            return (sign * value < 0) & (size < _FARTHEST)

        return jax.lax.while_loop(short, lambda x: 2 * x, jnp.ones_like(start))

    low, high = bisect(increasing, start - reach(-1.0), start + reach(1.0), steps)
    return 0.5 * (low + high)


def probability_root(
    law: AbstractLaw,
    released: Array,
    n: Array,
    alpha: Array,
    kind: str,
    side: str,
    size: int,
) -> Array:
    """The proportion at one end of the set with p-value >= alpha.

    `side` "lower": p increases with the proportion there; "upper": it decreases.
    """
    rises = side == "lower"

    def residual(prob: Array, args: tuple, aux: tuple[()]) -> Array:
        law, released, n, alpha = args
        window = binomial_window(n, prob, size)
        found = tests_p(law, window, released, n * prob, kind) - alpha
        return found if rises else -found

    args = law, released, n, alpha
    fixed = stop_gradient(args)
    middle = jnp.clip(fixed[1] / fixed[2], 0.0, 1.0)
    both = kind in ("two-sided", "bonferroni")
    low = jnp.zeros_like(middle) if rises or not both else middle
    high = jnp.ones_like(middle) if not (rises and both) else middle
    ends = bisect(lambda p: residual(p, fixed, ()), low, high, _STEPS)
    # The end that is inside of the confidence set's complement is a limit as well.
    root = ends[0] if rises else ends[1]
    edge = (root <= 0) | (root >= 1)
    found = implicit_root(residual, jnp.where(edge, 0.5, root), args, ())
    return jnp.where(edge, root, found)
