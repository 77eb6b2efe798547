"""Divided differences of the exponential function against mpmath."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from fdp_jax._internal._divided import (
    exp_divided,
    log1p_ratio,
    log_moment_ratio,
    psi,
    sinhc,
)

UNIT = 2.0**-52


def _psi(x):
    return mp.expm1(x) / x if x else mp.mpf(1)


def _exact(x, y):
    return mp.diff(_psi, x) if x == y else (_psi(x) - _psi(y)) / (x - y)


def _points():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400) * 10 ** rng.uniform(-9, 2, 400)
    ratio = rng.choice([0, 0.5, 1, 2, -1, 1.0001, 0.999999, 10, 1e-9], 400)
    return np.clip(x, -150, 150), np.clip(ratio * x, -150, 150)


def test_value_and_slope():
    xs, ys = _points()
    with mp.workdps(60):
        values = np.asarray(exp_divided(xs, ys))
        slopes = jax.vmap(jax.grad(exp_divided))(jnp.asarray(xs), jnp.asarray(ys))
        for x, y, value, slope in zip(xs, ys, values, np.asarray(slopes), strict=True):
            a, b = mp.mpf(x), mp.mpf(y)
            assert abs(value / _exact(a, b) - 1) < 60 * UNIT
            if abs(x) > 1e-4:
                h = abs(a) * mp.mpf("1e-18")
                exact = (_exact(a + h, b) - _exact(a - h, b)) / (2 * h)
                assert abs(slope / exact - 1) < 60 * UNIT


def test_scale_keeps_overflow_out():
    # e^-900 exp[0, 1000, 2] = about e^100 / 998000.
    value = mp.mpf(float(exp_divided(1000.0, 2.0, -900.0)))
    exact = mp.exp(-900) * _exact(mp.mpf(1000), mp.mpf(2))
    assert abs(value / exact - 1) < 1e-12


@pytest.mark.parametrize(
    ("function", "exact", "points"),
    [
        (log1p_ratio, lambda u: mp.log1p(u) / u, np.linspace(-0.5, 1, 31)),
        (sinhc, lambda u: mp.sinh(u) / u, np.linspace(-3, 3, 31)),
        (psi, _psi, np.linspace(-3, 3, 31)),
    ],
)
def test_ratios(function, exact, points):
    for u in points[points != 0]:
        assert abs(float(function(u)) / exact(mp.mpf(u)) - 1) < 4 * UNIT
        slope = float(jax.grad(function)(u))
        assert abs(slope / mp.diff(exact, mp.mpf(u)) - 1) < 40 * UNIT
    assert float(function(0.0)) == 1.0
    assert np.isfinite(float(jax.grad(function)(0.0)))


def test_log_moment_ratio_takes_the_accurate_side():
    assert float(log_moment_ratio(1.0, 0.0, 0.25)) == 0.25
    assert float(log_moment_ratio(3.0, 12.0, jnp.inf)) == 2.0
