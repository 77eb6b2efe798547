"""Random choices of records, of which no probability is larger than stated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Int

from . import _checks
from ._concrete import is_traced

_WORDS = 2.0**32
_SECOND = 0x7FFF_FFFE
"""What is folded in for the second half of numbers with 64 bits."""


def with_prob(key: Array, prob: Any, size: int) -> Bool[Array, " n"]:
    """Independent events of one probability, rounded down to a multiple of 2^-64.

    Uniform numbers in float32, which programs without 64-bit numbers draw, would round
    it to a multiple of 2^-23, up or down.

    Raises:
        ValueError: If it is known and rounds to zero without being zero.
    """
    traced = is_traced(prob)
    number = prob if traced else np.asarray(prob, np.float64)
    _checks.require(
        traced or not 0 < number < _WORDS**-2,
        "prob must be 0 or at least 2^-64 for records to be drawn",
        number,
    )
    library, most = (jnp, _WORDS - 256) if traced else (np, _WORDS - 1)
    # What is left of the first word is exact.
    high, certain = library.floor(number * _WORDS), number >= 1
    low = library.floor((number * _WORDS - high) * _WORDS)
    words = [library.minimum(x, most).astype(np.uint32) for x in (high, low)]
    first = random.bits(key, (size,), jnp.uint32)
    second = random.bits(at(key, _SECOND), (size,), jnp.uint32)
    tied = (first == words[0]) & (second < words[1])
    return (first < words[0]) | tied | certain


def subset(key: Array, size: Any, of: int) -> Bool[Array, " n"]:
    """A uniformly random set of so many."""
    return random.permutation(key, of) < size


def subset_of(key: Array, chosen: Bool[Array, " n"], most: Any) -> Bool[Array, " n"]:
    """A uniformly random part of a set, of no more than so many."""
    order = random.permutation(key, chosen.size)
    rank = jnp.cumsum(chosen[order]) - 1
    return chosen & (jnp.zeros_like(rank).at[order].set(rank) < most)


def one_of(key: Array, number: Any, size: int) -> Int[Array, " n"]:
    """Independent uniform choices of one of so many."""
    return random.randint(key, (size,), 0, jnp.asarray(number, jnp.int32))


def at(key: Array, step: Any) -> Array:
    """The key of a step."""
    return jax.random.fold_in(key, jnp.asarray(step, jnp.uint32))
