"""A whole training in one call."""

import os
from collections.abc import Callable
from typing import Any

import optax
from jaxtyping import Array, PyTree

from .._internal import _checks
from .._internal._bar import with_bar
from .._internal._calls import explained
from .._internal._record import Record
from ..calibration import AbstractTarget, calibrate
from ..mechanisms import DPSGD, AbstractMechanism
from ._gradients import Loss
from ._plan import Plan
from ._trainer import Trainer, TrainingState


class Trained(Record):
    """The results of a training."""

    model: PyTree
    mechanism: AbstractMechanism
    """What was run: ask it for the guarantee."""
    state: TrainingState
    history: tuple[dict[str, float], ...]
    """Now and then: the number of steps, what was spent, and what `evaluate` said."""


@explained(every=_checks.whole_in(1, 1 << 31))
def fit(
    plan: Plan,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    model: PyTree,
    data: PyTree,
    *,
    key: Array,
    until: AbstractTarget | None = None,
    delta: float | None = None,
    evaluate: Callable[[PyTree], Any] | None = None,
    every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Trained:
    """Trains a model by a plan, to its end or as far as a target allows.

    Args:
        plan: Sampling, clipping, noise and number of steps.
        loss: See `Trainer`.
        optimizer: Of optax.
        model: What is trained.
        data: Arrays of all records with one leading axis.
        key: A random key, for this run alone.
        until: A target of `fdp_jax.targets` that must be met: the training takes as
            many of the plan's steps as are certain to.
        delta: For which the epsilon so far is shown and kept in the history.
        evaluate: A function of the model, called every so many steps: on public data,
            for what it says is not covered by the guarantee.
        every: That number of steps; a tenth of the plan's by default.
        checkpoint: A file to which the state is written every so many steps, and from
            which the training goes on if it is there.  It holds the keys of the noise:
            not to be published.
        progress: Whether to show a bar, for which tqdm is needed; by default if that is
            installed.  It shows the loss of the batch, too, which the guarantee does
            not cover.
        **options: `trainable`, `draws` and `mesh`, as of `Trainer`.

    Returns:
        The model, with the mechanism that was run.

    Raises:
        TypeError: If until is no target.  A rule that looks at the model or at the data
            makes the number of steps depend on them, which no guarantee here covers.
        ValueError: If not even one step meets it, or the data do not fit the plan.
    """
    trainer = Trainer(plan, loss, optimizer, **options)
    if checkpoint is None:
        state = trainer.init(key, model)
    else:
        state = trainer.restore_or_init(checkpoint, key, model)
    last = _last_step(plan, until)
    _checks.require(
        evaluate is None or callable(evaluate),
        "evaluate must be a function of the model",
        f"{evaluate!r}",
        TypeError,
    )
    often = max(plan.num_steps // 10, 1) if every is None else every
    spent = None if delta is None else plan.progress(delta=delta)
    data = trainer.shard(data)
    history: list[dict[str, float]] = []
    first = int(state.step)
    bar: Any = with_bar(range(first + 1, last + 1), progress, initial=first, total=last)
    for done in bar:
        state, seen = trainer.step(state, data)
        if done % often and done != last:
            continue
        row = {"step": float(done)}
        if spent is not None:
            row["epsilon"] = float(spent.at(done))
        if evaluate is not None:
            row["evaluate"] = float(evaluate(state.model))
        history.append(row)
        if checkpoint is not None:
            trainer.save(checkpoint, state)
        row = row | {"loss": float(seen.loss)}
        if hasattr(bar, "set_postfix"):
            bar.set_postfix({k: f"{x:.4g}" for k, x in row.items() if k != "step"})
    return Trained(state.model, plan.after(state.step), state, tuple(history))


def _last_step(plan: Plan, until: AbstractTarget | None) -> int:
    """The number of steps that are taken, known before the first one."""
    if until is None:
        return plan.num_steps
    _checks.require(
        isinstance(until, AbstractTarget),
        "until must be a target of fdp_jax.targets",
        f"{until!r}: the number of steps may depend on nothing that was learned from "
        "the data",
        TypeError,
    )
    _checks.require(
        isinstance(plan.mechanism, DPSGD),
        "until is for DPSGD",
        f"{type(plan.mechanism).__name__}, whose steps are one release",
        TypeError,
    )
    found = calibrate(plan.mechanism, until, solve_for="num_steps", whole=True)
    return min(int(found.value), plan.num_steps)
