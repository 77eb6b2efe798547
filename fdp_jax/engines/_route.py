"""Which engine answers, from static facts, and a loss that is safe to evaluate."""

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool

from ..losses import ComposedLoss
from ._bracketed_engine import BracketedEngine
from ._closed_form_engine import ClosedFormEngine
from ._contour_engine import ContourEngine
from ._enclosed import is_one
from ._grid_engine import GridEngine
from ._interface import AbstractEngine

_Tree = TypeVar("_Tree")
_ANY_COUNT = 1000.0
_CLOSED_FORM, _CONTOUR = ClosedFormEngine(), ContourEngine()
_GRID, _BRACKETED = GridEngine(), BracketedEngine()
_ENGINES = {x.name: x for x in (_CLOSED_FORM, _CONTOUR, _GRID)}
METHODS = ("auto", *_ENGINES)
"""Engines that can be asked for; "auto" takes the first that serves."""


def engine_of(loss: ComposedLoss) -> AbstractEngine:
    """The engine that answers, from static facts alone.

    Raises:
        ValueError: If the engine asked for cannot.
    """
    name = loss.method.name
    engine = _first(loss) if name == "auto" else _ENGINES[name]
    if engine is _GRID and is_one(loss):
        engine = _BRACKETED
    if engine.serves(loss):
        return engine
    others = [repr(x.name) for x in _ENGINES.values() if x.serves(loss)]
    if not others:
        kinds = sorted({type(x).__name__ for x in loss.terms})
        raise ValueError(
            f"no engine can add up {' and '.join(kinds)}: of one the transform alone "
            "is known, of another the masses alone; compose either with others"
        )
    raise ValueError(
        f"method {engine.name!r} is not available for this composition: use 'auto' or "
        + " or ".join(others)
    )


def _first(loss: ComposedLoss) -> AbstractEngine:
    if _CLOSED_FORM.serves(loss):
        return _CLOSED_FORM
    return _CONTOUR if loss.decays or not loss.on_grid else _GRID


def route(loss: ComposedLoss) -> str:
    """The name of the engine that answers."""
    return engine_of(loss).name


@jax.jit
def neutral(loss: ComposedLoss) -> tuple[Bool[Array, ""], ComposedLoss]:
    """Whether nothing is released, and a loss that is safe to evaluate regardless.

    Of parameters that are not numbers neither is that.
    """
    if loss.nothing is not None:
        return loss.nothing > 0, loss
    nothing = jnp.stack([count == 0 for count in loss.counts]).all()
    counts = tuple(jnp.where(nothing, _ANY_COUNT, count) for count in loss.counts)
    safe = dataclasses.replace(loss, counts=counts, ends=None)
    safe = engine_of(loss).made_safe(safe).absorbed().with_ends()
    numbers = filter(eqx.is_inexact_array, jax.tree.leaves(stop_gradient(loss)))
    lost = jnp.stack([jnp.isnan(x).any() for x in numbers]).any()
    flag = jnp.where(lost, jnp.nan, jnp.where(nothing, 1.0, 0.0))
    return nothing, dataclasses.replace(safe, nothing=flag)


def numbers_alone(found: _Tree, loss: Any) -> _Tree:
    """An answer for a loss of `neutral`: no numbers if its parameters are none."""
    return jax.tree.map(lambda x: x + 0 * loss.nothing, found)
