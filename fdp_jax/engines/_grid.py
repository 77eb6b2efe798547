r"""The grid engine: losses moved to a grid, composed by FFT, with a certificate.

Discretization ("connect the dots", Doroshenko et al. 2022).  The mass of a cell between
two grid points is split between them so that its mass under P and under Q is kept: a
mean-preserving spread of the likelihood ratio, so the new pair A' dominates the old,
A.  Its profile is the chord of the profile of A over every cell.

Composition.  The masses are tilted by e^{c y}, transformed, raised to their powers and
multiplied by the transform of the payoff's kernel: one inverse transform gives the
profile of the composition at every grid point, with relative accuracy in the far tail.
The wrap-around adds exactly sum_m e^{cmR} delta(eps + mR), as in `_contour.py`.

Lower bound.  Composition is linear in the profile of each factor,
delta_{A o B}(eps) = E[delta_A(eps - Y_B)], so exchanging the factors A' for A one at a
time costs sum_i E[s(eps - Y)], with s = delta_{A'} - delta_A at most the height of a
triangle over every cell and Y a sum of some factors of either kind.  Collapsing the
cells (a garbling, so still a lower bound) makes Y a grid sum minus bounded, nearly
centered errors, that is, s is replaced by its maximum over a window (Hoeffding 1963).
The expectation is one more inverse transform.

Factors may be revealed mixtures of compositions: see `_grid_factors.py`.
"""

import itertools
import math

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient, while_loop
from jaxtyping import Array, ArrayLike, Complex, Float, Int

from .._internal._memory import memory_size
from .._internal._tolerances import WINDOW_MISSED
from ..losses import ComposedLoss, single_losses
from ._contour import log_aliases
from ._discretize import Grid
from ._factor import Factor
from ._grid_factors import factors_of
from ._grid_profile import GridProfile, shifted

_ARRAYS, _ARRAYS_PER_LOSS = 26, 12
"""Float64 arrays of the grid's size alive at once, as measured."""


