r"""Closed forms for jumps of a few sizes: a sum over the counts of all sizes but one.

Given those counts the loss is c + k x, k the count of the remaining size (or what is
left to its largest one, so that x > 0).  With m the least k above a threshold, s > 0
the loss that the threshold is exceeded by there, and sums over k under Q,

    T(m) = sum_{k >= m} q_k,   C(m) = sum_{k >= m} q_k e^{-(k - m) x},   B = T - C,

the part of delta(eps) is e^{-s} B(m) + (1 - e^{-s}) T(m), that of e^eps P(X > eps) is
e^{-s} C(m).  B and C are found by recursion, from the end on: all terms are positive,
so no digits are lost.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.lax import associative_scan, stop_gradient
from jaxtyping import Array, Float

from .._internal._poisson import log_poisson
from .._internal._special import safe_log
from ..losses import ListedPoissonLoss


class Tables(eqx.Module):
    """A list of counts, and sums over those of the remaining size."""

    weight: Float[Array, " n"]
    """Under Q; 0 for entries that are none."""
    level: Float[Array, " n"]
    """The loss where the remaining count is the first one."""
    spacing: Float[Array, ""]
    below: Float[Array, " m+1"]
    """Q(k < m)."""
    above: Float[Array, " m+1"]
    """T."""
    tilted: Float[Array, " m+1"]
    """C."""
    excess: Float[Array, " m+1"]
    """B."""
    log_missing: Float[Array, ""]
    """Of the mass under Q that is not listed."""
    size: Float[Array, ""]
    """Of the losses and their parts, for rounding errors."""
    mass_error: Float[Array, ""]
    """Relative error of sums: rates are rounded, which the distance of a count from its
    mean multiplies, and so is e^-x, of which the recursion takes powers."""
    largest: Float[Array, ""]
    """The largest loss that is listed."""
    supremum: Float[Array, ""]
    """That of all losses."""


def tables(
    loss: ListedPoissonLoss, count: Float[Array, ""], sign: Float[Array, ""]
) -> Tables:
    """Of `count` releases, for one direction."""
    rates, sizes, listing = count * loss.rates(), loss.sizes(), loss.listing
    drift = -count * jnp.sum(loss.changes())
    least, largest = loss.loss_range()
    q = jnp.where(sign > 0, rates[1], rates[0])
    sizes, drift = (jnp.where(sign > 0, x, -x) for x in (sizes, drift))
    counts = jnp.asarray(listing.counts).astype(q.dtype)
    logs = jnp.sum(_log_mass(counts, q[:-1]), axis=1)
    used = jnp.asarray(listing.used)
    # The last size, in the order of rising losses.
    step = sizes[-1]
    column = jnp.arange(listing.columns)
    last = listing.first + listing.width - 1
    number = jnp.where(step > 0, listing.first + column, last - column)
    masses = jnp.exp(_log_mass(jnp.maximum(number, 0).astype(q.dtype), q[-1]))
    masses = jnp.where(column < listing.width, masses, 0.0)
    spacing = jnp.abs(step)
    level = counts @ sizes[:-1] + drift + number[0] * step
    parts = counts @ jnp.abs(sizes[:-1]) + last * spacing + jnp.abs(drift)
    fewest = jnp.min(jnp.where(used[:, None], counts, jnp.inf), axis=0)
    span = jnp.asarray(listing.width) + jnp.sum(jnp.max(counts, axis=0) - fewest)
    highest = jnp.where(used, level, -jnp.inf) + (listing.width - 1) * spacing
    above = jnp.append(jnp.cumsum(masses[::-1])[::-1], 0.0)
    sums = jnp.stack([masses, -jnp.expm1(-spacing) * above[1:]])
    tilted, excess = _decaying(jnp.exp(-spacing), sums)
    return Tables(
        jnp.where(used, jnp.exp(logs), 0.0),
        level,
        spacing,
        jnp.append(0.0, jnp.cumsum(masses)),
        above,
        jnp.append(tilted, 0.0),
        jnp.append(excess, 0.0),
        loss.log_infinite_masses()[0],
        stop_gradient(jnp.max(parts)),
        stop_gradient(float(4 * jnp.finfo(q.dtype).eps) * span),
        stop_gradient(jnp.max(highest)),
        stop_gradient(count * jnp.where(sign > 0, largest, -least)),
    )


def _log_mass(counts: Float[Array, "..."], rates: Float[Array, "..."]) -> Array:
    some = rates > 0
    none = jnp.where(counts > 0, -jnp.inf, 0.0)
    return jnp.where(some, log_poisson(counts, jnp.where(some, rates, 1.0)), none)


def _decaying(factor: Float[Array, ""], terms: Float[Array, "2 m"]) -> Array:
    """The sums y_m = terms_m + factor y_{m+1}, from the end on."""

    def join(later: tuple[Array, Array], now: tuple[Array, Array]) -> tuple:
        return later[0] * now[0], now[0] * later[1] + now[1]

    factors = jnp.full_like(terms, factor)
    return associative_scan(join, (factors, terms), reverse=True, axis=1)[1]


def _each(
    part: Callable[[Tables, Array], Array], t: Tables, epsilon: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Of every threshold the sum over the rows, in turn: they share the tables."""
    one = lambda e: part(t, e) @ t.weight
    if epsilon.size == 1:
        return one(epsilon.ravel()[0]).reshape(epsilon.shape)
    return lax.map(one, epsilon.ravel()).reshape(epsilon.shape)


