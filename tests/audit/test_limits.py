"""Clopper-Pearson limits against SciPy's own search and exact binomial coverage."""

import numpy as np
import pytest
import scipy.stats

import fdp_jax as fdp


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize(("count", "size"), [(0, 7), (3, 7), (7, 7), (12, 400)])
def test_limits_are_those_of_scipy(count, size, alternative):
    found = fdp.audit.clopper_pearson(
        count, size, confidence=0.9, alternative=alternative
    )
    test = scipy.stats.binomtest(count, size, alternative=alternative)
    limits = test.proportion_ci(0.9, method="exact")
    np.testing.assert_allclose(found, [limits.low, limits.high], rtol=1e-8)
    assert found[0] <= limits.low
    assert found[1] >= limits.high


def test_coverage_is_nominal_at_every_probability():
    size, every = 17, np.arange(18)
    low, high = fdp.audit.clopper_pearson(every, size, confidence=0.9)
    for prob in np.linspace(0.0, 1.0, 201):
        inside = (low <= prob) & (prob <= high)
        assert inside @ scipy.stats.binom.pmf(every, size, prob) >= 0.9


def test_small_levels_keep_their_digits():
    # (1 - p)^n = tail, solved by hand.
    _, high = fdp.audit.clopper_pearson(0, 50, confidence=1 - 1e-12, alternative="less")
    assert high == pytest.approx(-np.expm1(np.log(1e-12) / 50), rel=1e-5)
