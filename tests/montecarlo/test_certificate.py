"""Confidence limits fail as seldom as they say: exactly, for binomial counts."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fdp_jax.montecarlo._certificate import Moments, limits


@pytest.mark.parametrize("prob", [1e-4, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("level", [0.2, 1e-3])
def test_limits_of_binomial_counts_cover(prob, level):
    n = 400
    counts = np.arange(n + 1.0)
    mean = counts / n
    variance = mean * (1 - mean) * n / (n - 1)
    found = limits(
        Moments(jnp.asarray(float(n)), jnp.asarray(mean), jnp.asarray(variance)),
        -np.log(level),
    )
    lower, upper = map(np.asarray, found)
    weights = stats.binom.pmf(counts, n, prob)
    assert np.sum(weights[lower > prob]) <= level
    assert np.sum(weights[upper < prob]) <= level
    assert np.all(lower <= mean)
    assert np.all(mean <= upper)


def test_nothing_seen_is_hoeffdings_bound():
    n, level = 1e6, 1e-6
    zero = jnp.zeros(1)
    _, upper = limits(Moments(jnp.asarray(n), zero, zero), -np.log(level))
    assert np.isclose(upper[0], 1 - (level / 2) ** (1 / n), rtol=1e-6)


def test_small_variances_use_bernsteins_bound():
    n = 1e6
    mean, variance = jnp.asarray([0.5]), jnp.asarray([1e-8])
    lower, upper = limits(Moments(jnp.asarray(n), mean, variance), np.log(1e6))
    log = np.log(4e6)
    room = np.sqrt(2e-8 * log / n) + 7 * log / (3 * (n - 1))
    np.testing.assert_allclose([lower[0], upper[0]], [0.5 - room, 0.5 + room])
