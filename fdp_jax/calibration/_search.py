"""One search for all targets: a root of an excess that is monotone in the unknown."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.lax import while_loop
from jaxtyping import Array, Bool, Float

from ..engines import select
from ._targets import Margin
from .unknowns import Unknown

_STEPS = 60
_TOLERANCE = 1e-13
_ROUGH_TOLERANCE = 1e-4
"""An approximation's root need not be known better than the approximation."""
_SETTLING = 1e-3, 1e-14
"""Quotient and product of two changes in a row, from which on the secant method
converges, and a third change would be below tolerance."""
_CERTAIN, _MOST_CERTAIN, _CONVERGING = 0.1, 0.01, 0.05
"""An excess is as good as zero if it is so much of what its certificate adds to it,
and of no more than that.  After a change that is so much less than that before it, the
next one will be less by as much again, or more."""
_CHECKS = 40
_MOST = 1e9
"""The excess that infinity counts as."""
_FIRST_JUMP, _WIDE = 1e-13, 1e-5
_PROBES = 9

Excess = Callable[[Array], Array]


class Solution(eqx.Module):
    """The result of a search."""

    t: Float[Array, ""]
    """The root, in the search's own scale."""
    inside: Bool[Array, ""]
    """Whether it lies inside the range searched."""
    value: Float[Array, ""]
    """The unknown, on the private side of the root."""
    met: Bool[Array, ""]
    """Whether the target is certainly met there."""
    width: Float[Array, ""]
    """Width of the certificate of the excess there."""
    spare: Float[Array, ""]
    """By how much the certificate is below the target there."""
    at_end: Bool[Array, ""]
    """Whether it is the riskier end of the range searched, all of which would do."""
    binding: Float[Array, " b"]


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


