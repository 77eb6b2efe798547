r"""The factors of a composition on a grid: single losses, and mixtures of compositions.

A revealed mixture is a polynomial in the transforms z_j of its losses' masses,
M = sum_i u_i prod_j z_j^{n_ij}, with u_i in proportion to the probability times the
tilted masses; so is the whole composition F.  Its coefficients are not negative, and
every one belongs to one plain composition: one outcome of all the revealed choices.

Upper bound.  Losses that dominate make every one of these compositions dominate, and
profiles of revealed mixtures add.  So do the masses taken for infinite.

Lower bound.  For each of the plain compositions, exchanging its factors one at a time
costs the sum over its factors of E[s(eps - Y)], Y being all the others (`_grid.py`).
Summed with the weights: for loss j, whose triangles are s_j, the transform of s_j times

    dF / dz_j = sum over the coefficients of n_j (coefficient) prod z^n / z_j,

the generating function of "all factors but one of kind j".  The window of Hoeffding's
inequality grows with the number of factors: that of the longest composition serves.

Chernoff bounds.  E[e^{cY}] is the same polynomial in the losses' moments.
"""

from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Complex, Float

from .._internal._special import safe_log
from ..losses import (
    AbstractLoss,
    Alternatives,
    ComposedLoss,
    RevealedLoss,
)
from ._discretize import Discrete, Grid, discretize
from ._factor import Factor, Single
from ._grid_jumps import factor_of_jumps


def factors_of(loss: ComposedLoss, grid: Grid) -> list[tuple[Factor, Array]]:
    """Every term with its count, a real number from here on."""
    supply = iter(zip(grid.first, grid.moments, grid.log_scales, strict=True))
    total = sum(
        count * _mean_releases(term)
        for term, count in zip(loss.terms, grid.counts, strict=True)
    )
    return [
        (_factor(term, grid, supply, jnp.asarray(total)), count.astype(float))
        for term, count in zip(loss.terms, grid.counts, strict=True)
    ]


def _mean_releases(term: AbstractLoss) -> Array:
    if not isinstance(term, RevealedLoss):
        return jnp.ones(())
    each = [jnp.stack([_mean_releases(t) for t in g.terms]) for g in term.groups]
    return stop_gradient(jnp.sum(term.probs() * term.sums(each)))


def _factor(
    term: AbstractLoss, grid: Grid, supply: Iterator, total: Array | None
) -> Factor:
    """One term; `total` is about the number of all releases, if it stands outermost."""
    if isinstance(term, RevealedLoss):
        return _mixture(term, grid, supply, total)
    first, moments, log_scale = next(supply)
    jumps = term.compound_jumps()
    if jumps is not None:
        return factor_of_jumps(jumps, grid, moments)
    part = discretize(term, grid, first, log_scale)
    mass = jnp.sum(part.tilted)
    one = jnp.ones_like(mass)
    # With the last factor on the grid, no error is left at grid points.
    inexact = one
    if total is not None:
        inexact = jnp.maximum(total - 1, 0) / jnp.maximum(total, 1)
    return Factor(
        transform=_nonzero(jnp.fft.rfft(part.tilted / mass)),
        offset=first,
        log_mass=part.log_scale + jnp.log(mass),
        singles=[Single(part, stop_gradient(mass), one, inexact, 0 * one)],
        noise=one,
        powers=one,
        most=one,
        log_moments=moments,
        log_grown=moments + jnp.log1p(_moment_growth(grid, part, moments)),
        top=part.top,
        besides=jnp.zeros_like(mass),
        moved=part.moved,
    )


def _nonzero(transform: Complex[Array, " f"]) -> Complex[Array, " f"]:
    """Its logarithm is needed, also where it is lost in rounding."""
    return jnp.where(jnp.abs(transform) < 1e-150, 1e-150, transform)


def _mixture(
    term: RevealedLoss, grid: Grid, supply: Iterator, total: Array | None
) -> Factor:
    inner = [[_factor(t, grid, supply, None) for t in g.terms] for g in term.groups]

    def stacked(value: Callable[[Factor], Array]) -> list[Array]:
        return [jnp.stack([value(x) for x in factors]) for factors in inner]

    log_mass, shares = term.weigh(term.sums(stacked(lambda x: x.log_mass)))
    others = None if total is None else total - _mean_releases(term)
    transform = noise = jnp.zeros(())
    singles, start = [], 0
    for group, factors in zip(term.groups, inner, strict=True):
        size = group.probs.size
        own = shares[start : start + size]
        found = _polynomial(group, factors, own, others, grid.size)
        transform, noise = transform + found.value, noise + found.noise
        singles += found.singles
        start += size

    def averaged(value: Callable[[Factor], Array]) -> Array:
        logs = safe_log(term.probs())[:, None] + term.sums(stacked(value))
        return logsumexp(logs, axis=0)

    sizes = stacked(lambda x: x.powers + jnp.abs(x.log_mass))
    return Factor(
        transform=_nonzero(transform),
        offset=jnp.zeros_like(grid.first[0]),
        log_mass=log_mass,
        singles=singles,
        noise=noise,
        powers=stop_gradient(1 + jnp.max(term.sums(sizes))),
        most=stop_gradient(jnp.max(term.sums(stacked(lambda x: x.most)))),
        log_moments=averaged(lambda x: x.log_moments),
        log_grown=averaged(lambda x: x.log_grown),
        top=jnp.sum(term.probs() * term.sums(stacked(lambda x: x.top))),
        besides=stop_gradient(jnp.max(term.sums(stacked(lambda x: x.besides)))),
        moved=stop_gradient(jnp.max(term.sums(stacked(lambda x: x.moved)))),
    )


