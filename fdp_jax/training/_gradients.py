"""Sums of bounded per-example gradients of batches whose sizes differ."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._record import Record
from .._internal._show import short
from ._clipping import AbstractClipping, clipping_norm
from ._exact import WIDEST, Whole, exponent_of, length, sum_of_rows, unit_of

Loss = Callable[..., Array]
"""A function of a model and one example (and a key, if it draws): one number."""


_NUMBERS = "kept", "scaled", "size", "loss"


class GradientSum(Record):
    """The sum of a batch's bounded per-example gradients, which noise is made for.

    It is exact: of whole multiples of a unit, to which every entry of a bounded
    gradient is cut.  Whatever the order of the records, their parts and the devices
    are, it is the same number for number, and one record moves it by no more than the
    clipping states.

    It is not yet private, and neither are `loss` and the counts.
    """

    parts: PyTree
    """The sum in units, with the structure of the gradient."""
    norm: Float[Array, ""]
    """What the gradients were clipped to."""
    sensitivity: Float[Array, ""]
    """How far one record may move the sum, by the rule that bounded the gradients."""
    unit: Float[Array, ""]
    """A power of two, 2^-27 to 2^-28 of what one record may move the sum by."""
    kept: Array
    """How many gradients were left as they were, but for those that are zero."""
    scaled: Array
    """How many were scaled down."""
    size: Array
    """How many records of the batch had a finite gradient."""
    loss: Array
    """Sum of their losses."""
    dtypes: tuple[Any, ...] = eqx.field(static=True)
    """Of the gradient's arrays, at least float32."""

    @classmethod
    def zero(cls, like: PyTree, clipping: AbstractClipping, norm: Any) -> "GradientSum":
        """The sum of no records.

        Args:
            like: What gradients look like: arrays.
            clipping: How a gradient is bounded.
            norm: The present norm.
        """
        leaves = jax.tree.leaves(like)
        norm = jnp.asarray(norm, jnp.float32)
        none = jnp.zeros((), jnp.int32)
        sensitivity = jnp.asarray(clipping.sensitivity(norm, len(leaves)))
        return cls(
            jax.tree.map(lambda x: Whole.zeros(x.shape), like),
            norm,
            sensitivity,
            unit_of(sensitivity),
            *(none, none, none),
            jnp.zeros(()),
            tuple(wide(x) for x in leaves),
        )

    @classmethod
    def rounded(
        cls, total: PyTree, clipping: AbstractClipping, norm: Any
    ) -> "GradientSum":
        """A sum that was made elsewhere, rounded to units.

        What the roundings of its own come to nothing here pays for, nor does it count
        records, as adaptive clipping needs.

        Args:
            total: The sum of bounded gradients: arrays.
            clipping: How they were bounded.
            norm: The norm they were bounded to.
        """
        zero = cls.zero(total, clipping, norm)
        units = lambda _, dtype, x: Whole.of_floats(x.astype(dtype) / zero.unit)
        return zero._with(zero.map(units, total), *zero._numbers())

    @property
    def total(self) -> PyTree:
        """The sum in floating point, which rounds it: to be looked at."""
        return self.map(lambda x, dtype: x.value(dtype) * self.unit.astype(dtype))

    def map(self, function: Callable[..., Any], *others: PyTree) -> PyTree:
        """The parts after a function of each of them and its dtype.

        Args:
            function: Of a part and a dtype, and what stands there in the others.
            *others: With the structure of the gradient.
        """
        parts, structure = jax.tree.flatten(self.parts, is_leaf=_is_whole)
        rows = zip(parts, self.dtypes, *map(jax.tree.leaves, others), strict=True)
        return jax.tree.unflatten(structure, [function(*row) for row in rows])

    def plus(self, other: "GradientSum") -> "GradientSum":
        """The sum of records that are in one of both.

        Raises:
            ValueError: If they are known to be clipped to different norms.
        """
        units = known(self.unit), known(other.unit)
        if None not in units and units[0] != units[1]:
            raise ValueError(
                f"other must be a sum in units of {units[0]:g}, got {units[1]:g}: sums "
                "of gradients that were clipped to one norm can be added"
            )
        most = jnp.maximum(self.sensitivity, other.sensitivity)
        return dataclasses.replace(self, sensitivity=most)._with(
            jax.tree.map(Whole.plus, self.parts, other.parts, is_leaf=_is_whole),
            *(x + y for x, y in zip(self._numbers(), other._numbers(), strict=True)),
        )

    def over(self, axis: str, devices: int) -> "GradientSum":
        """The sum over the devices of a mesh.

        Args:
            axis: Their axis.
            devices: How many there are.
        """
        return self._with(
            self.map(lambda x, _: x.over(axis, devices)),
            *lax.psum(self._numbers(), axis),
        )

    def _numbers(self) -> tuple[Array, ...]:
        return tuple(getattr(self, name) for name in _NUMBERS)

    def _with(self, parts: PyTree, *numbers: Array) -> "GradientSum":
        named = dict(zip(_NUMBERS, numbers, strict=True))
        return dataclasses.replace(self, parts=parts, **named)


