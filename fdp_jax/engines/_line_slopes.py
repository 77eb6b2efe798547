"""Derivatives of a line's profile in all that it depends on.

On a fixed line the sum's derivative in a term's log densities at its nodes is a sum
over the same frequencies, with weights that are known; from there on it is that of the
log densities in the parameters.  So a derivative takes one more pass over the table.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..losses import densities
from ._line_mesh import BLOCK, Terms
from ._line_queries import look_up
from ._lines import MOST, ROW, SIDE, Line, frequencies, line_nodes

_ALL = np.int32(MOST // BLOCK)


def _logs_at(terms: Terms, places: Float[Array, "m n"]) -> Float[Array, "m 2 n"]:
    """Log densities of all terms at their nodes."""
    one = lambda pair, t: densities(pair.frame(), t).logs
    return jax.vmap(one)(terms.pairs, places)


def _places(terms: Terms, line: Line) -> Float[Array, "m n"]:
    index = np.arange(float(line_nodes(terms.pairs.centers.shape[-1])))
    return line.lows[:, None] + line.node_steps[:, None] * index


def _rotations(line: Line, d: Array, i: Array) -> tuple[Array, Array]:
    """e^(iyd) of a block of frequencies, as products of an outer and an inner part."""
    y = frequencies(line.step, i)
    turns = y[::SIDE, None] * d, (y[:SIDE] - y[0])[:, None] * d
    outer, inner = (lax.complex(jnp.cos(x), jnp.sin(x)) for x in turns)
    return outer, inner


def _weights(
    line: Line, logs: Array, t: Array, kept: Array
) -> tuple[Array, Array, Array, Array]:
    """Normalized weights, losses less their mean, that, and log M(c), at nodes."""
    tilt = (1 + line.shift) * logs[1] - line.shift * logs[0] - 0.5 * t * t + kept
    peak = stop_gradient(jnp.max(tilt))
    p = jnp.exp(tilt - peak)
    mass = jnp.sum(p)
    loss = logs[1] - logs[0]
    mean = jnp.sum(p * loss) / mass
    log_m = peak + jnp.log(mass * (t[1] - t[0]) / np.sqrt(2 * np.pi))
    return p / mass, loss - mean, mean, log_m


def _log_terms(terms: Terms, line: Line) -> Float[Array, "2 f"]:
    """Sum of the counts times the complex logarithms of transforms."""
    places = _places(terms, line)

    def one(table: Array, term: tuple) -> tuple[Array, None]:
        count, t, logs, kept = term
        p, d, mean, log_m = _weights(line, logs, t, kept)

        def block(i: Array, table: Array) -> Array:
            outer, inner = _rotations(line, d, i)
            phi = ((p * outer) @ inner.T).reshape(BLOCK)
            real, imag = lax.real(phi), lax.imag(phi)
            y = frequencies(line.step, i)
            square = real * real + imag * imag + 1e-200
            angle = jnp.arctan2(imag, real + 1e-100) + y * mean
            new = count * jnp.stack([0.5 * jnp.log(square) + log_m, angle])
            new = new + lax.dynamic_slice(table, (0 * i, BLOCK * i), (2, BLOCK))
            return lax.dynamic_update_slice(table, new, (0 * i, BLOCK * i))

        return lax.fori_loop(ROW, _ALL, block, table), None

    table = jnp.zeros((2, MOST))
    each = terms.counts, places, _logs_at(terms, places), line.kept
    return lax.scan(one, table, each)[0]


@jax.custom_jvp
def _drift(terms: Terms, line: Line) -> Float[Array, "2 f"]:
    """Zero, with the derivatives of the logarithms of all terms of the sum."""
    return 0 * line.table


@_drift.defjvp
def _drift_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    terms, line = primals
    _, moved = jax.jvp(lambda x: _log_terms(x, line), (terms,), (tangents[0],))
    return _drift(terms, line), moved


Responses = tuple[Float[Array, "m e 2 n"], Float[Array, "m e"], Float[Array, " e"]]
"""Slopes of log delta (or of 1 - delta) in log densities, counts and thresholds."""


@jax.custom_jvp
def _responses(terms: Terms, epsilons: Float[Array, " e"], line: Line) -> Responses:
    """The slopes, over the blocks of the table that are in use."""
    return _responses_over(terms, epsilons, line, line.blocks)


@_responses.defjvp
def _responses_jvp(primals: tuple, tangents: tuple) -> tuple[Responses, Responses]:
    terms, epsilons, line = primals
    # Over all blocks, the others being zero: loops of a known length can be reversed.
    over_all = lambda terms, x: _responses_over(terms, x, line, _ALL)
    _, moved = jax.jvp(over_all, (terms, epsilons), tangents[:2])
    return _responses(terms, epsilons, line), moved


def _responses_over(
    terms: Terms, epsilons: Float[Array, " e"], line: Line, blocks: Any
) -> Responses:
    places = _places(terms, line)
    drift = _drift(terms, line)
    c, scale = line.shift, line.side * line.step / np.pi
    subtracted = jnp.exp(line.aliases - line.lead + c * epsilons)

    def terms_at(i: Array) -> tuple[Array, Array]:
        start = (0 * i, BLOCK * i)
        amplitude, phase = lax.dynamic_slice(line.table, start, (2, BLOCK))
        moved = lax.dynamic_slice(drift, start, (2, BLOCK))
        y = frequencies(line.step, i)
        angle = phase + moved[1] - y * (epsilons[:, None] - line.center)
        size = amplitude * jnp.exp(moved[0])
        return y, size * lax.complex(jnp.cos(angle), jnp.sin(angle))

    def value(i: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        y, at = terms_at(i)
        slope = c * lax.real(at) - y * lax.imag(at)
        return total[0] + jnp.sum(lax.real(at), 1), total[1] + jnp.sum(slope, 1)

    none = jnp.zeros_like(epsilons)
    total, slope = lax.fori_loop(ROW, blocks, value, (none, none))
    best = scale * total - subtracted
    inverse = scale / jnp.where(best == 0, 1.0, best)

    def one(term: tuple) -> tuple[Array, Array]:
        count, t, logs, kept = term
        p, d, mean, log_m = _weights(line, logs, t, kept)

        def block(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            outer, inner = _rotations(line, d, i)
            phi = ((p * outer) @ inner.T).reshape(BLOCK)
            y, at = terms_at(i)
            real, imag = lax.real(phi), lax.imag(phi)
            log_phi = 0.5 * jnp.log(real * real + imag * imag + 1e-200)
            angle = jnp.arctan2(imag, real + 1e-100) + y * mean
            power = lax.complex(log_phi + log_m, angle)
            z = lax.complex(c + 0 * y, y)
            share = at / (phi + 1e-100)
            both = jnp.stack([-share * z, share * (1 + z)], axis=1)
            both = both.reshape(-1, 2, SIDE, SIDE) @ inner
            felt = jnp.sum(lax.real(both * outer), axis=2)
            return state[0] + felt, state[1] + jnp.sum(lax.real(at * power), axis=1)

        none = jnp.zeros((epsilons.size, 2, places.shape[1])), jnp.zeros_like(epsilons)
        to_logs, to_count = lax.fori_loop(ROW, blocks, block, none)
        return count * inverse[:, None, None] * to_logs * p, inverse * to_count

    each = terms.counts, places, _logs_at(terms, places), line.kept
    to_logs, to_counts = lax.map(one, each)
    return to_logs, to_counts, -inverse * slope


@functools.partial(jax.custom_jvp)
def log_value(
    terms: Terms, epsilons: Float[Array, " e"], line: Line
) -> Float[Array, " e"]:
    """Log delta, or log(1 - delta), by the line: an estimate with its derivatives."""
    value, _ = look_up(line, epsilons)
    at = line.lead - line.shift * epsilons
    best = line.side * line.step / np.pi * value - jnp.exp(line.aliases - at)
    some = best > 0
    return jnp.where(some, at + jnp.log(jnp.where(some, best, 1.0)), -jnp.inf)


@log_value.defjvp
def _log_value_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    terms, epsilons, line = primals
    moved, by, _ = tangents
    to_logs, to_counts, to_epsilons = _responses(terms, epsilons, line)
    places = _places(terms, line)
    _, logs = jax.jvp(lambda x: _logs_at(x, places), (terms,), (moved,))
    total = jnp.einsum("meln,mln->e", to_logs, logs)
    total = total + jnp.einsum("me,m->e", to_counts, moved.counts)
    return log_value(terms, epsilons, line), total + to_epsilons * by
