"""Sums of rotations by a fast transform, against the sums themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax._internal._fourier_sums import fourier_sums

COUNT, SIZE = 512, 50
RANDOM = np.random.default_rng(3)
PLACES = RANDOM.uniform(-4, 4, (6, SIZE))
WEIGHTS = RANDOM.exponential(size=(6, 2, SIZE))


def _points(index, args, aux):
    """Two rows of weights; places and weights depend on both arguments."""
    stretch, slope = args
    places, weights = aux
    t = stretch * places[index] + 0.1 * slope * jnp.sin(places[index])
    return t, weights[index] * jnp.exp(slope * t)


def _sums(args, blocks=6):
    aux = jnp.asarray(PLACES), jnp.asarray(WEIGHTS)
    sums, error = fourier_sums(_points, jnp.asarray(blocks), COUNT, tuple(args), aux)
    return jnp.stack(sums[:2]), sums[2], error


def _direct(args, blocks=6):
    """The same with one rotation for every point and frequency."""
    aux = jnp.asarray(PLACES), jnp.asarray(WEIGHTS)
    t, weights = jax.vmap(lambda i: _points(i, tuple(args), aux))(jnp.arange(6))
    t, weights = t[:blocks], weights[:blocks]
    turns = t[..., None] * jnp.arange(COUNT)
    angle = 2 * jnp.pi * (turns - jnp.round(turns))
    return jnp.stack(
        [
            jnp.einsum("brp,bpk->rk", weights, -2 * jnp.square(jnp.sin(angle / 2))),
            jnp.einsum("brp,bpk->rk", weights, jnp.sin(angle)),
        ]
    )


@pytest.mark.parametrize("blocks", [0, 1, 6])
def test_sums_are_within_their_bounds(blocks):
    args = jnp.asarray([1.1, 0.2])
    found, total, error = jax.jit(_sums)(args, blocks)
    # The direct sums round the turns of up to 2,000 circles, too.
    miss = np.abs(found - _direct(args, blocks))
    assert np.all(miss[:, 0] <= (error + 2e-12) * total[0])
    assert np.all(error < 1e-12)


def test_low_frequencies_are_exact():
    args = jnp.asarray([1.1, 0.2])
    found, total, error = jax.jit(_sums)(args)
    miss = np.abs(found - _direct(args))[..., :4] / total[:, None]
    assert np.all(miss <= error[:4])
    assert np.max(miss) < 2e-15


def test_what_hardly_turns_hardly_rounds():
    """Most of the weight about 0: what is left has the rounding of the rest."""
    places = jnp.asarray(PLACES).at[:5].multiply(1e-9)
    weights = jnp.asarray(WEIGHTS).at[5].multiply(1e-4)
    args = (jnp.asarray(1.0), jnp.asarray(0.0))
    six = jnp.asarray(6)
    sums, error = fourier_sums(_points, six, COUNT, args, (places, weights))
    angle = 2 * jnp.pi * places[..., None] * jnp.arange(COUNT)
    exact = jnp.einsum("bp,bpk->k", weights[:, 0], -2 * jnp.sin(angle / 2) ** 2)
    miss = np.abs(sums[0][0] - exact) / sums[2][0]
    assert np.all(miss <= error + 1e-16)
    assert np.max(error[:64]) < 3e-14


@pytest.mark.parametrize("place", [-0.99, -0.49, -1e-3, -1e-9, 0.0, 0.49, 0.99, 1.01])
def test_one_point_beside_zero(place):
    """In grid points, of which there are four times as many as frequencies."""
    t = place / (4 * COUNT)
    args, aux = (jnp.asarray(1.0), jnp.asarray(0.0)), (jnp.full((1, 1), t),)
    aux = (*aux, jnp.ones((1, 1, 1)))
    sums, error = fourier_sums(_points, jnp.asarray(1), COUNT, args, aux)
    half = np.pi * t * np.arange(COUNT)
    exact = -2 * np.sin(half) ** 2, np.sin(2 * half)
    for found, truth in zip(sums, exact, strict=False):
        assert np.all(np.abs(found[0] - truth) <= error)
    assert np.max(error) < 1e-12


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives(mode):
    args = jnp.asarray([1.1, 0.2])
    found = jax.jit(mode(lambda a: _sums(a)[0]))(args)
    exact = jax.jacfwd(_direct)(args)
    scale = np.max(np.abs(exact))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-11 * scale)


@pytest.mark.slow
def test_second_derivatives():
    args = jnp.asarray([1.1, 0.2])
    take = jnp.asarray([0, 3, 90])
    found = jax.hessian(lambda a: jnp.sum(_sums(a)[0][..., take]))(args)
    exact = jax.hessian(lambda a: jnp.sum(_direct(a)[..., take]))(args)
    np.testing.assert_allclose(found, exact, rtol=1e-10)