def _place(t: Tables, epsilon: Float[Array, ""]) -> tuple[Array, Array]:
    """The index m of a threshold in the table of every row, and s."""
    gap = epsilon - t.level
    spacing = jnp.where(t.spacing > 0, t.spacing, 1.0)
    most = t.above.size - 1
    index = jnp.clip(jnp.floor(stop_gradient(gap / spacing)) + 1, 0, most)
    over = jnp.where(index < most, index * t.spacing - gap, 0.0)
    return index.astype(int), over


def _delta(t: Tables, epsilon: Float[Array, ""]) -> Float[Array, " n"]:
    index, over = _place(t, epsilon)
    gone = -jnp.expm1(-over)
    return (1 - gone) * t.excess[index] + gone * t.above[index]


def _rest(t: Tables, epsilon: Float[Array, ""]) -> Float[Array, " n"]:
    index, over = _place(t, epsilon)
    return t.below[index] + jnp.exp(-over) * t.tilted[index]


def _tilted(t: Tables, epsilon: Float[Array, ""]) -> Float[Array, " n"]:
    index, over = _place(t, epsilon)
    return jnp.exp(-over) * t.tilted[index]


def _above(t: Tables, epsilon: Float[Array, ""]) -> Float[Array, " n"]:
    return t.above[_place(t, epsilon)[0]]


def log_delta(t: Tables, epsilon: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log delta(eps), what is not listed included."""
    finite = safe_log(_each(_delta, t, epsilon))
    end = t.supremum * (1 + 4e-15)  # all of it, whatever the drift's rounding
    missing = jnp.where(epsilon >= end, -jnp.inf, t.log_missing)
    none, never = jnp.isneginf(finite), jnp.isneginf(missing)
    both = jnp.logaddexp(jnp.where(none, 0, finite), jnp.where(never, 0, missing))
    total = jnp.where(none, missing, jnp.where(never, finite, both))
    return jnp.minimum(total, 0)


def log_rest(t: Tables, epsilon: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 - delta(eps)): the sum of min(q, e^eps p)."""
    return jnp.minimum(safe_log(_each(_rest, t, epsilon)), 0)


def log_alpha(t: Tables, epsilon: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log P(X > eps)."""
    return safe_log(_each(_tilted, t, epsilon)) - epsilon


def log_power(t: Tables, epsilon: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log Q(Y > eps), all that is not listed included."""
    return jnp.logaddexp(safe_log(_each(_above, t, epsilon)), t.log_missing)


def loss_error(t: Tables, epsilon: Float[Array, "..."]) -> Float[Array, "..."]:
    """How far the rounding of losses may move a threshold."""
    unit = 8 * jnp.finfo(epsilon.dtype).eps
    rounding = unit * (1 + t.size + jnp.abs(epsilon))
    beyond = epsilon >= t.largest + 2 * rounding
    return stop_gradient(jnp.where(beyond, 0.0, rounding))
