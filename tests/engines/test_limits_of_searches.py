"""A search that ends at its limit says that nothing is known, never the limit."""

import jax
import numpy as np
import pytest

import fdp_jax as fdp

# 1 / (2 s^2) + O(1 / s); with half of the records log 2 more or less does not show.
_NOISE = 1e-300, 1e-30, 1e-16, 1e-12, 1e-10, 3e-10, 1e-9


@pytest.mark.parametrize(
    "wide", [pytest.param(False, marks=pytest.mark.slow), True], ids=["32", "64"]
)
def test_one_step_with_hardly_any_noise(wide):
    with jax.enable_x64(wide):
        for noise in _NOISE:
            for q in (0.5, 1.0):
                run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=q, num_steps=1)
                found = run.bounds(delta=1e-5)
                truth = 0.5 / noise / noise if noise > 1e-150 else np.inf
                assert float(found.upper) >= truth * (1 - 1e-6)
                assert float(found.lower) <= truth * (1 + 1e-6)
                if np.isinf(found.upper):
                    assert int(found.status) == fdp.Status.VACUOUS
                else:
                    assert float(found.upper) <= truth * (1 + 1e-5)


def test_logistic_noise_of_hardly_any_scale():
    # The losses are at most 1 / s; delta is (1 - e^((eps - 1 / s) / 2))^2, or less.
    for scale in (1e-300, 1e-100, 1e-30, 1e-16, 1e-8, 1e-3):
        with jax.enable_x64(True):
            found = fdp.Logistic(scale).bounds(delta=1e-5)
            truth = 1 / scale + 2 * np.log1p(-np.sqrt(1e-5))
            assert float(found.lower) <= truth <= float(found.upper)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-100, 1e-30, 1.0])
def test_divergences_that_overflow_are_infinite(scale):
    with jax.enable_x64(True):
        run = fdp.Gaussian(scale)
        truth = 0.5 / scale**2 if scale > 1e-150 else np.inf
        rho = fdp.divergences.zcdp(run)
        assert truth <= rho <= truth * (1 + 1e-9)
        spent = fdp.accounting.ZCDPOdometer().step(run)
        assert float(spent.epsilon(1e-5)) >= truth * (1 - 1e-9)
