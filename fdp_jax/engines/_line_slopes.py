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
from .._internal._rotation import rotation
from ..losses import ComposedLoss, NormalMixtures, densities
from ._line_mesh import BLOCK, Terms, directed, terms_of
from ._line_terms import ROW, SIDE, frequencies
from ._lines import Line

_MANY = 16
"""Terms from which on a derivative does not keep all their nodes' rotations."""
_Term = tuple[NormalMixtures, Array, Array, Array, Array, Array]


def log_value(
    loss: ComposedLoss, epsilons: Float[Array, " e"], line: Line
) -> Float[Array, " e"]:
    """Log delta, or log(1 - delta), of the finite losses by the line.

    An estimate with its derivatives.
    """
    terms = terms_of(loss)
    if terms.pairs is not None:
        terms = terms._replace(pairs=directed(terms.pairs, line.sign))
    value, _ = blocked_sum(_share, line.blocks, (terms, epsilons), line)
    each = zip(terms.others, terms.other_counts, line.plans, strict=True)
    lead = sum((n * term.log_mgf(plan)[0] for term, n, plan in each), start=0.0)
    at = line.lead + (lead - stop_gradient(lead)) - line.shift * epsilons
    best = line.side * line.step / np.pi * value - jnp.exp(line.aliases - at)
    some = best > 0
    return jnp.where(some, at + jnp.log(jnp.where(some, best, 1.0)), -jnp.inf)


def _share(
    index: Array, args: tuple[Terms, Array], line: Line
) -> tuple[Float[Array, " e"], tuple[()]]:
    """A block's share of the sum."""
    terms, epsilons = args
    y = frequencies(line.step, index)
    first = lambda x: lax.dynamic_index_in_dim(x, index, -1, keepdims=False)
    # Zero, with the derivatives of what the table was made of.
    moved = jnp.zeros((2, BLOCK))
    if terms.pairs is not None:
        each = terms.pairs, terms.counts, line.lows, line.node_steps, line.kept
        one = lambda term: _log_power(term, line.shift, y)
        one = one if line.lows.size < _MANY else jax.checkpoint(one)
        logs = lax.map(one, (*each, first(line.turned)))
        moved = moved + jnp.sum(logs - stop_gradient(logs), axis=0)
    each = terms.others, terms.other_counts, line.plans, line.others_turned
    for term, count, plan, turned in zip(*each, strict=True):
        part = term.log_characteristic(plan, y[0], line.step)
        angle = part.imag
        if term.fastest_turn(plan) is not None:
            angle = angle + _whole_turns(first(turned), angle)
        angle = line.sign * (angle + y * term.center(plan))
        logs = count * jnp.stack([part.real, angle])
        moved = moved + logs - stop_gradient(logs)
    log_size, turn = moved
    amplitude, phase = lax.dynamic_slice(line.table, (ROW, BLOCK * index), (2, BLOCK))
    angle = phase + turn - y * (epsilons[:, None] - line.center)
    return jnp.sum(amplitude * jnp.exp(log_size) * jnp.cos(angle), axis=1), ()


def _whole_turns(before: Array, angle: Float[Array, " f"]) -> Float[Array, " f"]:
    """Turns that make angles continuous, as derivatives in the count need them."""
    last = jnp.concatenate([before[None], angle[:-1]])
    turns = jnp.cumsum(jnp.round((last - angle) / (2 * np.pi)))
    return stop_gradient(2 * np.pi * turns)


def _log_power(term: _Term, shift: Array, y: Float[Array, " f"]) -> Float[Array, "2 f"]:
    """Log modulus and angle of a term's part of M at some frequencies."""
    pair, count, low, step, kept, turned = term
    t = low + step * np.arange(float(kept.size))
    logs = densities(pair.frame(), t).logs
    tilt = (1 + shift) * logs[1] - shift * logs[0] - 0.5 * t * t + kept
    peak = stop_gradient(jnp.max(tilt))
    p, loss = jnp.exp(tilt - peak), logs[1] - logs[0]
    mean = stop_gradient(jnp.sum(p * loss) / jnp.sum(p))
    # e^(iy(loss - mean)), as products of an outer and an inner part.
    outer, inner = (
        lax.complex(1 + versine, sine)
        for x in (y[::SIDE], y[:SIDE] - y[0])
        for versine, sine in [rotation(x[:, None] * (loss - mean))]
    )
    phi = ((p * outer) @ inner.T).reshape(BLOCK)
    real, imag = lax.real(phi), lax.imag(phi)
    size = 0.5 * jnp.log(real * real + imag * imag + 1e-200) + peak
    size = size + jnp.log(step / np.sqrt(2 * np.pi))
    angle = jnp.arctan2(imag, real + 1e-100)
    angle = angle + _whole_turns(turned, angle) + y * mean
    return count * jnp.stack([size, angle])
