"""Certified answers: an estimate between two bounds, and how it may be used."""

import dataclasses
import enum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from .._internal import _checks
from .._internal._concrete import behind, is_traced, outside_transformations
from .._internal._precision import Outward
from .._internal._record import Record
from .._internal._show import LOWER, MIDDLE, UPPER, members
from .._internal._text import joined_methods
from .._internal._tolerances import CROSSING


class Bound(enum.Enum):
    """Which end of a certified interval a query returns.

    All three have the derivative of the estimate.  Wherever a query takes one, its name
    or its value will do: "pessimistic".
    """

    PESSIMISTIC = "pessimistic"
    """Never under-reports privacy loss: the default of every query."""
    ESTIMATE = "estimate"
    """The most accurate value; neither an upper nor a lower bound."""
    OPTIMISTIC = "optimistic"
    """The other end: the privacy loss is at least this large."""


def one_end(bound: Any) -> Bound:
    """The end that an argument asks for; queries check it before they compute."""
    return _checks.member("bound", Bound, bound)


class Status(enum.IntEnum):
    """The tightness of a certified interval."""

    TIGHT = 0
    """Relative width at most 1e-6, or nothing but what floating-point numbers cannot
    tell from 0: a lower end of 0, and an upper one of a few times the least normal
    number (3.6e-307) at most."""
    LOOSE = 1
    """Both ends are proved, but they lie further apart."""
    VACUOUS = 2
    """The pessimistic end is the trivial one (inf, 1 or 0)."""


class LooseBoundWarning(UserWarning):
    """A query has returned an end of an interval that is not tight.

    `bounds` returns both ends and the status, and does not warn.
    """


class Bounds(Record):
    """A quantity with its certificate; fields broadcast over the query's arguments."""

    lower: Float[Array, "..."] = eqx.field(metadata=LOWER)
    estimate: Float[Array, "..."] = eqx.field(metadata=MIDDLE)
    upper: Float[Array, "..."] = eqx.field(metadata=UPPER)
    status: Int[Array, "..."] = eqx.field(metadata=members(Status))
    """Values of `Status`."""
    method: str = eqx.field(static=True, default="")
    """The engine that found them, such as "grid", or several."""

    def _in_single(self) -> "Bounds":
        """The bounds rounded outward."""
        ends = Outward(self.lower, self.upper)._in_single()
        return dataclasses.replace(self, lower=ends.lower, upper=ends.upper)

    def _differentiable(self) -> "Bounds":
        """Bounds whose ends have the derivative of the estimate."""
        ends = (with_gradient(x, self.estimate) for x in (self.lower, self.upper))
        lower, upper = ends
        return dataclasses.replace(self, lower=lower, upper=upper)

    def pick(
        self, bound: Bound | str, *, upper_is_pessimistic: bool
    ) -> Float[Array, "..."]:
        """One end as an array, with the estimate's derivative."""
        bound = one_end(bound)
        if bound is Bound.ESTIMATE:
            return self.estimate
        upper = (bound is Bound.PESSIMISTIC) == upper_is_pessimistic
        end = self.upper if upper else self.lower
        # A plain call has no derivative, so it need not pay for one.
        return end if outside_transformations() else with_gradient(end, self.estimate)


class Range(NamedTuple):
    """The range of a quantity that is known before anything is computed."""

    least: Any
    most: Any
    unit: float
    """Size of the numbers it is calculated from, where that may be larger than it."""


EPSILON = Range(-np.inf, np.inf, 1.0)
LOGARITHM = Range(-np.inf, 0.0, 1.0)
"""Of a probability."""
DELTA = Range(0.0, 1.0, 0.0)


def beta_range(alpha: Array) -> Range:
    """The range of the type II error, whose upper end is rounded up."""
    alpha, xp = behind(alpha), np
    if is_traced(alpha):
        alpha, xp = stop_gradient(alpha), jnp
    rest = 1 - xp.asarray(alpha)
    most = xp.minimum(xp.nextafter(rest, xp.full_like(rest, 2)), 1)
    return Range(0.0, most, 1.0)


def tpr_range(alpha: Array) -> Range:
    """The range of the power."""
    return Range(stop_gradient(alpha), 1.0, 1.0)


def bayes_error_range(prior: Array) -> Range:
    """The range of the Bayes error; 1 - prior is exact where it is the less."""
    return Range(0.0, stop_gradient(jnp.minimum(prior, 1 - prior)), 0.0)


MEND = True
"""Whether ends that cross are replaced.  The tests leave them, to see that none do;
read when a program is traced."""


