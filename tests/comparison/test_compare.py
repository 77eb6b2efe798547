"""The readable comparison, and its pictures."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax import comparison as cmp

GAUSS, LAPLACE = fdp.Gaussian(1.0), fdp.Laplace(1.0)


@pytest.fixture(scope="module")
def found():
    return fdp.compare(GAUSS, LAPLACE)


def test_text_says_who_is_worse_and_where(found):
    text = str(found)
    assert "Neither is more private" in text
    assert "Delta(a || b) in [0.0052722" in text
    assert "prior 0.5" in text
    assert found.a == "Gaussian(noise_multiplier=1)"
    whose = [who for _, _, who in found.regions]
    assert whose == ["a", "b", "a"]
    assert found.regions[0][:2] == pytest.approx((0.0, 0.41853937663701369))
    # At prior 1/2 the best attacks reject half-lines at -1/2 of the loss's mean.
    assert found.b_worse.alpha_a == pytest.approx(0.3085, abs=2e-4)
    # Elsewhere at +-1: Phi(-3/2) of the Gaussian, a vertex of the Laplace curve.
    rates = (0.066807, 0.691462)[int(found.a_worse.prior < 0.5)]
    assert found.a_worse.alpha_a == pytest.approx(rates, abs=1e-3)


def test_json_has_finite_numbers_only(found):
    data = json.loads(found.to_json(allow_nan=False))
    assert data["verdict"] == "neither"
    assert len(data["crossings"]) == 2
    pair = data["delta_divergence"]["a_b"]
    assert pair["lower"] <= pair["estimate"] <= pair["upper"]
    assert {row["less_private"] for row in data["regions"]} == {"a", "b"}
    json.loads(fdp.compare(GAUSS, fdp.Gaussian(2.0)).to_json(allow_nan=False))


def test_dominated_and_equal_guarantees():
    assert fdp.compare(GAUSS, fdp.Gaussian(2.0)).verdict == "a dominates"
    assert fdp.compare(fdp.Gaussian(2.0), GAUSS).verdict == "b dominates"
    same = fdp.compare(GAUSS, GAUSS)
    assert same.verdict == "equal"
    assert same.regions == ()


@pytest.mark.parametrize("swapped", [False, True])
def test_text_does_not_take_back_a_dominance(swapped):
    # At priors beyond e^2 the other one is worse, by delta = 1e-11 at most.
    pair = fdp.ApproxDP(epsilon=2.0, delta=0.0), fdp.ApproxDP(epsilon=1.0, delta=1e-11)
    found = fdp.compare(*(pair[::-1] if swapped else pair))
    worse, other = ("b", "a") if swapped else ("a", "b")
    assert found.verdict == f"{worse} dominates"
    assert [who for _, _, who in found.regions] == ["neither", worse, "neither"]
    text = str(found)
    assert f"{other} is at least as private as {worse} against every" in text
    assert f"{other} is less private" not in text
    conceded = text.split("a regret of ")[1].split(" ")[0]
    assert text.count(f"equally private, to within {conceded}\n") == 2
    assert float(conceded) <= 1e-9
    edge = 1 / (1 + np.exp(2.0))
    assert found.regions[1][:2] == pytest.approx((edge, 1 - edge))


def test_table_is_certified(found):
    for prior, _, one, other in found.table:
        for value, mechanism in ((one, GAUSS), (other, LAPLACE)):
            exact = mechanism.bounds(prior=prior)
            assert value <= exact.upper
            assert value == pytest.approx(float(exact.estimate), rel=1e-9)


def test_certified_errors_at_all_priors():
    errors = cmp.certified_bayes_errors(GAUSS, LAPLACE)
    prior = np.asarray(errors.prior)
    assert np.all(np.diff(prior) >= 0)
    assert np.all(np.asarray(errors.a.lower) <= np.asarray(errors.a.upper))
    with pytest.raises(ValueError, match="priors"):
        cmp.certified_bayes_errors(GAUSS, LAPLACE, priors=[0.0, 0.5])


def test_describe_names_directions_and_numbers():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=10)
    text = cmp.describe(run.remove)
    assert text.startswith("DPSGD(")
    assert text.endswith(".remove")
    assert "sampling_prob=0.01" in text


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("bayes_error", "linear"),
        ("bayes_error", "logit"),
        ("difference", "linear"),
        ("tradeoff", "log"),
        ("profile", "linear"),
    ],
)
def test_pictures(kind, scale):
    figure, ax = plt.subplots()
    assert fdp.plot.compare(GAUSS, LAPLACE, ax, kind=kind, scale=scale) is ax
    figure.canvas.draw()
    assert len(ax.lines) >= 2


def test_picture_of_the_bayes_error_of_one_mechanism():
    ax = fdp.plot.bayes_error(GAUSS)
    ax.figure.canvas.draw()
    line = next(line for line in ax.lines if line.get_label() == "remove")
    exact = np.asarray(GAUSS.bayes_error(prior=np.asarray(line.get_xdata())))
    assert np.all(np.asarray(line.get_ydata()) <= exact + 1e-9)
    with pytest.raises(ValueError, match="scale must be"):
        fdp.plot.bayes_error(GAUSS, scale="log")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="kind must be"):
        fdp.plot.compare(GAUSS, LAPLACE, kind="pie")  # pyright: ignore
