"""Compositions of mechanisms with so few outputs that all of them can be listed."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._arithmetic import ULP
from .._internal._concrete import ahead_of_time, evaluates_at_once, holds_anywhere
from .._internal._precision import in_float64
from ._atomic import FEW_OUTPUTS, MOST_OUTPUTS, AtomicLoss
from ._base import AbstractLoss
from ._composed import ComposedLoss
from ._two_point import TwoPointLoss

_LENGTHS = 64, FEW_OUTPUTS
"""Lengths of lists, so that two programs answer for all of them."""


def listed_outputs(composed: ComposedLoss) -> ComposedLoss | None:
    """One release with a list of all outputs, if that is short, of the same loss.

    Args:
        composed: Any loss whose counts are known.
    """
    counts = [float(count) for count in composed.counts]
    pairs = list(zip(composed.terms, counts, strict=True))
    size = math.prod(_size(*pair) for pair in pairs) + 2
    if size > FEW_OUTPUTS or not all(count.is_integer() for count in counts):
        return None
    length = min(x for x in _LENGTHS if x >= size)
    logs = jnp.zeros((3, 1))
    # The union bound of infinite losses may be too large by 1e-12 (`calculated_ends`).
    mass_error, loss_error = jnp.asarray(1e-12), jnp.zeros(())
    for term, count in pairs:
        factor, repeated = _outputs(term, int(count))
        for _ in range(repeated):
            logs = (logs[:, :, None] + factor[:, None, :]).reshape(3, -1)
        # Each mass is a product of so many, whose logarithms are rounded and added.
        sizes = jnp.max(jnp.where(jnp.isfinite(factor), jnp.abs(factor), 0), axis=1)
        masses, losses = _errors(term)
        mass_error += count * masses + 16 * ULP * (count + repeated * jnp.max(sizes))
        loss_error += count * losses + 16 * ULP * repeated * sizes[0]
    # What only one of the pair gives has no finite loss; the rest is given by none.
    upper, lower = (composed.log_infinite_mass(jnp.asarray(s)) for s in (1.0, -1.0))
    rest = jnp.full((3, length - int(size) + 2), -jnp.inf)
    rest = rest.at[0].set(0).at[1, 0].set(lower).at[2, 1].set(upper)
    loss, log_p, log_q = jnp.concatenate([logs, rest], axis=1)
    term = AtomicLoss(
        log_p,
        log_q,
        symmetric=composed.symmetric,
        loss=loss,
        mass_error=stop_gradient(mass_error),
        loss_error=stop_gradient(loss_error),
    )
    once = (jnp.ones(()),)
    return dataclasses.replace(
        composed, terms=(term,), counts=once, single=True, ends=None
    )


def _size(term: AbstractLoss, count: float) -> float:
    """The number of outputs of so many releases, not counting infinite losses."""
    if isinstance(term, TwoPointLoss):
        return count + 1
    if isinstance(term, AtomicLoss) and term.missing is None and term.lost == 0:
        return float(term.log_p.size) ** min(count, 64)
    return math.inf


def _errors(term: Any) -> tuple[Float[ArrayLike, ""], Float[ArrayLike, ""]]:
    """Errors of a release's masses and losses."""
    error = term.loss_error
    return term.mass_error, 2 * term.mass_error if error is None else error


def _outputs(term: Any, count: int) -> tuple[Float[Array, "3 k"], int]:
    """Losses, and logarithms of masses under P and Q; and the number of such factors.

    Which of the releases of a two-point loss gave which loss does not matter.
    """
    atoms = term.atoms()
    if not isinstance(term, TwoPointLoss):
        log_q = jnp.where(jnp.isfinite(atoms.log_mass), term.log_q, -jnp.inf)
        return jnp.stack([atoms.loss, atoms.log_mass, log_q]), count
    ups = np.arange(count + 1.0)
    downs = ups[::-1]
    ways = np.asarray([math.log(math.comb(count, k)) for k in range(count + 1)])
    down, up = atoms.log_mass[:2]
    log_p, log_q = (ways + ups * x + downs * y for x, y in ((up, down), (down, up)))
    return jnp.stack([(ups - downs) * atoms.loss[1], log_p, log_q]), 1


@ahead_of_time
def short_lists(composed: ComposedLoss) -> ComposedLoss:
    """The loss with long lists of outputs cut to those with mass, where these are few.

    Lists are as long as their parameters may ever need; transforms take short ones.
    """
    lists = [x for x in composed.terms if isinstance(x, AtomicLoss)]
    long = any(x.log_p.size > MOST_OUTPUTS for x in lists)
    if not (long and evaluates_at_once()):
        return composed
    pairs = zip(composed.terms, _trimmed(composed), strict=True)
    short = lambda few: few is not None and not holds_anywhere(~few[1])
    terms = tuple(few[0] if short(few) else term for term, few in pairs)
    return dataclasses.replace(composed, terms=terms)


@in_float64(cast_out=False)
def _trimmed(composed: ComposedLoss) -> list[Any]:
    return [term.trimmed(MOST_OUTPUTS) for term in composed.terms]
