"""Sums of rotations at very many equispaced frequencies, by one fast transform.

sum_j w_j e^{2 pi i k t_j} for k = 0, ..., n - 1: the weights are spread over a grid
with a kernel of compact support, transformed, and divided by the kernel's own
transform (the nonuniform transform of type 1; Barnett, Magland & af Klinteberg 2019,
with their kernel "exponential of a semicircle").
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.lax import fori_loop, optimization_barrier
from jaxtyping import Array, Float, Int, PyTree

_WIDTH = 18
"""Grid points that one weight is spread over."""
_STEEPNESS = 2.32 * _WIDTH
_OVERSAMPLING = 2
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
    found = np.polynomial.chebyshev.chebfit(node, flat, _DEGREE)
    return tuple(float(c) for c in found)


_INVERSE = _inverse_transform()


Points = Callable[
    [Array, PyTree, PyTree], tuple[Float[Array, " m"], Float[Array, "r m"]]
]


class _WithTangents:
    """Points whose rows of weights are followed by those of all derivatives.

    That of sum w e^{i k t} is sum (w' + i k w t') e^{i k t}: first all w', then all
    w t', for one argument after the other.  Equal for equal `points`.
    """

    def __init__(self, points: Points):
        self.points = points

    def __hash__(self) -> int:
        return hash((_WithTangents, self.points))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithTangents) and self.points == other.points

    def __call__(self, index: Array, args: PyTree, aux: PyTree) -> tuple[Array, Array]:
        flat, unravel = ravel_pytree(args)
        main = lambda flat: self.points(index, unravel(flat), aux)
        (t, weights), push = jax.linearize(main, flat)
        moved, changes = jax.vmap(push)(jnp.eye(flat.size, dtype=flat.dtype))
        drift = weights * moved[:, None, :]
        rows = [weights, *changes, *drift]
        return t, jnp.concatenate(rows)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def fourier_sums(
    points: Points, blocks: Int[Array, ""], count: int, args: PyTree, aux: PyTree
) -> tuple[tuple[Float[Array, "r n"], Float[Array, "r n"]], Float[Array, " n"]]:
    """The sums of w cos(2 pi k t) and w sin(2 pi k t), k = 0, ..., count - 1.

    Args:
        points: Pure function without closed-over tracers: of the index of a block,
            `args` and `aux` the numbers t, in turns, and some rows of weights w.
        blocks: Number of blocks, may be traced.
        count: Number of frequencies.
        args: PyTree of a few floating-point numbers of one dtype.
        aux: PyTree of arrays treated as constants.

    Returns:
        The sums for each row, differentiable in `args`, and bounds on their errors over
        the sum of all |w|, but for the rounding of k t.  The kernel's own error is
        2e-16; the rest is rounding.
    """
    size = 2 * _OVERSAMPLING * count
    _, shape = jax.eval_shape(points, jnp.zeros_like(blocks), args, aux)
    offsets = jnp.arange(_WIDTH)
    # If not for this, XLA would prepare the grid outside of a loop that needs none.
    zero, blocks = optimization_barrier((jnp.zeros((), shape.dtype), blocks))
    frequency = zero + jnp.arange(count, dtype=zero.dtype)
    inverse = _inverse_at(jnp.square(frequency / count))

    def spread(index: Array, grid: Array, row: Array) -> Array:
        t, weights = points(index, args, aux)
        place = t * size
        first = jnp.floor(place) - (_WIDTH // 2 - 1)
        z = (first - place)[:, None] + offsets.astype(place.dtype)
        z = z * (2 / _WIDTH)
        root = jnp.sqrt(jnp.maximum(1 - jnp.square(z), 0))
        share = jnp.exp(_STEEPNESS * (root - 1)) * weights[row][:, None]
        at = jnp.mod(first.astype(jnp.int32)[:, None] + offsets, size)
        return grid.at[at].add(share)

    def transform(row: Array) -> tuple[Array, Array]:
        add = lambda index, grid: spread(index, grid, row)
        grid = fori_loop(0, blocks, add, jnp.full(size, zero))
        found = jnp.fft.rfft(grid)[:count]
        return found.real * inverse, -found.imag * inverse

    # One after the other: memory for all at once is not had for nothing, even unused.
    sums = lax.map(transform, jnp.arange(shape.shape[0]))
    # A transform of n points rounds log2(n) times, each time at most the sum of all.
    rounds = 8 + 2 * float(np.log2(size))
    return sums, jnp.finfo(zero.dtype).eps * rounds * inverse / inverse[0]


@fourier_sums.defjvp
def _fourier_sums_jvp(
    points: Points, count: int, primals: tuple, tangents: tuple
) -> tuple:
    blocks, args, aux = primals
    direction, _ = ravel_pytree(tangents[1])
    (cosine, sine), error = fourier_sums(
        _WithTangents(points), blocks, count, args, aux
    )
    many = direction.size
    rows = cosine.shape[0] // (1 + 2 * many)
    cut = rows, rows * (1 + many)
    along = lambda x: jnp.tensordot(direction, x.reshape(many, rows, count), axes=1)
    cosine, cosine_change, cosine_drift = jnp.split(cosine, cut)
    sine, sine_change, sine_drift = jnp.split(sine, cut)
    turn = 2 * jnp.pi * jnp.arange(count, dtype=error.dtype)
    change = (
        along(cosine_change) - turn * along(sine_drift),
        along(sine_change) + turn * along(cosine_drift),
    )
    return ((cosine, sine), error), (change, jnp.zeros_like(error))


def _inverse_at(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """One over the kernel's transform at points of [0, 1], by Clenshaw's recurrence."""
    y = 2 * x - 1
    one, two = jnp.zeros_like(y), jnp.zeros_like(y)
    for coefficient in _INVERSE[:0:-1]:
        one, two = 2 * y * one - two + coefficient, one
    return (y * one - two + _INVERSE[0]) * jnp.exp(_GROWTH * x)