class _Polynomial(eqx.Module):
    """The alternatives of one group, summed."""

    value: Complex[Array, " f"]
    noise: Float[Array, " f"]
    singles: list[Single]


class _Sums(eqx.Module):
    """Over the alternatives, of u times E = prod_j z_j^{n_j} (or of |E|)."""

    value: Complex[Array, " f"]
    slopes: Complex[Array, "k f"]
    """Times n_j."""
    inexact: Complex[Array, "k f"]
    """Times n_j but for the last release."""
    sizes: Float[Array, "k f"]
    """Times n_j, in modulus."""
    size: Float[Array, " f"]


def _polynomial(
    group: Alternatives,
    factors: list[Factor],
    shares: Array,
    others: Array | None,
    size: int,
) -> _Polynomial:
    transforms = jnp.stack([x.transform for x in factors])
    logs = jnp.log(transforms)
    # Whole numbers, so that phases of any size are exact.
    counts = stop_gradient(jnp.round(group.counts))
    offsets = jnp.stack([jnp.mod(x.offset, size) for x in factors])
    offsets = jnp.mod(counts.astype(offsets.dtype), size) @ offsets
    frequency = jnp.arange(size // 2 + 1, dtype=offsets.dtype)

    @jax.checkpoint
    def power(share: Array, count: Array, offset: Array, logs: Array) -> _Sums:
        turns = jnp.mod(frequency * jnp.mod(offset, size), size).astype(share.dtype)
        phase = (-2j * jnp.pi / size) * turns
        value = share * jnp.exp(jnp.tensordot(count, logs, axes=1) + phase)
        constant = stop_gradient(value)
        number = jnp.sum(count) + (1.0 if others is None else others)
        last = 0.0 if others is None else 1 / jnp.maximum(number, 1)
        slopes = count[:, None] * constant
        return _Sums(
            value,
            slopes,
            slopes * (1 - last),
            jnp.abs(slopes),
            jnp.abs(constant),
        )

    def add(total: _Sums, one: tuple[Array, ...]) -> tuple[_Sums, None]:
        return jax.tree.map(jnp.add, total, power(*one, logs)), None

    each = (shares, counts, offsets)
    shapes = jax.eval_shape(power, *(x[0] for x in each), logs)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, _ = lax.scan(add, zeros, each)
    # A plain sum of n terms has n / 2 roundings; one transform has more than 100.
    summing = 2 + shares.size / 128
    noise = sums.size * summing
    moduli = [stop_gradient(jnp.abs(x.transform)) for x in factors]
    # Relatively, of the product with the most releases.
    most = [jnp.max(counts[:, j]) for j in range(len(factors))]
    each = zip(most, factors, moduli, strict=True)
    relative = summing + sum(n * x.noise / size for n, x, size in each)
    singles = []
    for j, factor in enumerate(factors):
        noise = noise + sums.sizes[j] * factor.noise / moduli[j]
        slope, inexact = (
            x[j] / stop_gradient(factor.transform) for x in (sums.slopes, sums.inexact)
        )
        off = sums.sizes[j] / moduli[j] * relative
        for one in factor.singles:
            inner = (slope * one.partial, inexact * one.partial)
            moved = off * jnp.abs(one.partial) + jnp.abs(slope) * one.noise
            singles.append(Single(one.part, one.mass, *inner, moved))
    return _Polynomial(sums.value, noise, singles)


def _moment_growth(
    grid: Grid, part: Discrete, moments: Float[Array, " k"]
) -> Float[Array, " k"]:
    """The relative excess of E[e^{c Y}] of the discretized loss, at most."""
    shifts, h = grid.chernoff_shifts, grid.spacing
    # The chord of x^(1 + c) over a cell.
    chord = 0.125 * jnp.square(jnp.expm1(h)) * jnp.abs((1 + shifts) * shifts)
    chord = chord * jnp.exp(h * (2 + jnp.abs(shifts)))
    # The mass lifted to the first point.
    lifted = part.log_scale + (shifts - grid.shift) * part.first_point - moments
    return chord + part.bottom * jnp.exp(jnp.minimum(lifted, 700))
