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

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Complex, Float, Int

from .._internal._shapes import zeros_of
from .._internal._special import safe_log
from ..losses import (
    AbstractLoss,
    Alternatives,
    ComposedLoss,
    RevealedLoss,
    ScheduleLoss,
)
from ._discretize import Grid, discretize, log_moments
from ._factor import Factor, product_of
from ._grid_jumps import factor_of_jumps


def factors_of(loss: ComposedLoss, grid: Grid) -> list[tuple[Factor, Array]]:
    """Every term with its count, a real number from here on."""
    supply = iter(zip(grid.first, grid.log_scales, strict=True))
    return [
        (_factor(term, grid, supply), count.astype(float))
        for term, count in zip(loss.terms, grid.counts, strict=True)
    ]


def _factor(term: Any, grid: Grid, supply: Iterator) -> Factor:
    if isinstance(term, RevealedLoss):
        return _mixture(term, grid, supply)
    first, log_scale = next(supply)
    if term.by_steps:
        return _schedule(term, grid, first, log_scale)
    jumps = term.compound_jumps()
    if jumps is not None:
        return factor_of_jumps(jumps, grid)
    part = discretize(term, grid, first, log_scale)
    mass = jnp.sum(part.tilted[0])
    one = jnp.ones_like(mass)
    return Factor(
        transform=_nonzero(jnp.fft.rfft(part.tilted / mass)),
        offset=first,
        log_mass=part.log_scale + jnp.log(mass),
        noise=one,
        powers=one,
        log_moments=part.log_scale + log_moments(part.tilted[0], first, grid),
        top=part.top,
        moved=part.moved,
        sound=part.sound,
    )


def _schedule(
    term: ScheduleLoss,
    grid: Grid,
    first: Int[Array, " n"],
    log_scales: Float[Array, " n"],
) -> Factor:
    """All steps of a schedule as one factor: the product of their powers."""

    @jax.jit
    @jax.checkpoint
    def power(step: AbstractLoss, count: Array, *place: Array) -> Factor:
        x = _factor(step, grid, iter([place]))
        whole = jnp.mod(count, grid.size).astype(x.offset.dtype)
        return Factor(
            transform=product_of([(x, count)]),
            offset=whole * jnp.mod(x.offset, grid.size),
            log_mass=count * x.log_mass,
            noise=count * x.noise / jnp.abs(stop_gradient(x.transform)),
            powers=count * x.powers,
            log_moments=count * x.log_moments,
            top=count * x.top,
            moved=count * x.moved,
            sound=~x.sound,
        )

    def multiply(total: Factor, each: tuple) -> tuple[Factor, None]:
        one = lax.cond(each[1] > 0, power, lambda *_: nothing, *each)
        found = jax.tree.map(jnp.add, total, one)
        found = dataclasses.replace(found, transform=total.transform * one.transform)
        return found, None

    counts = stop_gradient(jnp.round(term.counts))
    every = term.steps, counts, first, log_scales
    nothing = zeros_of(power, *jax.tree.map(lambda x: x[0], every))
    ones = jnp.ones_like(nothing.transform)
    nothing = dataclasses.replace(nothing, transform=ones)
    total, _ = lax.scan(multiply, nothing, every)
    size = jnp.abs(stop_gradient(total.transform))
    return dataclasses.replace(
        total,
        transform=_nonzero(total.transform),
        offset=jnp.mod(total.offset, grid.size),
        noise=size * (2 + total.noise),
        sound=~total.sound,
    )


def _nonzero(transform: Complex[Array, "2 f"]) -> Complex[Array, "2 f"]:
    """Its logarithm is needed, also where it is lost in rounding."""
    return jnp.where(jnp.abs(transform) < 1e-150, 1e-150, transform)


def _mixture(term: RevealedLoss, grid: Grid, supply: Iterator) -> Factor:
    inner = [[_factor(t, grid, supply) for t in g.terms] for g in term.groups]

    def stacked(value: Callable[[Factor], Array]) -> list[Array]:
        return [jnp.stack([value(x) for x in factors]) for factors in inner]

    log_mass, shares = term.weigh(term.sums(stacked(lambda x: x.log_mass)))
    transform = noise = jnp.zeros(())
    start = 0
    for group, factors in zip(term.groups, inner, strict=True):
        size = group.probs.size
        own = shares[start : start + size]
        found, inexact = _polynomial(group, factors, own, grid.size)
        transform, noise = transform + found, noise + inexact
        start += size

    def averaged(value: Callable[[Factor], Array]) -> Array:
        logs = safe_log(term.probs())[:, None] + term.sums(stacked(value))
        return logsumexp(logs, axis=0)

    sizes = stacked(lambda x: x.powers + jnp.abs(x.log_mass))
    return Factor(
        transform=_nonzero(transform),
        offset=jnp.zeros_like(grid.first[0]),
        log_mass=log_mass,
        noise=noise,
        powers=stop_gradient(1 + jnp.max(term.sums(sizes))),
        log_moments=averaged(lambda x: x.log_moments),
        top=jnp.sum(term.probs() * term.sums(stacked(lambda x: x.top))),
        moved=stop_gradient(jnp.max(term.sums(stacked(lambda x: x.moved)))),
        sound=jnp.stack([x.sound for factors in inner for x in factors]).all(),
    )


class _Sums(eqx.Module):
    """Over the alternatives, of u times E = prod_j z_j^{n_j}."""

    value: Complex[Array, "2 f"]
    size: Float[Array, "2 f"]
    """In modulus."""
    sizes: Float[Array, "k 2 f"]
    """In modulus times n_j."""


def _polynomial(
    group: Alternatives, factors: list[Factor], shares: Array, size: int
) -> tuple[Complex[Array, "2 f"], Float[Array, "2 f"]]:
    """The alternatives of one group, summed, and the noise of that."""
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
        modulus = jnp.abs(stop_gradient(value))
        return _Sums(value, modulus, count[:, None, None] * modulus)

    def add(total: _Sums, one: tuple[Array, ...]) -> tuple[_Sums, None]:
        return jax.tree.map(jnp.add, total, power(*one, logs)), None

    each = (shares, counts, offsets)
    shapes = jax.eval_shape(power, *(x[0] for x in each), logs)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, _ = lax.scan(add, zeros, each)
    # A plain sum of n terms has n / 2 roundings; one transform has more than 100.
    noise = sums.size * (2 + shares.size / 128)
    for own, factor in zip(sums.sizes, factors, strict=True):
        noise = noise + own * factor.noise / jnp.abs(stop_gradient(factor.transform))
    return sums.value, noise
