"""Logarithm and angle of many numbers, against mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from fdp_jax._internal._elementary import arctan2_within, log_within

RANDOM = np.random.default_rng(11)


def _units(found, truth):
    """The largest error in units in the last place."""
    errors = [
        abs(mpmath.mpf(float(x)) - t) / mpmath.mpf(float(np.spacing(abs(float(t)))))
        for x, t in zip(found, truth, strict=True)
    ]
    return float(max(errors))


def test_logarithms_are_right_to_the_last_digit():
    x = np.concatenate(
        [
            np.exp(RANDOM.uniform(-700, 700, 2000)),
            1 + RANDOM.normal(size=2000) * 10.0 ** RANDOM.uniform(-16, -1, 2000),
            np.sqrt(0.5) * (1 + RANDOM.normal(size=500) * 1e-6),
            np.exp2(np.arange(-1022, 1024)),
        ]
    )
    x = x[x != 1]
    for log in (log_within, jax.jit(log_within)):
        assert _units(log(jnp.asarray(x)), map(mpmath.log, x)) <= 1.01


def test_logarithms_have_the_usual_ends():
    x = np.ones(40)
    x[:4] = 0.0, np.inf, -1.0, np.nan
    x[5] = 1e-310  # zero to XLA
    found = np.asarray(log_within(jnp.asarray(x)))
    np.testing.assert_array_equal(
        found[:6], [-np.inf, np.inf, np.nan, np.nan, 0.0, -np.inf]
    )


def test_angles_are_right_to_the_last_digits():
    angle = np.concatenate(
        [
            RANDOM.uniform(-np.pi, np.pi, 3000),
            RANDOM.normal(size=2000) * 10.0 ** RANDOM.uniform(-12, 0, 2000),
        ]
    )
    # Also next to where another tangent is taken as the origin.
    for tangent in (7 / 16, 11 / 16, 1.0):
        near = np.arctan(tangent) * (1 + RANDOM.normal(size=200) * 1e-9)
        angle = np.concatenate([angle, near, np.pi - near, -near, 0.5 * np.pi - near])
    size = np.exp(RANDOM.uniform(-30, 30, angle.size))
    y, x = size * np.sin(angle), size * np.cos(angle)
    truth = [mpmath.atan2(float(u), float(v)) for u, v in zip(y, x, strict=True)]
    for arctan2 in (arctan2_within, jax.jit(arctan2_within)):
        assert _units(arctan2(jnp.asarray(y), jnp.asarray(x)), truth) <= 2.0


def test_angles_on_the_axes():
    y = np.tile([0.0, 0.0, 1.0, -1.0, 0.0], 8)
    x = np.tile([1.0, -1.0, 0.0, 0.0, 0.0], 8)
    found = np.asarray(arctan2_within(jnp.asarray(y), jnp.asarray(x)))
    half = 0.5 * np.pi
    np.testing.assert_array_equal(found, np.tile([0.0, np.pi, half, -half, 0.0], 8))
    assert np.all(
        np.isnan(np.asarray(arctan2_within(jnp.asarray(y) * jnp.nan, jnp.asarray(x))))
    )


def test_derivatives_are_those_of_the_library():
    x, y = jnp.linspace(0.1, 3.0, 50), jnp.linspace(-2.0, 2.0, 50)
    total = lambda f: jax.grad(lambda *args: jnp.sum(f(*args)), argnums=0)
    np.testing.assert_allclose(total(log_within)(x), 1 / x, rtol=1e-15)
    found = jax.grad(lambda *a: jnp.sum(arctan2_within(*a)), argnums=(0, 1))(y, x)
    wanted = jax.grad(lambda *a: jnp.sum(jnp.arctan2(*a)), argnums=(0, 1))(y, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_few_numbers_are_left_to_the_library():
    x = jnp.linspace(0.1, 3.0, 3)
    np.testing.assert_array_equal(log_within(x), jnp.log(x))
    np.testing.assert_array_equal(arctan2_within(x, -x), jnp.arctan2(x, -x))