def uncrossed(
    lower: Array, upper: Array, known: Range, *, unit: float | None = None
) -> tuple[Array, Array, Bool[Array, "..."]]:
    """Ends of an interval in their order, and whether they contradicted each other.

    Where they do, one of them is false, and nobody knows which: nothing is claimed any
    more but what was known before.  (Ends that are not a number are no claim either.)
    Two computations of one number may cross by their rounding: then each end moves
    beyond the other by as much as either may be off.

    Args:
        lower: What is said to be the lower end.
        upper: The other end.
        known: What is true anyway.
        unit: Of the rounding; that of the arrays' precision if not given.
    """
    size = jnp.maximum(jnp.abs(lower), jnp.abs(upper)) + known.unit
    unit = float(jnp.finfo(size.dtype).eps) if unit is None else unit
    room = CROSSING * unit * size
    beyond = (lower > upper) & jnp.isfinite(size)
    close = beyond & (lower - upper <= room)
    least, most = known.least, known.most
    low = jnp.where(close, jnp.maximum(upper - room, least), lower)
    high = jnp.where(close, jnp.minimum(lower + room, most), upper)
    crossed = ~(low <= high)
    if MEND:
        low, high = jnp.where(crossed, least, low), jnp.where(crossed, most, high)
    return low, high, crossed


def intersection(one: Bounds, other: Bounds, known: Range) -> Bounds:
    """The intersection of two certified intervals of the same numbers."""
    width = lambda b: jnp.where(jnp.isfinite(b.upper), b.upper - b.lower, jnp.inf)
    estimate = jnp.where(width(other) < width(one), other.estimate, one.estimate)
    status = jnp.minimum(one.status, other.status)
    closer = dataclasses.replace(one, estimate=estimate, status=status)
    return between(closer, other, other, known)


def between(one: Bounds, below: Bounds, above: Bounds, known: Range) -> Bounds:
    """An interval of numbers that lie between two others, of which bounds are given."""
    lower = jnp.maximum(one.lower, below.lower)
    upper = jnp.minimum(one.upper, above.upper)
    # What is float32 here was rounded outward, so that is no reason to cross.
    lower, upper, crossed = uncrossed(lower, upper, known, unit=2.0**-52)
    return Bounds(
        lower,
        clipped(one.estimate, lower, upper),
        upper,
        classify(lower, upper, crossed | (one.status == Status.VACUOUS)),
        joined_methods(one.method, above.method),
    )


def clipped(estimate: Array, lower: Array, upper: Array) -> Array:
    """The estimate moved between two ends; its derivative stays, at them too.

    Smooth estimates miss a kink by more than the certificate allows for.
    """
    return with_gradient(jnp.clip(stop_gradient(estimate), lower, upper), estimate)


def with_attained(
    found: Bounds, attained: Bounds, known: Range, *, upper: bool
) -> Bounds:
    """Bounds of a guarantee from those of a pair above it and of one below it.

    Its own end on the private side, the `upper` one or the lower, is the first pair's,
    the other end the second's.
    """
    lower, most = (
        (attained.lower, found.upper) if upper else (found.lower, attained.upper)
    )
    ends = dataclasses.replace(found, lower=lower, upper=most)
    return between(ends, ends, dataclasses.replace(attained, upper=most), known)


def within(found: Bounds, above: Bounds, known: Range, *, upper: bool) -> Bounds:
    """Bounds of a guarantee, also from those of one that leaks no less.

    The end on the private side, the `upper` one or the lower, is the better of both.
    """
    lower = jnp.full_like(above.lower, known.least) if upper else above.lower
    most = above.upper if upper else jnp.full_like(above.upper, known.most)
    number = jnp.isfinite(found.estimate)
    estimate = jnp.where(number, found.estimate, above.estimate)
    found = dataclasses.replace(found, estimate=estimate)
    return intersection(
        found, dataclasses.replace(above, lower=lower, upper=most), known
    )


_FEW_LEAST = 16
"""Least normal numbers that sums of what underflows may be off by."""


@jax.custom_jvp
def with_gradient(value: Array, estimate: Array) -> Array:
    """`value`, differentiated as `estimate`."""
    return value


@with_gradient.defjvp
def _with_gradient_jvp(primals: tuple, tangents: tuple) -> tuple:
    return with_gradient(*primals), tangents[1]


def classify(lower: Array, upper: Array, vacuous: Array) -> Int[Array, "..."]:
    """The status of an interval; one whose ends cross says nothing."""
    crossed = ~(lower <= upper)
    finite = jnp.isfinite(lower) & jnp.isfinite(upper)
    width = jnp.where(finite, upper - lower, 0)
    size = jnp.maximum(jnp.abs(jnp.where(finite, lower, 1)), jnp.abs(upper))
    tight = (lower == upper) | (finite & (width <= 1e-6 * size))
    least = float(jnp.finfo(size.dtype).tiny)
    tight = tight | ((lower == 0) & (upper <= _FEW_LEAST * least))
    status = jnp.where(tight, Status.TIGHT, Status.LOOSE)
    # A trivial value that is the truth (epsilon = inf at delta = 0) is no failure.
    vacuous = crossed | (vacuous & ~tight)
    return jnp.where(vacuous, Status.VACUOUS, status).astype(jnp.int32)
