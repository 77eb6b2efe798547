r"""Closed forms for jumps of a few sizes: a sum over the counts of half of them.

Given those counts the loss is c + b_j, with b_0 <= b_1 <= ... the losses of the counts
of the other sizes.  With m the least j above a threshold, s > 0 the loss that the
threshold is exceeded by there, and sums over j under Q,

    T(m) = sum_{j >= m} q_j,   C(m) = sum_{j >= m} q_j e^{-(b_j - b_m)},   B = T - C,

the part of delta(eps) is e^{-s} B(m) + (1 - e^{-s}) T(m), that of e^eps P(X > eps) is
e^{-s} C(m).  B and C are found by recursion, from the end on: all terms are positive,
so no digits are lost.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.lax import associative_scan, stop_gradient
from jaxtyping import Array, Float

from ..._internal._counts import log_poisson
from ..._internal._interval import without
from ..._internal._logs import log_add
from ..._internal._special import safe_log
from ..._internal._tolerances import SUPREMUM
from .._closed_form import AbstractClosedForm
from .._compound_poisson import CompoundPoissonLoss
from ._listing import Counts, Listing


class ListedPoissonLoss(CompoundPoissonLoss):
    """A compound Poisson loss with a list of its likely counts, for closed forms.

    Where counts that are not listed could matter they are taken for infinite losses.
    """

    listing: Listing
    prepares_long: ClassVar[bool] = True

    def rates(self) -> Float[Array, "2 k"]:
        """Under P and under Q, in the order of the list."""
        rates = jnp.stack([self.steps.rate_without, self.steps.rate_with])
        return (self.counts * rates)[:, self.listing.order]

    def sizes(self) -> Float[Array, " k"]:
        """Sizes of the jumps, in the same order."""
        return self._each(lambda step: step.jump())[self.listing.order]

    def changes(self) -> Float[Array, " k"]:
        """Changes of the rates from P to Q, in the same order."""
        found = self.counts * self._each(lambda step: step.gap())
        return found[self.listing.order]

    def log_infinite_masses(self):
        parts = self.listing.rows, self.listing.columns
        missing = jnp.logaddexp(*(part.log_missing for part in parts))
        missing = missing.astype(self.counts.dtype)
        return missing, missing

    def log_truncated_masses(self):
        return self.log_infinite_masses()

    def has_closed_form(self, kinds, *, single):
        del single
        return kinds == 1

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,), (count,) = terms, counts
        return ListedForm(tables(term, count, sign))


class Tables(eqx.Module):
    """A list of counts, and sums over those of the other sizes."""

    weight: Float[Array, " n"]
    """Under Q; 0 for entries that are none."""
    level: Float[Array, " n"]
    """The loss without the other sizes."""
    losses: Float[Array, " m"]
    """b, with what is no entry at the end."""
    below: Float[Array, " m+1"]
    """Q(j < m)."""
    above: Float[Array, " m+1"]
    """T."""
    tilted: Float[Array, " m+1"]
    """C."""
    excess: Float[Array, " m+1"]
    """B."""
    log_missing: Float[Array, ""]
    """Log of the mass under Q that is not listed."""
    rounding: Float[Array, ""]
    """Absolute rounding of the losses."""
    mass_error: Float[Array, ""]
    """Relative error of sums: rates are rounded, which the distance of a count from its
    mean multiplies, and so are the factors of the recursion, of which it takes
    products."""
    largest: Float[Array, ""]
    """The largest loss that is listed."""
    supremum: Float[Array, ""]
    """The largest of all losses."""


def tables(
    loss: ListedPoissonLoss, count: Float[Array, ""], sign: Float[Array, ""]
) -> Tables:
    """The tables of `count` releases, for one direction."""
    rates, sizes, listing = count * loss.rates(), loss.sizes(), loss.listing
    drift = -count * jnp.sum(loss.changes())
    least, largest = loss.loss_range()
    q = jnp.where(sign > 0, rates[1], rates[0])
    sizes, drift = (jnp.where(sign > 0, x, -x) for x in (sizes, drift))
    middle = listing.rows.values.shape[1]
    rows = _Part.of(listing.rows, q[:middle], sizes[:middle], sign)
    columns = _Part.of(listing.columns, q[middle:], sizes[middle:], sign)
    # In order but for rounding, of which the sizes that the order is by may have more.
    losses = lax.cummax(columns.losses)
    misplaced = jnp.max(losses - columns.losses)
    spacings = jnp.diff(losses, append=losses[-1])
    if sizes.size == middle + 1:  # without the rounding of multiples
        spacings = jnp.where(spacings > 0, jnp.abs(sizes[-1]), 0)
    masses = columns.masses
    above = jnp.append(jnp.cumsum(masses[::-1])[::-1], 0.0)
    sums = jnp.stack([masses, -jnp.expm1(-spacings) * above[1:]])
    tilted, excess = _decaying(jnp.exp(-spacings), sums)
    entries = rows.masses.size + losses.size
    unit = 2 * jnp.finfo(q.dtype).eps
    rounding = unit * (4 + sizes.size) * (rows.size + columns.size + jnp.abs(drift))
    return Tables(
        rows.masses,
        rows.losses + drift,
        losses,
        jnp.append(0.0, jnp.cumsum(masses)),
        above,
        jnp.append(tilted, 0.0),
        jnp.append(excess, 0.0),
        loss.log_infinite_masses()[0],
        stop_gradient(rounding + misplaced),
        stop_gradient(2 * unit * (entries + rows.span + columns.span)),
        stop_gradient(jnp.max(rows.losses) + losses[-1] + drift),
        stop_gradient(count * jnp.where(sign > 0, largest, -least)),
    )


class _Part(eqx.Module):
    """The counts of a group of sizes, by rising losses."""

    masses: Float[Array, " n"]
    losses: Float[Array, " n"]
    size: Float[Array, ""]
    """Size of the parts of losses."""
    span: Float[Array, ""]
    """How far the counts of a size are apart, added up."""

    @classmethod
    def of(
        cls,
        counts: Counts,
        rates: Float[Array, " k"],
        sizes: Float[Array, " k"],
        sign: Float[Array, ""],
    ) -> "_Part":
        turned = lambda x: jnp.where(sign > 0, x, x[..., ::-1])
        places, used = map(turned, (jnp.asarray(counts.places), counts.used))
        values = jnp.asarray(counts.values, rates.dtype)
        losses = values * sizes
        parts = jnp.stack([_log_mass(values, rates), losses, jnp.abs(losses)], axis=-1)
        total = jnp.zeros((used.size, 3), rates.dtype)
        for j in range(sizes.size):
            total += parts[:, j].at[places[j]].get(mode="promise_in_bounds")
        log_masses, losses, sizes = total.T
        masses = jnp.where(used, jnp.exp(log_masses), 0.0)
        span = jnp.sum(values[-1:] - values[:1])
        return cls(masses, losses, jnp.max(sizes), span)


def _log_mass(counts: Float[Array, "..."], rates: Float[Array, "..."]) -> Array:
    some = rates > 0
    none = jnp.where(counts > 0, -jnp.inf, 0.0)
    return jnp.where(some, log_poisson(counts, jnp.where(some, rates, 1.0)), none)


def _decaying(factors: Float[Array, " m"], terms: Float[Array, "2 m"]) -> Array:
    """The sums y_m = terms_m + factors_m y_{m+1}, from the end on."""

    def join(later: tuple[Array, Array], now: tuple[Array, Array]) -> tuple:
        return later[0] * now[0], now[0] * later[1] + now[1]

    both = jnp.broadcast_to(factors, terms.shape), terms
    return associative_scan(join, both, reverse=True, axis=1)[1]


class Sums(eqx.Module):
    """What a threshold divides the outputs into; logs."""

    delta: Float[Array, "..."]
    """delta(eps), what is not listed included."""
    rest: Float[Array, "..."]
    """1 - delta(eps): the sum of min(q, e^eps p)."""
    alpha: Float[Array, "..."]
    """P(X > eps)."""
    power: Float[Array, "..."]
    """Q(Y > eps), all that is not listed included."""


def sums(t: Tables, epsilon: Float[Array, "..."]) -> Sums:
    """At every threshold in turn: they share the tables."""
    one = lambda e: jnp.stack([part @ t.weight for part in _parts(t, e)])
    flat = epsilon.ravel()
    found = one(flat[0])[None] if flat.size == 1 else lax.map(one, flat)
    logs = safe_log(found.T.reshape(-1, *epsilon.shape))
    end = t.supremum * (1 + SUPREMUM)  # all of it, whatever the drift's rounding
    missing = jnp.where(epsilon >= end, -jnp.inf, t.log_missing)
    delta, rest, tilted, power = logs
    return Sums(
        jnp.minimum(log_add(delta, missing), 0),
        jnp.minimum(rest, 0),
        tilted - epsilon,
        jnp.logaddexp(power, t.log_missing),
    )


def _parts(t: Tables, epsilon: Float[Array, ""]) -> tuple[Array, ...]:
    """The parts of every row, with the least index m of a larger loss, and s."""
    gap = epsilon - t.level
    index = jnp.searchsorted(t.losses, gap, side="right")
    inside = index < t.losses.size
    over = jnp.where(inside, t.losses[jnp.where(inside, index, 0)] - gap, 0.0)
    gone, above = -jnp.expm1(-over), t.above[index]
    tilted = (1 - gone) * t.tilted[index]
    delta = (1 - gone) * t.excess[index] + gone * above
    return delta, t.below[index] + tilted, tilted, above


def loss_error(t: Tables, epsilon: Float[Array, "..."]) -> Float[Array, "..."]:
    """How far the rounding of losses may move a threshold."""
    unit = 8 * jnp.finfo(epsilon.dtype).eps
    rounding = t.rounding + unit * (1 + jnp.abs(epsilon))
    beyond = epsilon >= t.largest + 2 * rounding
    return stop_gradient(jnp.where(beyond, 0.0, rounding))


class ListedForm(AbstractClosedForm):
    """Jumps of a few sizes with listed counts, in one direction."""

    tables: Tables

    def logs(self, epsilon):
        found = sums(self.tables, epsilon)
        return found.delta, found.rest, found.alpha

    def log_truncated(self):
        return stop_gradient(self.tables.log_missing)

    def mass_error(self):
        return self.tables.mass_error

    def loss_error(self, epsilon):
        return loss_error(self.tables, epsilon)

    def log_delta_within(self, epsilon, error, value):
        # The slope of delta is at most Q(Y > eps).
        left, value = stop_gradient((epsilon - error, value))
        power = sums(self.tables, left).power
        change = stop_gradient(power + safe_log(error))
        return jnp.minimum(jnp.logaddexp(value, change), 0), without(value, change)
