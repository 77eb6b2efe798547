"""Known numbers below the least normal float32 keep their digits."""

from typing import Any

import numpy as np
import pytest
from mpmath import mp
from scipy.stats import norm

import fdp_jax as fdp


@pytest.mark.parametrize("delta", [1e-39, 1e-300])
def test_delta_of_a_target(delta):
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=delta)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    # The query is certified on its own, see `calibrate`.
    spent = found.mechanism.bounds(delta=delta)
    assert float(spent.lower) <= 1.0
    assert float(spent.upper) <= 1 + 1e-6
    assert float(spent.upper) >= 1 - 1e-5


def test_tiny_type_one_error():
    target = fdp.targets.ErrorRates(alpha=1e-50, beta=0.5)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    # f(alpha) = Phi(Phi^-1(1 - alpha) - mu), which is 1/2 for mu the quantile.
    assert float(found.value) == pytest.approx(1 / norm.isf(1e-50), rel=1e-5)


def test_tiny_prior():
    target = fdp.targets.BayesError(error=1e-50, prior=2e-50)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    # Half of the least error is left: delta is 1/2 at epsilon = |logit(prior)|.
    mu, epsilon = 1 / float(found.value), -np.log(2e-50)
    above = np.exp(epsilon + norm.logsf(epsilon / mu + mu / 2))
    assert norm.sf(epsilon / mu - mu / 2) - above == pytest.approx(0.5, rel=1e-4)


def _pure(epsilon, delta, count):
    """The pure epsilon of so many releases, of whose losses the largest alone counts.

    delta = (e^(k x) - e^epsilon) / (1 + e^x)^k.
    """
    numbers: Any = mp
    with numbers.workdps(150):
        excess = lambda x: mp.exp(count * x) - mp.exp(epsilon)
        gap = lambda x: excess(x) / (1 + mp.exp(x)) ** count - delta
        return float(numbers.findroot(gap, mp.mpf(epsilon) / count))


@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-30, 1e-100])
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_no_delta_is_left_next_to_the_root(epsilon, delta):
    """Beyond a bounded loss there is none: no secant leads back from there."""
    target = fdp.targets.ApproxDP(epsilon=epsilon, delta=delta)
    single = epsilon - 2 * np.log1p(-delta)  # of Laplace noise, 1 / noise
    pure, thrice = _pure(epsilon, delta, 1), _pure(epsilon, delta, 3)
    for family, name, truth in (
        (fdp.Laplace(), "noise_multiplier", 1 / single),
        (fdp.ReportNoisyMax(), "noise_multiplier", 2 / single),
        (fdp.RandomizedResponse(None), "epsilon0", pure),
        (fdp.PureDP(None).repeat(3), "parts.0.epsilon0", thrice),
    ):
        found = fdp.calibrate(family, target, solve_for=name)
        # The next number of a float32 program.
        assert float(found.value) == pytest.approx(truth, rel=3e-7)
        assert float(found.mechanism.delta(epsilon=epsilon)) <= delta
