"""Logarithm and angle of many numbers, against mpmath; functions that are set apart."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from fdp_jax._internal._elementary import apart, arctan2_within, log_within
from fdp_jax.cli._sweep import WHOLE_LOOPS

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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_few_numbers_and_other_types_are_left_to_the_library(dtype):
    for x in (jnp.linspace(0.1, 3.0, 3, dtype=dtype), jnp.ones(99, jnp.float32)):
        assert log_within(x).dtype == x.dtype
        np.testing.assert_array_equal(log_within(x), jnp.log(x))
        np.testing.assert_array_equal(arctan2_within(x, -x), jnp.arctan2(x, -x))


def test_what_is_set_apart_is_compiled_once_and_transforms():
    inner = lambda x: x * (x + 1) - jnp.where(x > 0, x, 0)
    function = apart(inner)
    x = jnp.linspace(-1.0, 1.0, 64)
    spread = lambda f: lambda x: (jnp.outer(f(x), x), f(x) + 1)
    text = jax.jit(spread(function)).lower(x).compile().as_text()
    assert text is not None
    assert text.count(" call(") == 1  # for both uses, and none for what it calls
    for found, wanted in zip(spread(function)(x), spread(inner)(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
    total = lambda f: lambda x: jnp.sum(f(x) ** 2)
    rows = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(
        jax.vmap(jax.grad(total(function)))(rows),
        jax.vmap(jax.grad(total(inner)))(rows),
        rtol=1e-14,
    )


_LOOP = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from fdp_jax._internal._compilation import options_here
from fdp_jax._internal._special import log1p

def step(index, x):
    return jnp.sqrt(log1p(jnp.exp(log1p(x))))

loop = lambda count, x: jax.lax.fori_loop(0, count, step, x)
x = jnp.linspace(0.1, 3.0, 5000)
found = jax.jit(loop, **options_here(often=True))(4, x)
for _ in range(4):
    x = jnp.sqrt(jnp.log1p(1 + x))
print(float(jnp.max(jnp.abs(found / x - 1))))
"""


def test_loops_that_are_one_function_are_linked_with_what_is_set_apart():
    """Also where it is dealt to several threads, which takes two cores."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOP],
        env=dict(os.environ, XLA_FLAGS=WHOLE_LOOPS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 1e-15
