"""Probabilities of counts against mpmath, over their whole range."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted

from fdp_jax._internal import _counts as counts

EPS = float(np.finfo(float).eps)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def exact(x):
    return mp.mpf(float(x))


def exact_stirling_error(k):
    k = exact(k)
    return mp.loggamma(k + 1) - (k + 0.5) * mp.log(k) + k - mp.log(2 * mp.pi) / 2


def exact_deviance(k, mean):
    k, mean = exact(k), exact(mean)
    return k * mp.log(k / mean) + mean - k if k else mean


def exact_log_poisson(k, mean):
    k, mean = exact(k), exact(mean)
    return k * mp.log(mean) - mean - mp.loggamma(k + 1)


def exact_log_binomial(k, n, log_p, log_q):
    k, n = exact(k), exact(n)
    ways = mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)
    return ways + k * log_p + (n - k) * log_q


def largest_error(found, truth, scale=abs):
    errors = [abs(exact(x) - t) / scale(t) for x, t in zip(found, truth, strict=True)]
    return float(max(errors)) / EPS


def whole_numbers(rng, size, digits):
    return np.round(10 ** rng.uniform(0, digits, size))


def test_error_of_stirlings_formula():
    k = np.unique(np.r_[1:200, np.round(np.logspace(1, 15, 200))])
    found = jax.jit(counts.stirling_error)(k)
    assert largest_error(found, map(exact_stirling_error, k)) < 2
    far = jax.jit(counts.stirling_error)(jnp.asarray([1e200, 1e308]))
    np.testing.assert_allclose(far, [1 / 12e200, 1 / 12e308], rtol=1e-15)


def test_deviance_of_any_size():
    rng = np.random.default_rng(0)
    k = whole_numbers(rng, 1500, 12)
    k[:300] = rng.integers(1, 30, 300)
    # Relative distances down to 1e-9, both sides of where the formula changes, and far.
    log_ratio = rng.normal(size=1500) * 10 ** rng.uniform(-9, 0, 1500)
    log_ratio[::3] = rng.uniform(-2, 2, 500)
    log_ratio[::15] = rng.uniform(-300, 250, 100)
    mean = k * np.exp(log_ratio)
    found = counts.deviance(k, mean)
    truth = [exact_deviance(*pair) for pair in zip(k, mean, strict=True)]
    assert largest_error(found, truth, lambda t: t or 1) < 4


@pytest.mark.parametrize(
    ("k", "mean"), [(0, 3.7), (3, 3e-308), (1e9, 1e-305), (5, 1e200), (1e200, 2e200)]
)
def test_deviance_at_the_ends_of_its_range(k, mean):
    found, slope = jax.value_and_grad(counts.deviance, 1)(float(k), mean)
    assert largest_error([found], [exact_deviance(k, mean)]) < 8
    assert np.isfinite(slope)


def test_poisson_probabilities():
    rng = np.random.default_rng(1)
    mean = 10 ** rng.uniform(-6, 9, 1200)
    k = np.round(mean + np.sqrt(mean) * rng.normal(size=1200) * 8)
    k = np.maximum(k, rng.integers(0, 4, 1200))
    k[::4] = np.round(mean[::4] * rng.uniform(0, 3, 300))
    truth = [exact_log_poisson(*pair) for pair in zip(k, mean, strict=True)]
    found = counts.log_poisson(k, mean)
    assert largest_error(found, truth, lambda t: 1 + abs(t)) < 4


def _binomials(rng, size):
    n = whole_numbers(rng, size, 7)
    p = 10 ** rng.uniform(-6, -1e-3, size)
    p[::2] = rng.uniform(0.001, 0.999, size // 2)
    k = np.round(n * p + np.sqrt(n * p * (1 - p)) * rng.normal(size=size) * 6)
    k[::5] = np.round(n[::5] * rng.uniform(0, 1, size // 5))
    return np.clip(k, 0, n), n, p


def test_binomial_probabilities():
    k, n, p = _binomials(np.random.default_rng(2), 1200)
    found = jax.jit(counts.log_binomial)(k, n, p)
    truth = [
        exact_log_binomial(x, m, mp.log(exact(s)), mp.log1p(-exact(s)))
        for x, m, s in zip(k, n, p, strict=True)
    ]
    error = np.asarray([float(exact(a) - b) for a, b in zip(found, truth, strict=True)])
    inherent = 1 + np.abs(k - n * p) + np.abs(np.asarray(truth, float))
    assert np.max(np.abs(error) / inherent) < 2 * EPS


def test_binomial_probabilities_by_logits():
    k, n, p = _binomials(np.random.default_rng(3), 1200)
    logit = np.log(p) - np.log1p(-p)
    logit[::7] = np.sign(logit[::7]) * 10 ** np.random.default_rng(4).uniform(
        1, 2.5, logit[::7].size
    )
    found = jax.jit(counts.log_binomial_at_logit)(logit, n, k)
    softplus = lambda x: mp.log1p(mp.exp(exact(x)))
    truth = [
        exact_log_binomial(x, m, -softplus(-u), -softplus(u))
        for x, m, u in zip(k, n, logit, strict=True)
    ]
    error = np.asarray([float(exact(a) - b) for a, b in zip(found, truth, strict=True)])
    mean = n / (1 + np.exp(-logit))
    inherent = 1 + np.abs(k - mean) + np.abs(np.asarray(truth, float))
    assert np.max(np.abs(error) / inherent) < 4 * EPS


def test_certain_outcomes():
    binomial = jitted(counts.log_binomial)
    k = jnp.asarray([0.0, 3.0, 7.0])
    n = jnp.full(3, 7.0)
    never, always = (binomial(k, n, jnp.full(3, p)) for p in (0.0, 1.0))
    np.testing.assert_array_equal(never, [0, -np.inf, -np.inf])
    np.testing.assert_array_equal(always, [-np.inf, -np.inf, 0])
    none = binomial(jnp.zeros(3), jnp.zeros(3), jnp.asarray([0, 0.4, 1]))
    np.testing.assert_array_equal(none, 0)
    far = counts.log_binomial_at_logit(jnp.asarray([-800.0, 800.0]), 2.0, 1.0)
    np.testing.assert_allclose(far, np.log(2) - 800, rtol=1e-15)


def test_derivatives():
    slope = jitted(jax.vmap(jax.grad(counts.log_poisson, 1)))
    k, mean = np.asarray([0.0, 1.0, 20.0, 21.0, 1e6]), np.asarray([2.0, 2, 2, 20, 1e6])
    np.testing.assert_allclose(slope(k, mean), k / mean - 1, rtol=1e-15)
    bend = jitted(jax.vmap(jax.grad(jax.grad(counts.log_poisson, 1), 1)))
    np.testing.assert_allclose(bend(k, mean), -k / mean**2, rtol=1e-15)

    k, n = np.asarray([0.0, 3.0, 50.0, 70.0, 100.0]), np.full(5, 100.0)
    p, logit = np.full(5, 0.3), np.full(5, np.log(3 / 7))
    slope = jitted(jax.vmap(jax.grad(counts.log_binomial, 2)))
    np.testing.assert_allclose(slope(k, n, p), (k - 30) / 0.21, rtol=1e-14)
    ends = slope(k, n, jnp.asarray([0.0, 0.0, 1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(ends, 0)
    slope = jitted(jax.vmap(jax.grad(counts.log_binomial_at_logit)))
    np.testing.assert_allclose(slope(logit, n, k), k - 30, rtol=1e-14)
    bend = jitted(jax.vmap(jax.grad(jax.grad(counts.log_binomial_at_logit))))
    np.testing.assert_allclose(bend(logit, n, k), -21, rtol=1e-14)


def test_counts_have_no_derivative():
    for function in (counts.deviance, counts.log_poisson):
        assert float(jax.grad(function)(3.0, 4.0)) == 0
    slopes = jax.grad(counts.log_binomial, (0, 1))(*map(jnp.asarray, (3.0, 9.0, 0.4)))
    np.testing.assert_array_equal(slopes, 0)


def test_single_precision_is_kept():
    k, mean = jnp.float32([0, 3, 200]), jnp.float32([0.5, 2.0, 150.0])
    found = counts.log_poisson(k, mean)
    assert found.dtype == jnp.float32
    truth = [exact_log_poisson(*pair) for pair in zip(k, mean, strict=True)]
    np.testing.assert_allclose(found, np.asarray(truth, float), rtol=1e-6)
    found = counts.log_binomial_at_logit(jnp.float32(-0.3), jnp.float32(300), k)
    assert found.dtype == jnp.float32
    whole = counts.log_binomial_at_logit(-0.3, 300.0, k.astype(float))
    np.testing.assert_allclose(found, whole, rtol=1e-5)
