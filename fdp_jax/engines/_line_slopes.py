"""A line's profile with its derivatives in all that it depends on.

The table of frequencies is fixed: of its logarithms, sums over the terms, only the
derivatives are taken, by the same sums over the same nodes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._blocked_sum import blocked_sum
from ..losses import NormalMixtures, densities
from ._line_mesh import BLOCK, Terms
from ._lines import ROW, SIDE, Line, frequencies, line_nodes

_MANY = 16
"""Terms from which on a derivative does not keep all their nodes' rotations."""
_Term = tuple[NormalMixtures, Array, Array, Array, Array, Array]


def log_value(
    terms: Terms, epsilons: Float[Array, " e"], line: Line
) -> Float[Array, " e"]:
    """Log delta, or log(1 - delta), by the line: an estimate with its derivatives."""
    value, _ = blocked_sum(_share, line.blocks, (terms, epsilons), line)
    at = line.lead - line.shift * epsilons
    best = line.side * line.step / np.pi * value - jnp.exp(line.aliases - at)
    some = best > 0
    return jnp.where(some, at + jnp.log(jnp.where(some, best, 1.0)), -jnp.inf)


def _share(
    index: Array, args: tuple[Terms, Array], line: Line
) -> tuple[Float[Array, " e"], tuple[()]]:
    """A block's share of the sum."""
    terms, epsilons = args
    y = frequencies(line.step, index)
    turned = lax.dynamic_index_in_dim(line.turned, index, 1, keepdims=False)
    each = terms.pairs, terms.counts, line.lows, line.node_steps, line.kept, turned
    one = lambda term: _log_power(term, line.shift, y)
    one = one if line.lows.size < _MANY else jax.checkpoint(one)
    logs = lax.map(one, each)
    # Zero, with the derivatives of what the table was made of.
    log_size, turn = jnp.sum(logs - stop_gradient(logs), axis=0)
    amplitude, phase = lax.dynamic_slice(line.table, (ROW, BLOCK * index), (2, BLOCK))
    angle = phase + turn - y * (epsilons[:, None] - line.center)
    return jnp.sum(amplitude * jnp.exp(log_size) * jnp.cos(angle), axis=1), ()


def _log_power(term: _Term, shift: Array, y: Float[Array, " f"]) -> Float[Array, "2 f"]:
    """Log modulus and angle of a term's part of M at some frequencies."""
    pair, count, low, step, kept, turned = term
    t = low + step * np.arange(float(line_nodes(pair.centers.size)))
    logs = densities(pair.frame(), t).logs
    tilt = (1 + shift) * logs[1] - shift * logs[0] - 0.5 * t * t + kept
    peak = stop_gradient(jnp.max(tilt))
    p, loss = jnp.exp(tilt - peak), logs[1] - logs[0]
    mean = stop_gradient(jnp.sum(p * loss) / jnp.sum(p))
    # e^(iy(loss - mean)), as products of an outer and an inner part.
    turns = (x[:, None] * (loss - mean) for x in (y[::SIDE], y[:SIDE] - y[0]))
    outer, inner = (lax.complex(jnp.cos(x), jnp.sin(x)) for x in turns)
    phi = ((p * outer) @ inner.T).reshape(BLOCK)
    real, imag = lax.real(phi), lax.imag(phi)
    size = 0.5 * jnp.log(real * real + imag * imag + 1e-200) + peak
    size = size + jnp.log(step / np.sqrt(2 * np.pi))
    # The derivative in the count needs the continuous angle.
    angle = jnp.arctan2(imag, real + 1e-100)
    before = jnp.concatenate([turned[None], angle[:-1]])
    turns = jnp.cumsum(jnp.round((before - angle) / (2 * np.pi)))
    return count * jnp.stack([size, angle + 2 * np.pi * turns + y * mean])
