"""A search that ends at its limit says that nothing is known, never the limit."""

import jax
import numpy as np
import pytest

import fdp_jax as fdp

# 1 / (2 s^2) + O(1 / s); with half of the records log 2 more or less does not show.
_NOISE = 1e-300, 1e-30, 1e-16, 1e-12, 1e-10, 3e-10, 1e-9


@pytest.mark.parametrize("wide", [False, True], ids=["32", "64"])
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
