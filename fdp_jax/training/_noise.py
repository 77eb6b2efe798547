"""Noise as an optax transformation: from the sum of a batch to a private mean."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from .._internal import _checks
from .._internal._calls import explained
from .._internal._record import Record
from ._clipping import clipping_norm
from ._exact import Whole, normal
from ._gradients import GradientSum, wide

if TYPE_CHECKING:
    from ._plan import Plan


class NoiseState(Record):
    """The state of `add_noise`."""

    key: Array
    """One key for the whole run: every step folds its number in."""
    step: Array
    """How many noisy means were released."""
    norm: Array
    """What the next gradients are clipped to."""
    previous: PyTree
    """Noise of earlier steps, as far as later noise is correlated with it."""


@explained
def add_noise(plan: "Plan", key: Array) -> optax.GradientTransformation:
    """Makes a batch's `GradientSum` a private mean: first in an `optax.chain`.

    The noise is added to the exact sum, once, whatever follows; the mean is over the
    expected number of records, which does not tell the data.  The state counts the
    releases, so that what was spent is known (`plan.after(state.step)`), and there is
    an error when the plan's steps are used up.

    Args:
        plan: What the noise, the clipping and the sampling are.
        key: A random key, for this run alone.

    Returns:
        The transformation.  Its `init` takes the model's arrays, its `update` a
        `GradientSum` and nothing else.  Its state is not private: who has the key can
        take the noise away.
    """
    from ._plan import Plan

    key = checked_key(key)
    column = _checks.instance("plan", plan, Plan, "a Plan").correlation()

    def init(params: PyTree) -> NoiseState:
        before = len(column) - 1
        kept = lambda x: jnp.zeros((before, *x.shape), wide(x))
        return NoiseState(
            key,
            jnp.zeros((), jnp.int32),
            plan.clipping.start(),
            jax.tree.map(kept, params) if before else None,
        )

    def update(
        updates: Any, state: NoiseState, params: Any = None
    ) -> tuple[PyTree, NoiseState]:
        _checks.require(
            isinstance(updates, GradientSum),
            "add_noise takes a GradientSum, which gradient_sum returns",
            f"{type(updates).__name__}: the noise belongs on the sum of a batch's "
            "clipped gradients, before it is averaged or accumulated",
            TypeError,
        )
        step = _checks.error_if(
            state.step,
            lambda x: x >= plan.num_steps,
            f"all {plan.num_steps} steps of the plan have been taken: what follows is "
            "another plan's",
            kind="a step after",
        )
        norm = clipping_norm("norm", updates.norm)
        # Depends on the norm's being in its range.
        sensitivity = jnp.maximum(updates.sensitivity, 0 * norm)
        updates = dataclasses.replace(updates, norm=norm, sensitivity=sensitivity)
        here = jax.random.fold_in(state.key, step)
        deviation = plan.noise_deviation(updates) / updates.unit
        size = plan.expected_size
        keys = iter(jax.random.split(here, 2 * len(updates.dtypes)))
        drawn = updates.map(lambda x, dtype: normal(next(keys), x.low.shape, dtype))
        noise, previous = _correlated(drawn, state.previous, column)

        def private_mean(part: Whole, dtype: Any, noise: Array) -> Array:
            # Exact until here, so that all that is rounded is already private.
            found = part.with_noise(next(keys), deviation.astype(dtype) * noise)
            return found.value(dtype) * (updates.unit.astype(dtype) / size)

        mean = updates.map(private_mean, noise)
        other = jax.random.fold_in(here, _COUNT)
        excess = updates.kept - updates.scaled
        norm = plan.clipping.next_norm(state.norm, other, excess, size)
        return mean, NoiseState(state.key, step + 1, norm, previous)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


_COUNT = 0x7FFF_FFFF
"""What is folded in for the noise of a number of records."""


def checked_key(key: Any) -> Array:
    """One typed key.

    Raises:
        TypeError: If it is no such thing.
    """
    _checks.require(
        isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key),
        "key must be a key of jax.random.key",
        f"{key!r}",
        TypeError,
    )
    _checks.require(
        not key.shape,
        "key must be a single key",
        f"an array of shape {key.shape}",
        TypeError,
    )
    return key


def _correlated(
    noise: PyTree, previous: PyTree, column: tuple[float, ...]
) -> tuple[PyTree, PyTree]:
    """One step of C^-1 z, for a triangular Toeplitz matrix with that first column.

    w_t = (z_t - c_1 w_(t-1) - c_2 w_(t-2) - ...) / c_0.
    """
    if len(column) == 1:
        return jax.tree.map(lambda z: z / column[0], noise), previous
    rest = np.asarray(column[1:])

    def solve(z: Array, before: Array) -> Array:
        earlier = jnp.tensordot(
            rest.astype(z.dtype), before, 1, precision=jax.lax.Precision.HIGHEST
        )
        return (z - earlier) / column[0]

    found = jax.tree.map(solve, noise, previous)
    move = lambda new, old: jnp.concatenate([new[None], old[:-1]])
    return found, jax.tree.map(move, found, previous)
