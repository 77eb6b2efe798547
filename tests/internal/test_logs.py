"""Operations on logarithms of probabilities, with their derivatives at the ends."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from fdp_jax._internal import _logs as logs


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True), mp.workdps(40):
        yield


def test_constants():
    assert float(mp.log(2)) == logs.LOG_2 == -logs.LOG_HALF
    assert abs(mp.log(2 * mp.pi) / 2 - mp.mpf(logs.LOG_SQRT_2PI)) < 1e-16


def test_log_add():
    rng = np.random.default_rng(0)
    a, b = -(10 ** rng.uniform(-12, 3, (2, 200)))
    b[::4] = a[::4] + rng.normal(size=50)
    found = jax.jit(logs.log_add)(a, b)
    for x, y, value in zip(a, b, found, strict=True):
        truth = mp.log(mp.exp(mp.mpf(x)) + mp.exp(mp.mpf(y)))
        assert abs(mp.mpf(float(value)) - truth) <= 3e-16 * (1 + abs(truth))


@pytest.mark.parametrize(
    ("a", "b", "value", "slopes"),
    [
        (-1.0, -1.0, np.log(2) - 1, (0.5, 0.5)),
        (-np.inf, -2.0, -2.0, (0, 1)),
        (-2.0, -np.inf, -2.0, (1, 0)),
        (-np.inf, -np.inf, -np.inf, None),
        (np.inf, 0.0, np.inf, None),
    ],
)
def test_log_add_at_its_ends(a, b, value, slopes):
    np.testing.assert_allclose(logs.log_add(a, b), value, rtol=1e-15)
    found = jax.grad(logs.log_add, (0, 1))(a, b)
    if slopes is None:
        assert not np.isnan(np.asarray(found)).any() or np.isposinf(value)
    else:
        np.testing.assert_allclose(found, slopes, rtol=1e-15)


def test_log_cosh():
    x = np.asarray([0.0, 1e-9, -0.3, 2.0, -800.0, 1e300])
    truth = [
        float(mp.log(mp.cosh(v)) if abs(v) < 1e4 else abs(v) - mp.log(2)) for v in x
    ]
    found = logs.log_cosh(jnp.asarray(x))
    np.testing.assert_allclose(found, truth, rtol=1e-15, atol=2e-16)
    slopes = jax.vmap(jax.grad(logs.log_cosh))(x)
    np.testing.assert_allclose(slopes, np.tanh(x), rtol=1e-15, atol=2e-16)


def test_times():
    found = logs.times(
        jnp.asarray([0.0, 0.0, 2.0, 3.0]), np.asarray([-np.inf, 5, 4, np.inf])
    )
    np.testing.assert_array_equal(found, [0, 0, 8, np.inf])
    for count, value in ((0.0, -np.inf), (2.0, np.inf), (2.0, -np.inf)):
        slopes = jax.grad(logs.times, (0, 1))(count, value)
        assert not np.isnan(np.asarray(slopes)).any()
    np.testing.assert_array_equal(logs.times(0, jnp.asarray([-np.inf, 1.0])), [0, 0])
