"""A point on the unit circle against mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from fdp_jax._internal._rotation import rotation


def _errors(angles):
    """Largest errors of cos - 1 and sin: absolute, and relative to the value."""
    absolute = relative = 0.0
    with mpmath.workprec(300):
        for angle, *found in zip(
            angles, *map(np.asarray, jax.jit(rotation)(angles)), strict=True
        ):
            exact = mpmath.mpf(float(angle))
            for value, truth in zip(
                found, (mpmath.cos(exact) - 1, mpmath.sin(exact)), strict=True
            ):
                error = abs(float(value) - truth)
                absolute = max(absolute, float(error))
                relative = max(relative, float(error / abs(truth)))
    return absolute, relative


@pytest.mark.parametrize("size", [1e-12, 1e-5, 1.0])
def test_relative_accuracy_near_zero(size):
    angles = np.random.default_rng(0).uniform(-1, 1, 300) * size
    assert _errors(angles)[1] <= 2 * np.finfo(float).eps


@pytest.mark.parametrize("size", [30, 1e6])
def test_two_units_on_the_circle(size):
    angles = np.random.default_rng(1).uniform(-1, 1, 300) * size
    assert _errors(angles)[0] <= 2 * np.finfo(float).eps


def test_an_angle_without_digits_is_some_angle():
    angles = jnp.asarray([1e9, -1e13, 1e20, 1e40, -1e300])
    versine, sine = rotation(angles)
    assert jnp.all(jnp.abs(jnp.square(1 + versine) + jnp.square(sine) - 1) < 1)
    error = _errors(np.asarray(angles[:2]))[0]
    assert error <= 1e13 * np.finfo(np.float64).eps


def test_first_and_second_derivative():
    at = jnp.asarray(0.7)
    first = jax.jacfwd(rotation)
    np.testing.assert_allclose(first(at), (-np.sin(0.7), np.cos(0.7)), rtol=1e-15)
    second = jax.jacfwd(jax.jacrev(rotation))
    np.testing.assert_allclose(second(at), (-np.cos(0.7), -np.sin(0.7)), rtol=1e-15)
