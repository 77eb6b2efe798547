"""Sums of rotations at very many equispaced frequencies, by one fast transform.

sum_j w_j (e^{2 pi i k t_j} - 1), k = 0, ..., n - 1: the weights are spread over a grid
with a kernel of compact support, transformed, and divided by the kernel's own
transform (the nonuniform transform of type 1; Barnett, Magland & af Klinteberg 2019,
with their kernel "exponential of a semicircle").
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.lax import fori_loop, optimization_barrier
from jaxtyping import Array, Float, Int, PyTree

from ._arithmetic import ULP
from ._tolerances import SPREADING_KERNEL

_WIDTH = 18
"""Grid points that one weight is spread over: an error of 2e-16 of the weight."""
_STEEPNESS = 2.32 * _WIDTH
_OVERSAMPLING = 2
_BESIDE = 1e-6
"""Grid points below 0 from which on t counts as about 0: there the kernel's last part,
which is beyond the window, is still e^-_STEEPNESS."""
_BIN = 32
"""Grid points that are looked at together for the rounding of sums."""
_DEGREE = 20
_GROWTH = 2.4
"""log of how much the kernel's transform falls over the frequencies used, about."""


def _kernel_transform(share: np.ndarray) -> np.ndarray:
    """The kernel's Fourier transform at shares of the sampling frequency."""
    # z = sin(angle): at the ends everything is below e^-_STEEPNESS, so that the
    # midpoint rule is exact to rounding.
    angle = np.pi * ((np.arange(128) + 0.5) / 128 - 0.5)
    kernel = np.exp(_STEEPNESS * (np.cos(angle) - 1)) * np.cos(angle)
    waves = np.cos(np.pi * _WIDTH * share[:, None] * np.sin(angle))
    return _WIDTH / 2 * np.pi / 128 * (waves @ kernel)


def _inverse_transform() -> tuple[float, ...]:
    """Chebyshev coefficients of e^{-_GROWTH x} / transform.

    x = (2 oversampling share)^2 in [0, 1].
    """
    node = np.polynomial.chebyshev.chebpts1(_DEGREE + 1)
    x = 0.5 * (node + 1)
    inverse = 1 / _kernel_transform(np.sqrt(x) / (2 * _OVERSAMPLING))
    flat = inverse * np.exp(-_GROWTH * x)
    return tuple(float(c) for c in np.polynomial.chebyshev.chebfit(node, flat, _DEGREE))


_INVERSE = _inverse_transform()


Sums = tuple[Float[Array, "r n"], Float[Array, "r n"], Float[Array, " r"]]
Points = Callable[
    [Array, PyTree, PyTree], tuple[Float[Array, " m"], Float[Array, "r m"]]
]


