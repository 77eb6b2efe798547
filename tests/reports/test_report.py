"""Reports: bounds, wording, JSON."""

import json

import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.reports import parameters, round_down, round_up

# tests/data/dpsgd_truth.json, configuration lownoise_s0.6.
REMOVE, ADD = 7.4336138210, 3.1775514708


@pytest.fixture(scope="module")
def report():
    run = fdp.DPSGD(noise_multiplier=0.6, sampling_prob=0.01, num_steps=1000)
    return fdp.reports.privacy_report(run, delta=1e-5)


def test_intervals_hold_the_truth_in_each_direction(report):
    for interval, truth in (
        (report.epsilon, REMOVE),
        (report.epsilon_remove, REMOVE),
        (report.epsilon_add, ADD),
    ):
        assert interval.lower <= truth * (1 + 1e-9)
        assert interval.upper >= truth * (1 - 1e-9)
        assert interval.lower <= interval.estimate <= interval.upper
        np.testing.assert_allclose(interval.estimate, truth, rtol=1e-9)


def test_attack_numbers_are_bounds(report):
    # beta at alpha = 0.01 is 0.87549789062818 in the truth file.
    assert report.tpr[0.01] >= 1 - 0.87549789062818
    np.testing.assert_allclose(report.tpr[0.01], 1 - 0.87549789062818, rtol=1e-6)
    assert 0 < report.bayes_error < 0.5
    np.testing.assert_allclose(report.advantage, 1 - 2 * report.bayes_error, rtol=1e-9)


def test_json_form_is_json_and_says_what_it_assumes(report):
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document["status"] == "certified"
    assert document["bound"] == "pessimistic"
    assert document["assumptions"]["sampling"] == "Poisson sampling"
    assert document["epsilon"]["lower"] <= document["epsilon"]["upper"]
    assert set(document["attack"]["tpr_upper_at_fpr"]) == {"0.001", "0.01", "0.1"}


def test_text_states_guarantee_relation_and_sampling(report):
    text = report.text()
    assert report.guarantee in text
    for phrase in ("add or remove one record", "Poisson sampling", "7.43362"):
        assert phrase in text
    assert max(map(len, text.splitlines())) <= 88


def test_vacuous_result_is_said_so():
    report = fdp.reports.privacy_report(fdp.Gaussian(1.0), delta=0.0)
    assert report.epsilon.upper == float("inf")
    assert report.guarantee == "no finite epsilon certified at delta = 0"
    json.dumps(report.to_dict(), allow_nan=False)


def test_unsubsampled_mechanism_says_so():
    report = fdp.reports.privacy_report(fdp.Gaussian(2.0), delta=1e-5)
    assert report.sampling == "no subsampling"
    assert "Poisson" not in report.text()


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3, 2.38178123456, 1e-300, 123456.7])
def test_printed_digits_are_rounded_outwards(value):
    assert float(round_up(value, 5)) >= value
    assert float(round_down(value, 5)) <= value
    np.testing.assert_allclose(float(round_up(value, 5)), value, rtol=1.1e-4)


def test_parameters_of_a_composition_carry_their_place():
    mixed = fdp.compose(fdp.Gaussian(4.0), fdp.Laplace(20.0).repeat(5))
    names = parameters(mixed)
    assert 4.0 in names.values()
    assert any(name.endswith("num_steps[1]") for name in names), names