def rough_secant(
    excess: Excess, ends: tuple[Array, Array], start: tuple[Array, Array]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """About the root of an increasing function in a range, and the slope there.

    The secant method with short steps in a bracket, from a start and a slope.  Where
    there is no root, the end of the range on that side.
    """

    def unfinished(state: dict[str, Array]) -> Array:
        return (state["step"] < _STEPS) & (state["change"] > _ROUGH_TOLERANCE)

    def body(state: dict[str, Array]) -> dict[str, Array]:
        return _advance(state, excess(state["u"]), ends)

    last = while_loop(unfinished, body, _begin(*start))
    return last["u"], last["slope"]


def _begin(first: Array, slope: Array) -> dict[str, Array]:
    return {
        "step": jnp.zeros((), jnp.int32),
        "u": first,
        "low": jnp.full_like(first, -jnp.inf),
        "high": jnp.full_like(first, jnp.inf),
        "old": first,
        "old_value": jnp.zeros_like(first),
        "slope": slope,
        "change": jnp.ones_like(first),
        "settled": jnp.zeros((), bool),
    }


def _advance(
    state: dict[str, Array], value: Array, ends: tuple[Array, Array], spread: Any = 0.0
) -> dict[str, Array]:
    """One step of the secant method, from the value at u.

    Args:
        state: The search.
        value: The excess at u.
        ends: The range searched.
        spread: What its certificate adds to it.
    """
    # Something that cannot be evaluated counts as leaking.
    value = jnp.clip(jnp.where(jnp.isnan(value), jnp.inf, value), -_MOST, _MOST)
    u, old, old_value = state["u"], state["old"], state["old_value"]
    low = jnp.where(value <= 0, u, state["low"])
    high = jnp.where(value >= 0, u, state["high"])
    slope = (value - old_value) / jnp.where(u == old, 1, u - old)
    # Where there is no delta at all, nothing tells how far the root is.
    known = jnp.maximum(jnp.abs(value), jnp.abs(old_value)) < _MOST
    usable = (u != old) & (slope > 0) & known
    slope = jnp.where(usable, slope, state["slope"])
    target = u - jnp.clip(value / slope, -1, 1)
    # Open ends first: only a bracket of finite size can be halved.
    inside = (target > low) & (target < high)
    outside = jnp.clip(target, *ends)
    both = (low > -jnp.inf) & (high < jnp.inf)
    target = jnp.where(inside, outside, jnp.where(both, 0.5 * (low + high), outside))
    # Rounding of the excess decides the last digits; a tiny one ends the search.
    settled = jnp.abs(value) <= 1e-13 * (1 + jnp.abs(slope))
    target = jnp.where(settled, u, target)
    change, before = jnp.abs(target - u), state["change"]
    quotient, product = _SETTLING
    settling = (change <= quotient * before) & (change * before <= product)
    converging = usable & (change <= _CONVERGING * before)
    left = jnp.where(converging, change * change / before * slope, jnp.abs(value))
    near = left <= _CERTAIN * jnp.fmin(spread, _MOST_CERTAIN)
    return {
        "step": state["step"] + 1,
        "u": target,
        "low": low,
        "high": high,
        "old": u,
        "old_value": value,
        "slope": slope,
        "change": change,
        "settled": near | settling | (change <= _TOLERANCE),
    }


def solve(
    margin: Callable[[Array], Margin], rough: Excess, unknown: Unknown, width: int
) -> tuple[Solution, Float[Array, ""]]:
    """The riskiest value at which a target is certainly met, and the direction.

    First the root of a cheap approximation, then that of the margin's estimate, then
    towards the private side until the certificate meets the target.  All evaluations
    of the margin are in one loop, so that it is compiled once.

    Args:
        margin: Of a value of the unknown.
        rough: A cheap approximation of its estimate, a function of t.
        unknown: What is solved for.
        width: How many numbers say where the margin binds.
    """
    leaks, first = direction(rough, unknown)
    ends = _turned(unknown.ends, leaks)
    start = leaks * first, jnp.asarray(5.0, float)
    u, slope = rough_secant(lambda u: rough(leaks * u), ends, start)
    places = unknown.lowest, unknown.highest
    low, high = _turned(places, leaks) if unknown.whole else ends

    def body(state: dict[str, Any]) -> dict[str, Any]:
        search, searching = state["search"], state["searching"]
        at_search = unknown.at(leaks * search["u"])
        at_place = leaks * state["place"]
        at_place = at_place if unknown.whole else unknown.at(at_place)
        value = jnp.where(searching, at_search, at_place)
        at = margin(value)
        spread = at.excess.upper - at.excess.estimate
        # Where nothing is resolved, the ends know more than the estimate.
        advanced = _advance(
            search,
            jnp.fmax(jnp.fmin(at.excess.estimate, at.excess.upper), at.excess.lower),
            ends,
            # An end at zero says that the target is met, and not how far it reaches.
            jnp.where(at.excess.upper == 0, 0.0, spread),
        )
        going = (advanced["step"] < _STEPS) & ~advanced["settled"]
        place = _first_place(advanced, spread, unknown, leaks)
        searched = {
            **state,
            "search": advanced,
            "searching": going,
            "place": jnp.clip(place, low, high),
        }
        met = at.excess.upper <= 0
        binding = jnp.asarray(at.binding, u.dtype)
        # What a certificate adds is not the same everywhere.
        jump = _longer(state, at.excess.upper + 0.02 * spread, unknown)
        moved = state["place"] - jnp.where(met, -float(unknown.whole), jump)
        place = jnp.clip(moved, low, high)
        # Not met, but a value before was: that one is the last.
        done = (place == state["place"]) | (~met & jnp.isfinite(state["best"]))
        checked = {
            **state,
            "checks": state["checks"] + 1,
            "best": jnp.where(met, value, state["best"]),
            "width": jnp.where(met, at.excess.upper - at.excess.lower, state["width"]),
            "spare": jnp.where(met, -at.excess.upper, state["spare"]),
            "binding": jnp.where(met, binding, state["binding"]),
            "place": place,
            "jump": jump,
            "done": done,
        }
        return select(searching, searched, checked)

    state = {
        "search": _begin(u, slope),
        "searching": jnp.ones((), bool),
        "place": u,
        "jump": jnp.full_like(u, 0.5 if unknown.whole else _FIRST_JUMP),
        "best": jnp.full_like(u, jnp.nan),
        "width": jnp.full_like(u, jnp.inf),
        "spare": jnp.full_like(u, jnp.inf),
        "binding": jnp.zeros(width, u.dtype),
        "checks": jnp.zeros((), jnp.int32),
        "done": jnp.zeros((), bool),
    }
    unfinished = lambda state: ~state["done"] & (state["checks"] < _CHECKS)
    last = while_loop(unfinished, body, state)
    u, best = last["search"]["u"], last["best"]
    inside = (u > ends[0]) & (u < ends[1])
    end = unknown.at(leaks * ends[1])
    found = Solution(
        t=leaks * u,
        inside=inside,
        value=best,
        met=jnp.isfinite(best),
        width=last["width"],
        spare=last["spare"],
        at_end=(u >= ends[1]) & (jnp.abs(best - end) <= 1e-9 * jnp.abs(end)),
        binding=last["binding"],
    )
    return found, leaks


def _turned(ends: tuple[float, float], leaks: Array) -> tuple[Array, Array]:
    """A range, times the direction in which its numbers leak."""
    turned = leaks * jnp.asarray(ends)
    return jnp.min(turned), jnp.max(turned)


def _first_place(
    search: dict[str, Array], spread: Array, unknown: Unknown, leaks: Array
) -> Array:
    """Just beside the root on the private side: of whole numbers the next one.

    Else as far from it as the certificate reaches, if that is not far.
    """
    if unknown.whole:
        return jnp.floor(leaks * unknown.at(leaks * search["u"]))
    over = 1.01 * spread / search["slope"]
    return search["u"] - jnp.where(
        over <= _WIDE, jnp.maximum(over, _FIRST_JUMP), _FIRST_JUMP
    )


def _longer(state: dict[str, Any], upper: Array, unknown: Unknown) -> Array:
    """The next step to the private side, for how far an excess is to fall.

    Whole numbers are doubled, until the target is met; from there they go back one by
    one.
    """
    jump = state["jump"]
    if unknown.whole:
        return 2 * jump
    over = upper / state["search"]["slope"]
    over = jnp.where(jnp.isfinite(over), over, jump)
    # Wide certificates are worst elsewhere, where the slope may be much larger.
    wide = over > _WIDE
    least = jnp.where(wide, 2, 4) * jump
    return jnp.maximum(least, jnp.where(wide, over / 64, 1.01 * over))
