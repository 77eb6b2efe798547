"""One search for all targets: a root of an excess that is monotone in the unknown."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import while_loop
from jaxtyping import Array, Bool, Float

from ._targets import Margin
from ._unknowns import Unknown

_STEPS = 60
_TOLERANCE = 1e-13
_CHECKS = 14
_PROBES = 9

Excess = Callable[[Array], Array]


def direction(rough: Excess, unknown: Unknown) -> tuple[Array, Array]:
    """Whether the privacy loss grows (+1) or falls (-1) with t, and a start.

    Where it is not known it is found by evaluation at a few points.
    """
    low, high = unknown.ends
    if unknown.leaks:
        return jnp.asarray(float(unknown.leaks)), jnp.asarray(unknown.first, float)
    at = low + (high - low) * (jnp.arange(_PROBES) + 0.5) / _PROBES
    found = lax.map(rough, at)
    usable = jnp.isfinite(found)
    order = jnp.argsort(~usable)  # those that can be used come first, in order
    found, usable, at = found[order], usable[order], at[order]
    both = usable[1:] & usable[:-1]
    rises = jnp.sum(jnp.where(both, jnp.sign(jnp.diff(found)), 0))
    best = jnp.argmin(jnp.where(usable, jnp.abs(found), jnp.inf))
    return jnp.where(rises < 0, -1.0, 1.0), at[best]


def secant(
    excess: Excess,
    unknown: Unknown,
    leaks: Float[Array, ""],
    start: tuple[Array, Array],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The root of an excess in t, and its slope there.

    The secant method with short steps in a bracket, from a start and a slope.  Where
    there is no root, the end of the domain on that side.
    """
    ends = _ends(unknown, leaks)
    first = leaks * start[0]

    def measure(u: Array) -> Array:
        value = excess(leaks * u)
        # Something that cannot be evaluated counts as leaking.
        return jnp.clip(jnp.where(jnp.isnan(value), jnp.inf, value), -1e9, 1e9)

    def unfinished(state: dict[str, Array]) -> Array:
        return (state["step"] < _STEPS) & (state["change"] > _TOLERANCE)

    def body(state: dict[str, Array]) -> dict[str, Array]:
        u, old, old_value = state["u"], state["old"], state["old_value"]
        value = measure(u)
        low = jnp.where(value <= 0, u, state["low"])
        high = jnp.where(value >= 0, u, state["high"])
        slope = (value - old_value) / jnp.where(u == old, 1, u - old)
        usable = (u != old) & (slope > 0)
        slope = jnp.where(usable, slope, state["slope"])
        target = u - jnp.clip(value / slope, -1, 1)
        # Open ends first: only a bracket of finite size can be halved.
        inside = (target > low) & (target < high)
        outside = jnp.clip(target, *ends)
        both = (low > -jnp.inf) & (high < jnp.inf)
        target = jnp.where(
            inside, outside, jnp.where(both, 0.5 * (low + high), outside)
        )
        # Rounding of the excess decides the last digits; a tiny one ends the search.
        settled = jnp.abs(value) <= 1e-13 * (1 + jnp.abs(slope))
        target = jnp.where(settled, u, target)
        return {
            "step": state["step"] + 1,
            "u": target,
            "low": low,
            "high": high,
            "old": u,
            "old_value": value,
            "slope": slope,
            "change": jnp.abs(target - u),
        }

    begin = {
        "step": jnp.zeros((), jnp.int32),
        "u": first,
        "low": jnp.full_like(first, -jnp.inf),
        "high": jnp.full_like(first, jnp.inf),
        "old": first,
        "old_value": jnp.zeros_like(first),
        "slope": start[1],
        "change": jnp.ones_like(first),
    }
    last = while_loop(unfinished, body, begin)
    return leaks * last["u"], last["slope"]


def private_side(
    margin: Callable[[Array], Margin],
    unknown: Unknown,
    leaks: Float[Array, ""],
    found: tuple[Array, Array],
) -> tuple[Float[Array, ""], Bool[Array, ""], dict[str, Array]]:
    """Moves from the exact solution until the certificate meets the target.

    Returns:
        The value, whether the target is met there, and where it binds.
    """
    t, slope = found
    ends = _ends(unknown, leaks)

    def unfinished(state: tuple) -> Array:
        step, _, _, met, _ = state
        return (step < _CHECKS) & ~met

    def body(state: tuple) -> tuple:
        step, u, distance, _, _ = state
        at = margin(leaks * u)
        upper = at.excess.upper
        met = upper <= 0
        over = jnp.where(jnp.isfinite(upper), upper / slope, distance)
        distance = jnp.maximum(4 * distance, 1.01 * over)
        moved = jnp.maximum(u - distance, ends[0])
        return step + 1, jnp.where(met, u, moved), distance, met, at.binding

    tiny = jnp.asarray(1e-13, t.dtype)
    u = jnp.maximum(leaks * t - tiny, ends[0])
    start = jnp.zeros((), jnp.int32), u, tiny, jnp.zeros((), bool), _none(margin, t)
    _, u, _, met, binding = while_loop(unfinished, body, start)
    return unknown.at(leaks * u), met, binding


def whole_side(
    margin: Callable[[Array], Margin],
    unknown: Unknown,
    leaks: Float[Array, ""],
    found: tuple[Array, Array],
) -> tuple[Float[Array, ""], Bool[Array, ""], dict[str, Array]]:
    """The last whole number whose certificate meets the target.

    From the number on the private side of the solution: to the private side in growing
    steps until the target is met, then back one by one while it is.
    """
    t, _ = found
    value = unknown.at(t)
    clip = lambda n: jnp.clip(n, unknown.lowest, unknown.highest)
    first = jnp.where(leaks > 0, jnp.floor(value), jnp.ceil(value))

    def unfinished(state: tuple) -> Array:
        step, _, _, _, done, _ = state
        return (step < 3 * _CHECKS) & ~done

    def body(state: tuple) -> tuple:
        step, n, best, jump, _, binding = state
        at = margin(unknown.inverse(n))
        met = at.excess.upper <= 0
        binding = jax.tree.map(
            lambda new, old: jnp.where(met, new, old), at.binding, binding
        )
        had = jnp.isfinite(best)
        best = jnp.where(met, n, best)
        following = clip(jnp.where(met, n + leaks, n - leaks * jump))
        stuck = following == n
        done = stuck | (had & ~met)
        return step + 1, following, best, jump * jnp.where(met, 1, 2), done, binding

    one = jnp.ones_like(t)
    none = jnp.full_like(t, jnp.nan)
    zero = jnp.zeros((), jnp.int32)
    start = zero, clip(first), none, one, jnp.zeros((), bool), _none(margin, t)
    _, _, best, _, _, binding = while_loop(unfinished, body, start)
    return best, jnp.isfinite(best), binding


def _ends(unknown: Unknown, leaks: Array) -> tuple[Array, Array]:
    """The range of u = leaks t."""
    low, high = unknown.ends
    grows = leaks > 0
    return jnp.where(grows, low, -high), jnp.where(grows, high, -low)


def _none(margin: Callable[[Array], Margin], t: Array) -> Any:
    """What a margin reports, as zeros."""
    shapes = jax.eval_shape(lambda x: margin(x).binding, t)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