@dataclasses.dataclass(frozen=True)
class _WithTangents:
    """Points whose rows of weights are followed by those of all derivatives.

    That of sum w e^{i k t} is sum (w' + i k w t') e^{i k t}: first all w', then all
    w t', for one argument after the other.  Equal for equal `points`.
    """

    points: Points

    def __call__(self, index: Array, args: PyTree, aux: PyTree) -> tuple[Array, Array]:
        flat, unravel = ravel_pytree(args)
        main = lambda flat: self.points(index, unravel(flat), aux)
        (t, weights), push = jax.linearize(main, flat)
        moved, changes = jax.vmap(push)(jnp.eye(flat.size, dtype=flat.dtype))
        drift = weights * moved[:, None, :]
        return t, jnp.concatenate([weights, *changes, *drift])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def fourier_sums(
    points: Points, blocks: Int[Array, ""], count: int, args: PyTree, aux: PyTree
) -> tuple[Sums, Float[Array, " n"]]:
    """The sums of w (cos(2 pi k t) - 1) and w sin(2 pi k t), k = 0, ..., count - 1.

    Args:
        points: Pure function without closed-over tracers: of the index of a block,
            `args` and `aux` the numbers t, in turns, and some rows of weights w.
        blocks: Number of blocks, may be traced.
        count: Number of frequencies.
        args: PyTree of a few floating-point numbers of one dtype.
        aux: PyTree of arrays treated as constants.

    Returns:
        The two sums and that of the weights alone for each row, differentiable in
        `args`; and bounds on the errors of the first row's over the sum of its |w|, but
        for the rounding of k t and of the weights.  Rounding counts as in sums in any
        order; the kernel's own error is within its rounding.
    """
    size = 2 * _OVERSAMPLING * count
    block, shape = jax.eval_shape(points, jnp.zeros_like(blocks), args, aux)
    offsets = jnp.arange(_WIDTH) - (_WIDTH // 2 - 1)
    # If not for this, XLA would prepare the grid outside of a loop that needs none.
    zero, blocks = optimization_barrier((jnp.zeros((), shape.dtype), blocks))
    frequency = zero + jnp.arange(count, dtype=zero.dtype)
    inverse = _inverse_at(jnp.square(frequency / count))
    at_zero = _kernel(zero + offsets)

    def spread(index: Array, state: _Spread, row: Array) -> _Spread:
        t, weights = points(index, args, aux)
        weight, place = weights[row], t * size
        # Where t is about 0 a weight is spread there less that at 0: what is left, and
        # its rounding, is as small as the rotation.
        near = (place > -_BESIDE) & (place < 1)
        first = jnp.where(near, 0, jnp.floor(place))
        at = first[:, None] + offsets
        share = _kernel(at - place[:, None])
        share = share - jnp.where(near[:, None], at_zero, 0)
        share = share * weight[:, None]
        beside = jnp.where(near[:, None], share, 0)
        cell = first.astype(jnp.int32)
        far = jnp.where(near[:, None], 0, share)
        moved = jnp.sum(jnp.abs(far), axis=1)
        bins = jnp.mod(cell, size) // _BIN
        return _Spread(
            grid=state.grid.at[jnp.mod(cell[:, None] + offsets, size)].add(far),
            center=state.center + jnp.sum(beside, axis=0),
            total=state.total + jnp.sum(weight),
            away=state.away + jnp.sum(jnp.where(near, 0, weight)),
            weight=state.weight + jnp.sum(jnp.abs(weight)),
            beside=state.beside + jnp.sum(jnp.abs(beside)),
            moved=state.moved.at[bins].add(moved),
            number=state.number.at[bins].add(jnp.where(near, 0.0, 1.0)),
        )

    def transform(row: Array) -> tuple:
        add = lambda index, state: spread(index, state, row)
        bins, none = jnp.full(size // _BIN, zero), jnp.full(_WIDTH, zero)
        scalars = zero, zero, zero, zero
        empty = _Spread(jnp.full(size, zero), none, *scalars, bins, bins)
        found = fori_loop(0, blocks, add, empty)
        grid = found.grid.at[jnp.mod(offsets, size)].add(found.center)
        waves = jnp.fft.rfft(grid)[:count]
        versine = waves.real * inverse - found.away
        # A sum of blocks, itself of the block before and those of its own.
        terms = blocks + block.size
        rounding = found.rounding(terms, 2 * float(np.log2(size))) * inverse[0]
        rounding = rounding + terms * jnp.abs(found.away)
        weight = jnp.where(found.weight > 0, found.weight, 1)
        rounding = rounding / weight + SPREADING_KERNEL
        return (versine, -waves.imag * inverse, found.total), rounding

    # One after the other: memory for all at once is not had for nothing, even unused.
    sums, rounding = lax.map(transform, jnp.arange(shape.shape[0]))
    return sums, ULP * rounding[0] * inverse / inverse[0]


@fourier_sums.defjvp
def _fourier_sums_jvp(
    points: Points, count: int, primals: tuple, tangents: tuple
) -> tuple:
    blocks, args, aux = primals
    direction, _ = ravel_pytree(tangents[1])
    found, error = fourier_sums(_WithTangents(points), blocks, count, args, aux)
    many = direction.size
    rows = found[0].shape[0] // (1 + 2 * many)
    along = lambda x: jnp.tensordot(
        direction, x.reshape(many, rows, *x.shape[1:]), axes=1
    )
    cut = rows, rows * (1 + many)
    main, change, drift = zip(*(jnp.split(x, cut) for x in found), strict=True)
    versine, sine, total = map(along, change)
    drift_versine, drift_sine, drift_total = map(along, drift)
    turn = 2 * jnp.pi * jnp.arange(count, dtype=error.dtype)
    tangent = (
        versine - turn * drift_sine,
        sine + turn * (drift_versine + drift_total[:, None]),
        total,
    )
    return (main, error), (tangent, jnp.zeros_like(error))


class _Spread(NamedTuple):
    """Weights on a grid; what is about 0 apart."""

    grid: Float[Array, " s"]
    center: Float[Array, " w"]
    total: Float[Array, ""]
    """Sums: of all weights, of those not about 0, and of sizes."""
    away: Float[Array, ""]
    weight: Float[Array, ""]
    beside: Float[Array, ""]
    """The sum of sizes of all that was added to `center`."""
    moved: Float[Array, " b"]
    """That of what was added to the grid, by the bin in which it begins."""
    number: Float[Array, " b"]
    """How many points that was."""

    def rounding(self, blocks: Array, stages: float) -> Float[Array, ""]:
        """A bound on all rounding of sums, in units of the last place.

        No point of the grid had more additions than there are points in the bin before,
        in its own and in the next one; then the transform adds `stages` times.
        """
        near = jnp.roll(self.number, 1) + self.number + jnp.roll(self.number, -1)
        additions = jnp.sum(self.moved * (near + stages))
        return additions + (blocks + stages) * self.beside


def _kernel(distance: Array) -> Array:
    """The kernel at a distance in grid points; outside of its support next to 0."""
    square = jnp.square(distance * (2 / _WIDTH))
    root = jnp.sqrt(jnp.maximum(1 - square, 0))
    # 1 - root without the rounding of 1, which the steepness would multiply.
    return jnp.exp(-_STEEPNESS * square / (1 + root))


def _inverse_at(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """One over the kernel's transform at points of [0, 1], by Clenshaw's recurrence."""
    # Not one array: JAX does not batch searches that hold on to some.
    coefficients = jnp.stack([jnp.full((), c, x.dtype) for c in _INVERSE[::-1]])
    y = 2 * x - 1

    def step(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        one, two = state
        return 2 * y * one - two + coefficients[index], one

    # A loop, since the program would be half as long again without.
    start = jnp.zeros_like(y), jnp.zeros_like(y)
    one, two = fori_loop(0, _DEGREE, step, start)
    return (y * one - two + _INVERSE[0]) * jnp.exp(_GROWTH * x)
