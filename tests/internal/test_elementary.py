"""Logarithms and angles of XLA, on which brackets rest, against mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

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
    assert _units(jax.jit(jnp.log)(x), map(mpmath.log, x)) <= 1.01


def test_logarithms_have_the_usual_ends():
    x = np.ones(40)
    x[:4] = 0.0, np.inf, -1.0, np.nan
    x[5] = 1e-310  # zero to XLA
    found = np.asarray(jax.jit(jnp.log)(x))
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
    size = np.exp(RANDOM.uniform(-30, 30, angle.size))
    y, x = size * np.sin(angle), size * np.cos(angle)
    truth = [mpmath.atan2(float(u), float(v)) for u, v in zip(y, x, strict=True)]
    assert _units(jax.jit(jnp.arctan2)(y, x), truth) <= 2.0


def test_angles_on_the_axes():
    y = np.tile([0.0, 0.0, 1.0, -1.0, 0.0], 8)
    x = np.tile([1.0, -1.0, 0.0, 0.0, 0.0], 8)
    found = np.asarray(jax.jit(jnp.arctan2)(y, x))
    half = 0.5 * np.pi
    np.testing.assert_array_equal(found, np.tile([0.0, np.pi, half, -half, 0.0], 8))
    assert np.all(np.isnan(jax.jit(jnp.arctan2)(y * np.nan, x)))
