"""Known numbers below the least normal float32 keep their digits."""

import numpy as np
import pytest
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
