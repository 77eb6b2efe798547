"""Known numbers below the least normal float32 keep their digits."""

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    "target",
    [
        fdp.targets.ErrorRates(alpha=1e-50, beta=0.5),
        fdp.targets.BayesError(error=1e-50, prior=2e-50),
        fdp.targets.Advantage(1e-50),
    ],
    ids=lambda x: type(x).__name__,
)
def test_other_targets(target):
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    assert np.isfinite(float(found.value)) and float(found.value) > 0
