"""Training steps that keep to a plan."""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from .._internal import _checks
from .._internal._calls import explained
from .._internal._files import require_writable
from .._internal._record import Record, described
from .._internal._refusals import checked
from ._exact import MOST_OVER_DEVICES
from ._gradients import GradientSum, Loss, gradient_sum, require_records, wide
from ._noise import NoiseState, add_noise, checked_key
from ._plan import Plan
from ._saved import read, write


class TrainingState(Record):
    """All that a run needs to go on: a PyTree, for any checkpoint.

    The model and the optimizer's own state are made of what is private.  The keys, the
    noise that is kept and the memory of draws are not to be published: with the keys
    the noise can be taken away.
    """

    model: PyTree
    optimizer: PyTree
    """The optimizer's state, behind that of the noise."""
    key: Array
    """For the draws of batches, and of losses that draw."""
    memory: PyTree = None
    """What the draws of batches have to remember of earlier steps."""

    @property
    def noise(self) -> NoiseState:
        """The state of the noise."""
        return self.optimizer[0]

    @property
    def step(self) -> Array:
        """The number of steps that were taken."""
        return self.noise.step


_STATE: Any = (
    TrainingState,
    "a TrainingState, which Trainer.init and Trainer.step return",
)
"""For `_checks.instance`."""


class Diagnostics(Record):
    """The quantities a step saw, of which the guarantee covers the norm alone.

    Nor is how long a step takes, which tells how large the batch was.
    """

    loss: Array
    """Sum of the losses of the batch, over the expected size."""
    size: Array
    """Number of records in the batch, of finite gradient."""
    norm: Array
    """What gradients were clipped to."""