def compose_grid(loss: ComposedLoss, grid: Grid) -> GridProfile:
    """The profile of the composition at half a period of grid points.

    Raises:
        ValueError: If that needs more memory than the machine has.
    """
    h, c, size = grid.spacing, grid.shift, grid.size
    _plan_memory(len(single_losses(loss.terms, loss.counts)), size)
    terms = factors_of(loss, grid)
    kernels = _Kernels(c, h, size)
    product = _product(terms)
    log_scale = jnp.sum(jnp.stack([count * term.log_mass for term, count in terms]))
    profile = _inverse(product * kernels.profile, size)
    alpha = _inverse(stop_gradient(product) * kernels.alpha, size)
    errors = _errors(grid, terms, stop_gradient(product), kernels)
    rounding = errors.rounding + 8 * _unit(h) * jnp.max(jnp.abs(profile))
    # Rotate to thresholds around the center.
    offset = sum(
        jnp.mod(count, size) * jnp.mod(term.offset, size)
        for count, (term, _) in zip(grid.counts, terms, strict=True)
    )
    start = jnp.round(grid.center / h).astype(int) - size // 4
    place = start + jnp.arange(size // 2)
    near = lambda x: _turned(x, start - offset)[: size // 2]
    profile, alpha = near(profile), near(alpha)
    # A sum of positive numbers, whatever rounding makes of it.
    certain = jnp.maximum(near(errors.certain), 0) + errors.certain_rounding
    mean = jnp.minimum(near(errors.mean), 0.5 * profile)
    epsilons = place.astype(h.dtype) * h
    aliases = log_aliases(
        grid.chernoff_shifts,
        grid.chernoff_logs + errors.growth,
        c,
        size * h,
        epsilons,
    )
    aliases = jnp.exp(jnp.minimum(aliases - (log_scale - c * epsilons), 700))
    powers = 8 * _unit(h) * sum(count * term.powers for term, count in terms)
    singles = [single for term, _ in terms for single in term.singles]
    upper = profile * (1 + powers) + rounding
    lower = profile * (1 - powers) - rounding - aliases
    sound = grid.whole & jnp.all(jnp.stack([single.part.sound for single in singles]))
    upper, lower, certain, mean, alpha, log_top = stop_gradient(
        (upper, lower, certain, mean, alpha, jnp.log(jnp.maximum(errors.top, 1e-320)))
    )
    return GridProfile(
        grid=grid,
        start=start,
        log_scale=log_scale,
        upper=jnp.where(sound, upper, jnp.inf),
        estimate=profile - mean,
        lower=jnp.where(sound, lower, -jnp.inf),
        excess=jnp.maximum(certain, shifted(certain, 1)),
        alpha=alpha,
        log_top=log_top,
        moved=stop_gradient(
            sum((count * term.moved for term, count in terms), start=jnp.zeros(()))
        ),
    )


def _plan_memory(losses: int, points: int) -> None:
    """Refuses, before anything is allocated, what cannot fit."""
    needed = 8 * points * (_ARRAYS + _ARRAYS_PER_LOSS * losses)
    present = memory_size()
    if present is not None and needed > present:
        raise ValueError(
            f"points must be fewer: {points} grid points for {losses} different losses "
            f"need about {needed:,} bytes of memory, the machine has {present:,}"
        )


def _product(terms: list[tuple[Factor, Array]]) -> Complex[Array, " f"]:
    """The product of all powers, in polar form: complex logarithms compile longer."""
    logs = turns = jnp.zeros(())
    for term, count in terms:
        real, imaginary = term.transform.real, term.transform.imag
        logs = logs + 0.5 * count * jnp.log(jnp.square(real) + jnp.square(imaginary))
        turns = turns + count * jnp.arctan2(imaginary, real)
    size = jnp.exp(logs)
    return lax.complex(size * jnp.cos(turns), size * jnp.sin(turns))


class _Kernels(eqx.Module):
    """Transforms of what a tilted distribution is summed against."""

    profile: Complex[Array, " f"]
    power: Complex[Array, " f"]
    """Q-mass strictly to the right."""
    alpha: Complex[Array, " f"]
    """P-mass to the right, with half of the point itself."""

    def __init__(self, shift: Array, spacing: Array, size: int):
        omega = 2 * jnp.pi * jnp.arange(size // 2 + 1) / size
        decay = shift * spacing
        self.power = _geometric(decay, omega)
        other = _geometric(decay + spacing, omega)
        # The difference of the two, without cancellation.
        ratio = jnp.exp(decay) * jnp.expm1(spacing) * jnp.exp(-1j * omega)
        self.profile = ratio * self.power * other
        self.alpha = other + 0.5


class _Errors(eqx.Module):
    """The errors of the certificate, in units of the tilted profile."""

    certain: Float[Array, " n"]
    """Bound on the excess of the discretized composition."""
    mean: Float[Array, " n"]
    """About that excess."""
    growth: Float[Array, " k"]
    """What to add to the logarithms of the Chernoff bounds."""
    rounding: Float[Array, ""]
    """Rounding of the tilted profile."""
    certain_rounding: Float[Array, ""]
    top: Float[Array, ""]
    """Q-mass taken for infinite."""


def _errors(
    grid: Grid, terms: list[tuple[Factor, Array]], product: Array, kernels: _Kernels
) -> _Errors:
    h, c, size = grid.spacing, grid.shift, grid.size
    total = jnp.sum(jnp.stack([count * term.most for term, count in terms]))
    reach = jnp.sqrt(0.5 * total * math.log(2 / WINDOW_MISSED)) + 0.125 * h * total
    window = jnp.minimum(jnp.ceil(reach), jnp.maximum(total - 1, 0))
    window = (window + sum(count * term.besides for term, count in terms)).astype(int)
    certain = mean = jnp.zeros_like(product)
    top = missed = jnp.zeros_like(h)
    growth = jnp.zeros_like(grid.chernoff_shifts)
    sensitivity, moved = 2 * jnp.abs(product), jnp.zeros_like(jnp.abs(product))
    without = _noise_without_one(terms)
    for (term, count), noise in zip(terms, without, strict=True):
        others = count * product / stop_gradient(term.transform)
        growth = growth + count * (term.log_grown - term.log_moments)
        sensitivity = sensitivity + jnp.abs(others) * term.noise
        top = top + count * term.top
        for single in term.singles:
            part, mass = single.part, single.mass
            rest = others * single.partial
            highest = _windowed(part.excess, window) * jnp.exp(c * (window + 2) * h)
            # What rounding added grows towards smaller thresholds: its maximum over the
            # window stands at the window's end.
            raised = shifted(part.slack, -(window + 1)) * jnp.exp(c * (window + 1) * h)
            above, least = jnp.fft.rfft(highest / mass), jnp.fft.rfft(raised / mass)
            gain = above + least * (1 + kernels.power)
            certain = certain + rest * gain
            # Three transforms, and what the others' rounding does to their product.
            sizes = above[0].real + least[0].real * jnp.abs(1 + kernels.power)
            inexact = jnp.abs(rest) * noise + jnp.abs(others) * single.noise
            moved = moved + inexact * jnp.abs(gain) + 3 * jnp.abs(rest) * sizes
            smooth = 0.5 * (part.mean_excess + jnp.roll(part.mean_excess, 1))
            not_last = others * single.mean_partial
            mean = mean + not_last * jnp.fft.rfft(smooth / mass)
            beyond = jnp.arange(size) >= size - 1 - window
            lost = WINDOW_MISSED * jnp.max(part.excess) + part.bottom
            lost = lost + jnp.sum(jnp.where(beyond, part.slack, 0))
            # At frequency zero every transform is 1: this is the number of releases.
            releases = 1.001 * jnp.abs(rest[0])
            missed = missed + releases * lost / mass
    unit = 8 * math.log2(size) * _unit(h) * 2 / size
    rounding = unit * jnp.sum(sensitivity * jnp.abs(kernels.profile))
    return stop_gradient(
        _Errors(
            _inverse(certain, size) + missed,
            _inverse(mean, size),
            growth,
            rounding,
            unit * jnp.sum(moved),
            top,
        )
    )


def _noise_without_one(terms: list[tuple[Factor, Array]]) -> list[Array]:
    """Relative rounding of the product of all factors but one, for each term.

    Summed from both ends, because the noise of what is left out may dwarf the rest.
    """
    each = [term.noise / jnp.abs(term.transform) for term, _ in terms]
    whole = [count * x for (_, count), x in zip(terms, each, strict=True)]
    before = list(itertools.accumulate(whole, initial=jnp.zeros_like(whole[0])))
    after = list(itertools.accumulate(whole[:0:-1], initial=jnp.zeros_like(whole[0])))
    own = [
        jnp.maximum(count - 1, 0) * x for (_, count), x in zip(terms, each, strict=True)
    ]
    sides = zip(before[:-1], own, after[::-1], strict=True)
    return [a + b + c for a, b, c in sides]


def _inverse(transform: Complex[Array, " f"], size: int) -> Float[Array, " n"]:
    return jnp.fft.irfft(transform, size)


def _unit(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps)


def _windowed(excess: Array, window: Int[Array, ""]) -> Array:
    """Maximum over the cells from `window` + 1 left to `window` right of each point.

    Points in a circle, as everything is that Fourier transforms multiply: the largest
    excess may stand next to an end.
    """
    total = 2 * window + 2

    def unfinished(state: tuple[Array, Array]) -> Array:
        return state[0] < jnp.minimum(total, excess.size)

    def double(state: tuple[Array, Array]) -> tuple[Array, Array]:
        covered, result = state
        move = jnp.minimum(covered, total - covered)
        return covered + move, jnp.maximum(result, _turned(result, move))

    _, result = while_loop(unfinished, double, (jnp.ones_like(total), excess))
    # Entry j now covers cells j, ..., j + total - 1.
    return _turned(result, -(window + 1))


def _turned(x: Array, by: ArrayLike) -> Array:
    """Entry j of the result is entry j + by, the entries standing in a circle."""
    start = jnp.mod(by, x.size)
    return lax.dynamic_slice(jnp.concatenate([x, x]), (start,), (x.size,))


def _geometric(decay: Array, omega: Array) -> Array:
    """sum_{m >= 1} e^{-m decay + i m omega}.

    As 1 / (e^{decay - i omega} - 1), without cancellation.
    """
    real = jnp.expm1(decay) - 2 * jnp.exp(decay) * jnp.square(jnp.sin(0.5 * omega))
    return 1 / (real - 1j * jnp.exp(decay) * jnp.sin(omega))
