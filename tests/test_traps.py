"""Mistakes that were found in another library's accountant, and are not made here.

The list is that of a public audit: JetBrains-Research/opake,
`.audit-checkpoint/master3-sections/sec-accounting.md`.
"""

import dataclasses
import math
import re

import pytest
from scipy.stats import norm

import fdp_jax as fdp

_STEP = fdp.PoissonSubsampled(fdp.Gaussian(1.0), sampling_prob=0.1)


@pytest.mark.parametrize(
    "run",
    [
        fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=100),
        fdp.Gaussian(1.0).repeat(100),
        fdp.compose(fdp.Gaussian(1.0), fdp.Laplace(1.0)),
        _STEP.repeat(10),
    ],
    ids=["run", "repeated", "composed", "sampled steps"],
)
def test_a_whole_run_is_not_sampled_once_more(run):
    with pytest.raises(TypeError, match="subsample each step, then repeat"):
        fdp.PoissonSubsampled(run, sampling_prob=0.01)


def test_changed_copies_are_checked_as_new_ones():
    with pytest.raises(ValueError, match="sampling_prob must be in"):
        dataclasses.replace(_STEP, sampling_prob=1.5)
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=100)
    with pytest.raises(TypeError, match="must be a single release"):
        dataclasses.replace(_STEP, mechanism=run)


def test_sampling_with_probability_one_is_no_sampling():
    step = fdp.PoissonSubsampled(fdp.Gaussian(2.0), sampling_prob=1.0)
    truth = norm.sf(-0.25 + 2) - math.e * norm.sf(0.25 + 2)
    assert float(step.delta(epsilon=1.0)) == pytest.approx(truth, rel=1e-6)


def test_what_an_error_allows_is_allowed():
    with pytest.raises(ValueError, match="got 'bnd'") as refused:
        fdp.Gaussian(1.0).using("bnd")
    said = str(refused.value).split("got")[0]
    names = [x for x in re.findall(r"['\"](\w+)['\"]", said) if x != "method"]
    assert names
    for name in names:
        fdp.Gaussian(1.0).using(name)


def test_what_was_calibrated_meets_its_target_when_asked_again():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    sigma = float(found.value)
    truth = norm.sf(sigma - 0.5 / sigma) - math.e * norm.sf(sigma + 0.5 / sigma)
    assert truth <= 1e-5
    assert truth >= 1e-5 * (1 - 1e-4)


def test_an_unreachable_target_is_a_value_error():
    assert issubclass(fdp.UnreachableTarget, ValueError)