def _is_whole(x: Any) -> bool:
    return isinstance(x, Whole)


def one_number(loss: Loss) -> Loss:
    """The loss, which raises `TypeError` unless it is one real number."""

    def found(*args: Any) -> Array:
        value = loss(*args)
        is_number = isinstance(value, jax.Array | np.ndarray | np.generic | float)
        is_real = is_number and jnp.issubdtype(jnp.result_type(value), np.floating)
        _checks.require(
            is_real and (not jnp.shape(value)),
            "loss must return one real number for a model and one example",
            short(value),
            TypeError,
        )
        return value  # pyright: ignore[reportReturnType]

    return found


def require_records(data: PyTree, number: int, of: str) -> None:
    """Raises an error if data are no arrays with so many rows.

    Raises:
        ValueError: If there are more or fewer, or no arrays.
        TypeError: If something else is among them.
    """
    leaves = jax.tree.leaves(data, is_leaf=lambda x: hasattr(x, "__next__"))
    wanted = f"data must be arrays {of}, got"
    for x in leaves:
        # Others have shapes, too: tables, tensors of other libraries, texts.
        kind = f" of {x.dtype}" if isinstance(x, np.ndarray) else ""
        _checks.require(
            isinstance(x, jax.Array) or (kind and x.dtype.kind not in "OSUMm"),
            f"{wanted} {type(x).__name__}{kind}",
            None,
            TypeError,
        )
    sizes = {x.shape[:1] for x in leaves}
    if sizes != {(number,)}:
        found = ", ".join(str(*size) or "none" for size in sorted(sizes))
        raise ValueError(f"{wanted} {found or 'no'} rows")


@explained
def per_example_gradients(
    loss: Loss, model: PyTree, examples: PyTree, key: Array | None = None
) -> tuple[Float[Array, " n"], PyTree]:
    """Losses of examples and their gradients, each with a leading axis.

    Args:
        loss: A function of the model and one example; with a key, of that too.
        model: A PyTree, an Equinox model for instance; of its leaves the inexact arrays
            are differentiated.
        examples: Arrays with one leading axis.
        key: For losses that draw, each example its own.

    Raises:
        TypeError: If the loss is not one real number.
    """
    trained, fixed = eqx.partition(model, eqx.is_inexact_array)

    def one(trained: PyTree, example: PyTree, key: Any) -> Array:
        drawn = () if key is None else (key,)
        return one_number(loss)(eqx.combine(trained, fixed), example, *drawn)

    size = jax.tree.leaves(examples)[0].shape[0]
    keys = None if key is None else jax.random.split(key, size)
    axes = (None, 0, None if key is None else 0)
    return jax.vmap(jax.value_and_grad(one), in_axes=axes)(trained, examples, keys)


