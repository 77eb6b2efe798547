r"""The grid engine: losses moved to a grid, composed by FFT, with a certificate.

Discretization ("connect the dots", Doroshenko et al. 2022).  The mass of a cell between
two grid points is split between them so that its mass under P and under Q is kept: a
mean-preserving spread of the likelihood ratio, so the new pair A' dominates the old,
A.  Its profile is the chord of the profile of A over every cell.

Composition.  The masses are tilted by e^{c y}, transformed, raised to their powers and
multiplied by the transform of the payoff's kernel: one inverse transform gives the
profile of the composition at every grid point, with relative accuracy in the far tail.
The wrap-around adds exactly sum_m e^{cmR} delta(eps + mR), as in `_lines.py`.

Lower bound.  Any test has delta(eps) >= Q(T > t) - e^eps P(T > t), for every t.  Take
for T the sum of grid points that stand for the losses, each drawn from the ends of its
cell by a coin, with the shares by which A' splits the P-mass of the cell.  Under P the
sum T has the law of the sum of A'; under Q it is the composition of "test" laws, which
keep the cell's own ratio q / p where A' has that of the end.  With U the profile of A'
and t the grid point left of eps,

    delta(eps) >= U(eps) - (Q'(T > t) - Q(T > t)),

the difference being the Q-mass that A' has right of t and the test has not: one more
inverse transform.  It is of second order in the spacing, and nothing for losses on the
grid; errors of masses are taken off the test's.  A factor of A' has more Q-mass right
of any point than the test's, hence so has the composition, and what wraps around only
makes the difference larger.

Factors may be revealed mixtures of compositions: see `_grid_factors.py`.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Complex, Float

from .._internal._arithmetic import ULP
from .._internal._memory import memory_size
from ..losses import ComposedLoss, single_losses
from ._discretize import Grid, carried
from ._enclosed import is_bracketed, sides
from ._factor import product_of
from ._grid_factors import factors_of
from ._grid_profile import GridProfile
from ._line_mesh import log_payoff

_ARRAYS, _ARRAYS_PER_LOSS = 26, 12
"""Float64 arrays of the grid's size alive at once, as measured."""
_RAISED = 256
"""Errors of the masses of atoms, of both laws, in units of their rounding."""


@jax.jit
def compose_grid(loss: ComposedLoss, grid: Grid) -> GridProfile:
    """The profile of the composition at half a period of grid points.

    Raises:
        ValueError: If that needs more memory than the machine has.
    """
    if not is_bracketed(loss):
        return _compose(loss, grid)
    each, infinite = lax.map(
        lambda x: (_compose(x, grid), x.log_infinite_mass(grid.sign)), sides(loss)
    )
    upper, found, lower = (jax.tree.map(lambda x, i=i: x[i], each) for i in range(3))
    rise, fall = (
        stop_gradient(jnp.exp(x.log_scale - found.log_scale)) for x in (upper, lower)
    )
    # Only the pair above has infinite losses.
    return dataclasses.replace(
        found,
        upper=upper.upper * rise,
        lower=lower.lower * fall,
        gap=lower.gap * fall,
        chernoff_logs=upper.chernoff_logs,
        log_top=jnp.logaddexp(upper.log_top, stop_gradient(infinite[0])),
        moved=jnp.max(each.moved),
    )


