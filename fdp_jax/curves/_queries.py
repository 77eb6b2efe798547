"""Questions with many arguments, directions, and the epsilons of a composed loss.

Compiled programs see a loss, and neither the mechanism that it belongs to nor the
neighboring relation: whatever has a loss of the same kind shares them.  They run in
float64 and answer for the worst of some directions: "remove", "add", or both, which is
the guarantee under add-or-remove-one and convexifies min(f, f^-1) (Dong, Roth, Su
2022).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float, PyTree

from .. import engines
from .._internal._concrete import outside_transformations
from .._internal._precision import in_float64
from .._internal._shapes import zeros_of
from .._internal._special import safe_log
from ..engines import Interval
from ..losses import ComposedLoss
from ._bounds import EPSILON, Bounds, Range, classify, clipped, uncrossed

BATCH = 32
"""Thresholds evaluated at once; bounds the memory of a query with many."""
_LENGTHS = (1, 4, 8, 32, 256, 2048, 16384, 131072)
_Query = TypeVar("_Query", bound=Callable[..., Any])
_SIGNS = {"remove": 1.0, "add": -1.0}


def signs_of(loss: ComposedLoss, direction: str) -> Any:
    """Directions to look at: +1 is "remove", -1 is "add"; an array of NumPy."""
    if direction == "both":
        return np.asarray([1.0] if loss.symmetric else [1.0, -1.0])
    return np.asarray([_SIGNS[direction]])


def over_signs(one: Callable[[Array], PyTree], signs: Float[Array, " s"]) -> PyTree:
    """Evaluates a function of the direction, with a leading axis for it."""
    if signs.size > 1:
        return jax.vmap(one)(signs)
    return jax.tree.map(lambda x: x[None], one(signs[0]))


class _Padded(NamedTuple):
    """An array of a usual length, whose first `asked` numbers are asked for."""

    row: Any
    asked: Any


def at_any_length(query: _Query) -> _Query:
    """Lets a query share its programs between arrays of many lengths.

    Of known numbers at most 4, 8, 32, 256 and so on have one program.
    """

    @functools.wraps(query)
    def padded(subject: Any, values: Any, **options: Any) -> Any:
        size, shape = np.size(values), np.shape(values)
        if not outside_transformations() or not shape or size == 0:
            return query(subject, values, **options)
        row = np.asarray(values).ravel()
        usual = next(x for x in _LENGTHS if x >= min(size, _LENGTHS[-1]))
        if size > usual:
            return query(subject, values, **options)
        if size == 1:
            found = query(subject, row[0], **options)
        else:
            row = np.pad(row, (0, usual - size), mode="edge")
            found = query(subject, _Padded(row, np.asarray(size)), **options)
        back = lambda x: np.asarray(x).reshape(-1)[:size].reshape(shape)
        with jax.enable_x64(True):
            return jax.tree.map(lambda x: jnp.asarray(back(x)), found)

    return cast(_Query, padded)


def elementwise(
    one: Callable[[Array], PyTree], values: Any, at_once: int = BATCH
) -> PyTree:
    """Applies a function of one number to an array, so many numbers at a time."""
    asked = None
    if isinstance(values, _Padded):
        values, asked = values
    flat = jnp.asarray(values).ravel()
    if flat.size == 1:
        result = jax.tree.map(lambda x: x[None], one(flat[0]))
    elif flat.size <= at_once:
        result = jax.vmap(one)(flat)
    else:
        batches = -(-flat.size // at_once)
        rows = jnp.pad(flat, (0, batches * at_once - flat.size), mode="edge")
        rows, each = rows.reshape(batches, at_once), jax.jit(jax.vmap(one))
        if asked is None:
            result = jax.lax.map(each, rows)
        else:
            result = _first_of(each, rows, -(-asked // at_once))
        result = jax.tree.map(
            lambda x: x.reshape((-1, *x.shape[2:]))[: flat.size], result
        )
    return jax.tree.map(lambda x: x.reshape(jnp.shape(values) + x.shape[1:]), result)


def _first_of(each: Callable[[Array], PyTree], rows: Array, count: Array) -> PyTree:
    """`lax.map` over the first rows; of the others the result is zero."""
    empty = jax.tree.map(
        lambda x: jnp.zeros((len(rows), *x.shape), x.dtype), zeros_of(each, rows[0])
    )

    def put(i: Array, found: PyTree) -> PyTree:
        return jax.tree.map(lambda x, y: x.at[i].set(y), found, each(rows[i]))

    return jax.lax.fori_loop(0, count, put, empty)


def bounds_of(
    interval: Interval, vacuous: Array, known: Range, method: str = ""
) -> Bounds:
    """Attaches the status, and who has found it.

    No interval whose ends cross gets through; see `uncrossed`.
    """
    found, crossed = ordered(interval, known)
    status = classify(found.lower, found.upper, vacuous | crossed)
    return Bounds(found.lower, found.estimate, found.upper, status, method)


def ordered(interval: Interval, known: Range) -> tuple[Interval, Array]:
    """The interval with its ends in order, and whether they contradicted each other."""
    ends = stop_gradient((interval.lower, interval.upper))
    lower, upper, crossed = uncrossed(*ends, known)
    return Interval(lower, clipped(interval.estimate, lower, upper), upper), crossed


# ------------------------------------------------------------------------- epsilon


@at_any_length
@in_float64
def epsilon_bounds(
    loss: ComposedLoss, delta: Float[Array, "..."], *, signs: Float[Array, " s"]
) -> Bounds:
    """Bounds of epsilon(delta), of the worst of some directions."""

    def one(delta: Array) -> Bounds:
        worst = engines.epsilon(loss, signs, safe_log(delta))
        return bounds_of(worst, jnp.isposinf(worst.upper), EPSILON)

    return dataclasses.replace(elementwise(one, delta), method=engines.route(loss))


class ProfilePoint(eqx.Module):
    """log delta and log(1 - delta) at real thresholds; always float64."""

    log_delta: Interval
    log_rest: Interval
    method: str = eqx.field(static=True, default="")
    """The engine that found them."""


def at_infinity(
    loss: ComposedLoss, signs: Float[Array, " s"]
) -> tuple[Interval, Interval]:
    """Log delta(inf) and log(1 - delta(inf)) of the worst direction."""
    loss = loss.with_ends()
    infinite, truncated = loss.log_infinite_mass(signs), loss.log_truncated_mass(signs)
    end, least = jnp.max(infinite), jnp.max(engines.without(infinite, truncated))
    rest = jnp.min(loss.log_finite_mass(signs))
    lost = stop_gradient(jnp.max(truncated))
    most = jnp.minimum(jnp.logaddexp(rest, lost), 0)
    return Interval(least, end, end), Interval(rest, rest, most)