@explained(microbatch_size=_checks.whole_in(1, 1 << 30))
def gradient_sum(
    loss: Loss,
    model: PyTree,
    data: PyTree,
    participants: Bool[Array, " n"],
    clipping: AbstractClipping,
    norm: Float[Array, ""],
    *,
    microbatch_size: int,
    key: Array | None = None,
) -> GradientSum:
    """The sum of the bounded gradients of those records that take part.

    Records are gathered into parts of one static size, as many as are needed: no batch
    is too large, nothing is compiled again, and how it is cut does not change the sum.
    What is taken for granted is that a record's gradient is the same, bit by bit, in
    every place of a part, as where its arithmetic is that of the other records.

    Args:
        loss: See `per_example_gradients`.
        model: The model.
        data: Arrays with one leading axis, of all records.
        participants: Which records are in the batch.
        clipping: How a gradient is bounded.
        norm: The present norm, in [2^-40, 2^40].
        microbatch_size: Records whose gradients are in memory at a time, at most.
        key: For losses that draw.

    Raises:
        ValueError: If microbatch_size is no whole number from 1, there are not as many
            records as participants, or the norm is known and out of range.  `add_noise`
            refuses one that is traced.
        TypeError: If participants are no flags, data no arrays, or the loss is not one
            real number.
    """
    if known(norm) is not None:
        clipping_norm("norm", norm)
    _checks.require(
        participants.dtype == bool,
        "participants must be flags",
        participants.dtype,
        TypeError,
    )
    records = participants.shape[0]
    of = f"with one row for each of the participants, {records}"
    require_records(data, records, of)
    width = min(microbatch_size, WIDEST)
    trained, fixed = eqx.partition(model, eqx.is_inexact_array)
    places = jnp.nonzero(participants, size=records + width, fill_value=records)[0]

    def add(index: Array, found: GradientSum) -> GradientSum:
        chosen = lax.dynamic_slice(places, (index * width,), (width,))
        here = chosen < records
        examples = jax.tree.map(lambda x: x[jnp.where(here, chosen, 0)], data)
        drawn = None if key is None else jax.random.fold_in(key, index)
        model = eqx.combine(trained, fixed)
        losses, gradients = per_example_gradients(loss, model, examples, drawn)

        def bounded(losses: Array, gradients: PyTree) -> GradientSum:
            return found.plus(_clipped_sum(losses, gradients, here, clipping, found))

        # What is measured has to be what is added.  XLA may find a gradient once for
        # either, rounded in two ways or in a wider type than it has, but not what
        # enters a branch; it does not know that there is always a record here.
        gradients = lax.optimization_barrier(gradients)
        return lax.cond(here.any(), bounded, lambda *_: found, losses, gradients)

    nothing = GradientSum.zero(trained, clipping, norm)
    return lax.fori_loop(0, -(-jnp.sum(participants) // width), add, nothing)


def _clipped_sum(
    losses: Array,
    gradients: PyTree,
    here: Bool[Array, " n"],
    clipping: AbstractClipping,
    like: GradientSum,
) -> GradientSum:
    """The sum of one part.

    Gradients of all examples are large: they are read twice, for their lengths and for
    the sum, and nothing else of their size is written.
    """
    leaves, structure = jax.tree.flatten(gradients)
    exponent, norm = exponent_of(like.norm), like.norm
    lengths = jnp.stack([_lengths(x, exponent) for x in leaves], axis=1)
    factors, kept = jax.vmap(clipping.factors, in_axes=(0, None))(lengths, norm)
    finite = here & jnp.isfinite(lengths).all(axis=1)
    # What is zero says nothing, like a record that is not there.
    present = finite & (lengths > 0).any(axis=1)
    factors = jnp.broadcast_to(factors.reshape(len(here), -1), lengths.shape)
    factors = jnp.where(jnp.isfinite(factors), factors, 0) / like.unit
    sums = [
        sum_of_rows(x.astype(wide(x)), factors[:, i], present)
        for i, x in enumerate(leaves)
    ]
    count = lambda flags: jnp.sum(flags, dtype=jnp.int32)
    return like._with(
        jax.tree.unflatten(structure, sums),
        count(present & kept),
        count(present & ~kept),
        count(finite),
        jnp.sum(jnp.where(finite, losses, 0)).astype(like.loss.dtype),
    )


def wide(x: Array) -> Any:
    """The type of an array, or float32 if that is less."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _lengths(gradients: Array, exponent: Array) -> Float[Array, " n"]:
    """Euclidean lengths of the gradients of all examples, none of them too small.

    Found over a power of two near the norm, so that no square that matters is too
    small for its type; gradients longer than about 1e19 norms count as infinite.
    """
    rows = gradients.reshape(len(gradients), math.prod(gradients.shape[1:]))
    rows = rows.astype(wide(gradients))
    scale = lambda e: jnp.ldexp(jnp.ones((), rows.dtype), e)
    return length(rows, scale(-exponent)) * scale(exponent)