@explained
class Trainer:
    """Training steps for a plan, a loss and an optimizer.

    Args:
        plan: What is drawn, clipped, added and accounted.
        loss: A function of the model and one example: one number.  If `draws`, of a
            random key too.
        optimizer: Of optax.  What it gets are private means.
        trainable: Which leaves of the model are trained, as of `equinox.partition`: a
            PyTree of flags, a prefix of one, or a function of a leaf.  All inexact
            arrays by default; others stay as they are, and no gradients are made of
            them.
        draws: Whether the loss takes a key.
        mesh: Devices along one axis, over which the records are shared out (see
            `shard`).  Each draws among its own; the noise is added to the sum of all,
            once.

    Raises:
        TypeError: If the plan, the loss or the optimizer is no such thing.
        ValueError: If the records cannot be shared out.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=20)
        >>> plan = fdp.training.Plan(run, num_records=500, clipping=1.0)
        >>> trainer = fdp.training.Trainer(
        ...     plan, lambda w, x: jnp.sum((w - x) ** 2), optax.sgd(0.5)
        ... )
        >>> state = trainer.init(jax.random.key(0), jnp.zeros(3))
        >>> for _ in range(20):
        ...     state, seen = trainer.step(state, jnp.ones((500, 3)))
        >>> print(f"{plan.after(state.step).epsilon(delta=1e-5):.4f}")
        3.5907
    """

    @explained(
        plan=_checks.instance_of(Plan, "a Plan"),
        loss=_checks.instance_of(Callable, "a function"),
    )
    def __init__(
        self,
        plan: Plan,
        loss: Loss,
        optimizer: optax.GradientTransformation,
        *,
        trainable: Any = eqx.is_inexact_array,
        draws: bool = False,
        mesh: Mesh | None = None,
    ):
        _require_arguments(loss, draws)
        _checks.require(
            hasattr(optimizer, "init") and hasattr(optimizer, "update"),
            "optimizer must be one of optax, such as optax.sgd(0.1)",
            described(optimizer),
            TypeError,
        )
        if mesh is not None:
            _require_shares(plan, mesh)
        self.plan = plan
        self._loss, self._optimizer = loss, optimizer
        self._trainable, self._draws, self._mesh = trainable, draws, mesh

    def init(self, key: Array, model: PyTree) -> TrainingState:
        """The state before the first step.

        Args:
            key: For this run alone.  Another run with it draws the same noise, and the
                difference of the two is not private.
            model: What is trained.

        Raises:
            TypeError: If the key is no single key of `jax.random.key`, or nothing in
                the model can be trained.
        """
        batches, noise = jax.random.split(checked_key(key))
        trained, fixed = self._split(model)
        # The types are those that a step returns, also where NumPy's are given.
        trained = jax.tree.map(jnp.asarray, trained)
        model = eqx.combine(trained, fixed)
        # Private means are in float32 at least: so is what is kept of them.
        trained = jax.tree.map(lambda x: x.astype(wide(x)), trained)
        state = self._chained(noise).init(trained)
        memory = self.plan.sampling.memory(self.plan.num_records)
        return TrainingState(model, state, batches, self.shard(memory))

    @explained(state=_checks.instance_of(*_STATE))
    def step(
        self, state: TrainingState, data: PyTree
    ) -> tuple[TrainingState, Diagnostics]:
        """The state after one more step, and what it saw: a program, compiled once.

        Args:
            state: Of `init`, of the step before or of a file.
            data: Arrays of all records with one leading axis.

        Raises:
            TypeError: If the state or the data are no such thing, or the loss is not
                one real number.
            ValueError: If there is another number of records, or all steps of the plan
                have been taken (within a program of `jax.jit`, see `fdp_jax.checked`).
        """
        number = self.plan.num_records
        of = f"of {number} records, from which the plan draws the batches"
        require_records(data, number, of)
        return checked(self._compiled)(state, data)

    @functools.cached_property
    def _compiled(self) -> Any:
        return eqx.filter_jit(self._step)

    def _step(
        self, state: TrainingState, data: PyTree
    ) -> tuple[TrainingState, Diagnostics]:
        trained, fixed = self._split(state.model)
        loss = lambda part, *rest: self._loss(eqx.combine(part, fixed), *rest)
        find = functools.partial(self._gradients, loss)
        if self._mesh is not None:
            find = _over(self._mesh, find)
        found, memory = find(
            trained, data, state.memory, state.key, state.step, state.noise.norm
        )
        chained: Any = self._chained(state.noise.key)
        updates, optimizer = chained.update(found, state.optimizer, trained)
        model = eqx.combine(optax.apply_updates(trained, updates), fixed)
        size = self.plan.expected_size
        seen = Diagnostics(found.loss / size, found.size, found.norm)
        return TrainingState(model, optimizer, state.key, memory), seen

    def _gradients(
        self,
        loss: Loss,
        trained: PyTree,
        data: PyTree,
        memory: PyTree,
        key: Array,
        step: Array,
        norm: Array,
        shares: int = 1,
        share: Any = None,
    ) -> tuple[GradientSum, PyTree]:
        """The sums of the records here: all, or one device's share of them."""
        here = self.plan.num_records // shares
        if share is not None:
            key = jax.random.fold_in(key, share)
        draw, own = jax.random.split(key)
        participants, memory = self.plan.sampling.next_participants(
            draw, step, memory, num_records=here
        )
        found = gradient_sum(
            loss,
            trained,
            data,
            participants,
            self.plan.clipping,
            norm,
            microbatch_size=max(1, -(-self.plan.microbatch_size // shares)),
            key=jax.random.fold_in(own, step) if self._draws else None,
        )
        return found, memory

    def shard(self, data: PyTree) -> PyTree:
        """The data, shared out over the devices of the mesh.

        Args:
            data: Arrays of all records with one leading axis.
        """
        if self._mesh is None:
            return data
        (axis,) = self._mesh.axis_names
        return jax.device_put(data, NamedSharding(self._mesh, PartitionSpec(axis)))

    def save(self, path: str | os.PathLike[str], state: TrainingState) -> None:
        """Writes a state to a file: at once or not at all.

        Args:
            path: Where to.
            state: What to.

        Raises:
            TypeError: If it is no state.
            FileNotFoundError: If there is no folder for the file.
        """
        write(path, self.plan, _checks.instance("state", state, *_STATE), state.key)

    def restore(
        self, path: str | os.PathLike[str], like: TrainingState
    ) -> TrainingState:
        """Reads what `save` wrote, bit by bit.

        Arrays are found by the names of the fields that they are in.  The plan must be
        that of the file in every public field but `microbatch_size`; where clipping
        needs no noise of its own, noise multipliers may differ in the last digits.

        Args:
            path: Where from.
            like: A state with arrays of the same names, as `init` makes it.

        Raises:
            ValueError: If the file is damaged, or was written for another plan, model
                or optimizer.
            TypeError: If like is no state.
        """
        return read(path, self.plan, _checks.instance("like", like, *_STATE))

    def restore_or_init(
        self, path: str | os.PathLike[str], key: Array, model: PyTree
    ) -> TrainingState:
        """The state of a file if there is one, else that before the first step.

        Args:
            path: Where `save` writes.
            key: See `init`.
            model: See `init`.

        Raises:
            ValueError: If there is a file that `restore` refuses.
            FileNotFoundError: If there is no folder for the file, or a link leads
                nowhere: what has been trained may be elsewhere.
        """
        state = self.init(key, model)
        try:
            return self.restore(path, state)
        except FileNotFoundError:
            require_writable("path", path)
            if os.path.lexists(path):
                raise
        return state

    def _split(self, model: PyTree) -> tuple[PyTree, PyTree]:
        trained, fixed = eqx.partition(model, self._trainable)
        leaves = jax.tree.leaves(trained)
        real = lambda x: jnp.issubdtype(jnp.result_type(x), np.floating)
        wrong = [x for x in leaves if not (eqx.is_inexact_array(x) and real(x))]
        if wrong:
            raise TypeError(
                "trainable must select arrays of real floating-point numbers, got also "
                f"{described(wrong[0])}"
            )
        _checks.require(
            leaves,
            "model must have arrays of floating-point numbers that trainable selects",
            described(model),
            TypeError,
        )
        return trained, fixed

    def _chained(self, key: Array) -> optax.GradientTransformation:
        return optax.chain(add_noise(self.plan, key), self._optimizer)


def _require_arguments(loss: Loss, draws: bool) -> None:
    """Raises `TypeError` if a loss is known to take other arguments."""
    try:
        signature = inspect.signature(loss)
    except ValueError:  # it tells nothing of them
        return
    names = ["model", "example", *(["key"] if draws else [])]
    try:
        signature.bind(*names)
    except TypeError:
        raise TypeError(
            f"loss must take {', '.join(names)} where draws={draws}, got one that "
            f"takes {signature}"
        ) from None


def _require_shares(plan: Plan, mesh: Mesh) -> None:
    """Raises `ValueError` if devices cannot draw among their own records."""
    _checks.require(
        len(mesh.axis_names) == 1, "mesh must have one axis", mesh.axis_names
    )
    _checks.require(
        not plan.num_records % mesh.size,
        f"num_records must be a multiple of the {mesh.size} devices of the mesh",
        plan.num_records,
    )
    _checks.require(
        plan.num_records * mesh.size <= MOST_OVER_DEVICES,
        f"num_records must be at most {MOST_OVER_DEVICES // mesh.size} over "
        f"the {mesh.size} devices of the mesh",
        plan.num_records,
    )
    _checks.require(
        plan.sampling.draws_independently,
        "sampling must draw every record independently where devices draw "
        "among their own",
        type(plan.sampling).__name__,
    )


def _over(mesh: Mesh, find: Any) -> Any:
    """The sum over all devices' records, on every one of them."""
    (axis,) = mesh.axis_names
    everywhere, shared = PartitionSpec(), PartitionSpec(axis)

    def local(
        trained: Any, data: Any, memory: Any, key: Array, step: Array, norm: Array
    ) -> Any:
        share = jax.lax.axis_index(axis)
        found, memory = find(trained, data, memory, key, step, norm, mesh.size, share)
        return found.over(axis, mesh.size), memory

    inside = (everywhere, shared, shared, everywhere, everywhere, everywhere)
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=inside,
        out_specs=(everywhere, shared),
        check_vma=False,
    )