def _compose(loss: ComposedLoss, grid: Grid) -> GridProfile:
    grid = carried(loss, grid)
    h, c, size = grid.spacing, grid.shift, grid.size
    _plan_memory(len(single_losses(loss.terms, loss.counts)), size)
    terms = factors_of(loss, grid)
    kernels = _Kernels(c, h, size)
    product = product_of(terms)
    log_scale = jnp.sum(jnp.stack([count * term.log_mass for term, count in terms]))
    fixed = stop_gradient(product)
    profile = _inverse(product[0] * kernels.profile, size)
    alpha = _inverse(fixed[0] * kernels.alpha, size)
    gap = _inverse((fixed[0] - fixed[1]) * kernels.power, size)
    # Of the sums of the upper law, and of the test's, what rounding may have moved.
    noise = 2 * jnp.abs(fixed)
    for term, count in terms:
        others = count * fixed / stop_gradient(term.transform)
        noise = noise + jnp.abs(others) * term.noise
    noise = 8 * math.log2(size) * ULP * 2 / size * noise
    rounding = jnp.sum(noise[0] * jnp.abs(kernels.profile))
    rounding = rounding + 8 * ULP * jnp.max(jnp.abs(profile))
    inexact = jnp.sum(noise * jnp.abs(kernels.power))
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
    gap = jnp.maximum(near(gap), 0)
    epsilons = place.astype(h.dtype) * h
    # Of the upper law, whose copies those are; more than rounding may take away.
    moments = sum(count * term.log_moments for term, count in terms)
    sizes = sum(count * (1 + jnp.abs(term.log_moments)) for term, count in terms)
    moments = moments + log_payoff(grid.sides) + 1e-9 * sizes
    aliases = _log_aliases(grid, moments, epsilons)
    aliases = jnp.exp(jnp.minimum(aliases - (log_scale - c * epsilons), 700))
    powers = 8 * ULP * sum(count * term.powers for term, count in terms)
    top = sum(count * term.top for term, count in terms)
    upper = profile * (1 + powers) + rounding
    lower = profile * (1 - powers) - rounding - aliases
    # Of smooth laws a third of the gap is the upper law's; what masses are raised and
    # lowered by is not.
    moved = jnp.maximum(gap - _RAISED * powers * (profile + alpha), 0)
    sound = grid.whole & jnp.all(jnp.stack([term.sound for term, _ in terms]))
    upper, lower, gap, moved, log_top = stop_gradient(
        (upper, lower, gap, moved, jnp.log(jnp.maximum(top, 1e-320)))
    )
    return GridProfile(
        grid=grid,
        start=start,
        log_scale=log_scale,
        upper=jnp.where(sound, upper, jnp.inf),
        estimate=profile - jnp.minimum(moved / 3, 0.5 * stop_gradient(profile)),
        lower=jnp.where(sound, lower, -jnp.inf),
        gap=gap * (1 + powers) + inexact,
        chernoff_logs=jnp.where(sound, moments, jnp.inf),
        alpha=alpha,
        log_top=log_top,
        moved=stop_gradient(
            sum((count * term.moved for term, count in terms), start=jnp.zeros(()))
        ),
    )


def _log_aliases(
    grid: Grid, logs: Float[Array, "2"], epsilons: Array
) -> Float[Array, " m"]:
    """Log of a bound on the sum of all aliases e^{cmR} delta(eps + mR), m != 0.

    From log delta <= logs - sides eps, one on either side of the tilt.
    """
    distance = (grid.sides - grid.shift) * np.asarray([-1.0, 1.0])
    decay = jnp.where(distance > 0, distance, 1) * grid.size * grid.spacing
    logs = jnp.where(distance > 0, logs, jnp.inf)
    bounds = logs - grid.sides * epsilons[:, None] - decay
    bounds = bounds - jnp.log(-jnp.expm1(-decay))
    return stop_gradient(jnp.logaddexp(*bounds.T))


def _plan_memory(losses: int, points: int) -> None:
    """Refuses, before anything is allocated, what cannot fit."""
    needed = 8 * points * (_ARRAYS + _ARRAYS_PER_LOSS * losses)
    present = memory_size()
    if present is not None and needed > present:
        raise ValueError(
            f"points must be fewer: {points} grid points for {losses} different losses "
            f"need about {needed:,} bytes of memory, the machine has {present:,}"
        )


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


def _inverse(transform: Complex[Array, " f"], size: int) -> Float[Array, " n"]:
    return jnp.fft.irfft(transform, size)


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
