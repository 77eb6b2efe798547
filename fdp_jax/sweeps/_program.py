"""Programs that answer for many configurations, one after the other on each device.

Loops inside of a query run as long as its numbers need, so a batch is no faster on a
CPU than one by one, and here an expensive configuration holds up nobody.  A program is
compiled for one size of arrays and told which rows of them count.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._internal._compilation import compiled_for
from .._internal._host import whole_programs
from .._internal._program_cache import remembered
from ._problem import CONTOUR, UNSPLIT, Problem, stages_of
from ._queries import Row

_BATCH = 1024
"""Configurations at once along contours, where that is faster: on an accelerator."""
REFUSED, DOUBT = "_refused", "_doubt"
Columns = dict[str, np.ndarray]


class Traced(NamedTuple):
    """Facts of a problem once it has been traced."""

    messages: list[str]
    """Of the checks that a configuration may fail, in their order."""
    shapes: dict[str, jax.ShapeDtypeStruct]
    """Of the answers for one configuration."""
    stages: tuple[str, ...]
    """Programs to ask in turn; see `stages_of`."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """A problem but for its numbers, the same as another one of its name."""

    problem: Problem = dataclasses.field(compare=False)
    moving: tuple[str, ...] = dataclasses.field(compare=False)
    """The columns of numbers."""
    static: Row = dataclasses.field(compare=False)
    """What the other columns hold."""
    name: str | None
    """The same for the same question in every process; None if there is no such."""


def trace(asked: Asked) -> Traced:
    """Traces a problem, with x64 on, unless that has been done for its name.

    Raises:
        Exception: Whatever the user's functions raise on traced numbers.
    """
    return remembered(asked.name, lambda: _traced(asked))


def _traced(asked: Asked) -> Traced:
    messages: list[str] = []
    stages: list[str] = []

    def look(numbers: Row) -> dict[str, Any]:
        row = numbers | asked.static
        (guarantee, _), found = asked.problem.checks(row)
        messages.extend(message for _, message in found)
        stages.extend(stages_of(guarantee))
        with whole_programs():
            return asked.problem.answers(row, UNSPLIT)

    number = jax.ShapeDtypeStruct((), np.float64)
    shapes = jax.eval_shape(look, dict.fromkeys(asked.moving, number))
    return Traced(messages, dict(shapes), tuple(stages))


def program_for(
    asked: Asked, traced: Traced, part: int, mesh: Mesh, stage: str
) -> Callable[[Columns, np.ndarray], dict[str, np.ndarray]]:
    """Compiles (or finds) the program for columns of some length on a mesh.

    Args:
        asked: The problem.
        traced: What is known of it.
        part: Rows of a device.
        mesh: The devices.
        stage: Which of the programs.

    Returns:
        A function of the columns, dealt to the devices one part after the other, and of
        which of their rows count.
    """
    one = functools.partial(_one, asked.problem, traced, asked.static, stage)
    batch = min(_BATCH, part) if stage == CONTOUR else None
    run = functools.partial(_over_rows, one, _blank(traced), batch)
    parts = PartitionSpec(tuple(mesh.axis_names))
    place = NamedSharding(mesh, parts)
    if mesh.size > 1:  # inside of this Optimistix 0.1 has no BFGS method
        run = jax.shard_map(
            run, mesh=mesh, in_specs=(parts, parts), out_specs=parts, check_vma=False
        )
    array = functools.partial(jax.ShapeDtypeStruct, sharding=place)
    rows = (part * mesh.size,)
    columns = dict.fromkeys(asked.moving, array(rows, np.float64))
    name = None if asked.name is None else f"{asked.name} {part} {stage}"
    devices = tuple(mesh.devices.flat)
    compiled = compiled_for(devices, run, (columns, array(rows, bool)), name)

    def on_all(columns: Columns, inside: np.ndarray) -> dict[str, np.ndarray]:
        given = jax.device_put((columns, inside), place)
        return jax.tree.map(np.asarray, compiled(*given))

    return on_all


def _one(
    problem: Problem, traced: Traced, static: Row, stage: str, numbers: Row
) -> dict[str, Any]:
    """The answers for one configuration, unless it is refused."""
    row = numbers | static
    _, found = problem.checks(row)
    wrong = [jnp.any(flag) for flag, _ in found] + [jnp.asarray(True)]
    first = jnp.argmax(jnp.stack(wrong)).astype(np.int32)
    refused = first < len(found)

    def ask() -> dict[str, Any]:
        with whole_programs():
            answers = problem.answers(row, stage)
        answers[DOUBT] = jnp.asarray(problem.in_doubt(answers))
        kinds = traced.shapes | {DOUBT: jax.ShapeDtypeStruct((), bool)}
        return {name: answers[name].astype(kinds[name].dtype) for name in kinds}

    found = lax.cond(refused, lambda: _blank(traced), ask)
    return found | {REFUSED: jnp.where(refused, first, -1)}


def _blank(traced: Traced) -> dict[str, Any]:
    """Answers that say nothing."""
    blank = {
        name: np.full(x.shape, np.nan if x.dtype.kind == "f" else 0, x.dtype)
        for name, x in traced.shapes.items()
    }
    return blank | {DOUBT: np.asarray(False)}


def _over_rows(
    one: Callable[[Row], dict[str, Any]],
    blank: dict[str, Any],
    batch: int | None,
    columns: Row,
    inside: jax.Array,
) -> dict[str, jax.Array]:
    """One configuration after the other, or one batch after the other."""
    blank = jax.tree.map(jnp.asarray, blank | {REFUSED: np.asarray(-1, np.int32)})

    def at(row: tuple[Row, jax.Array]) -> dict[str, Any]:
        numbers, counts = row
        return lax.cond(counts, one, lambda _: blank, numbers)

    return lax.map(at, (columns, inside), batch_size=batch)
