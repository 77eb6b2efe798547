"""Counts: coverage and level by enumeration of all outcomes of both binomials."""

import itertools

import numpy as np
import pytest
from audit.nulls import ApproxDP, Gaussian, Points, Subsampled
from scipy.stats import binom, norm

import fdp_jax as fdp

NULLS = [Gaussian(1.0), ApproxDP(0.7, 0.05), Subsampled(2.0, 0.4)]
SIZES = [(9, 9), (4, 13)]


def _outcomes(num_in, num_out):
    pairs = itertools.product(range(num_in + 1), range(num_out + 1))
    return [
        fdp.audit.Counts(
            true_positives=t,
            false_negatives=num_in - t,
            false_positives=x,
            true_negatives=num_out - x,
        )
        for t, x in pairs
    ]


def _chances(num_in, num_out, tpr, fpr):
    """Of all outcomes (last axis), at one or many pairs of rates."""
    hits, misses = (
        binom.pmf(np.arange(n + 1), n, np.asarray(rate)[..., None])
        for n, rate in ((num_in, tpr), (num_out, fpr))
    )
    every = hits[..., :, None] * misses[..., None, :]
    return every.reshape(*every.shape[:-2], -1)


@pytest.fixture(scope="module", params=itertools.product(NULLS, SIZES), ids=str)
def tested(request):
    """A null, sizes and the p-values of all outcomes."""
    null, sizes = request.param
    found = [fdp.audit.falsifies(null, x).p_value for x in _outcomes(*sizes)]
    return null, sizes, np.array(found)


def test_level_holds_everywhere_under_the_hypothesis(tested):
    null, (num_in, num_out), p_values = tested
    for fpr, share in itertools.product(np.linspace(0, 1, 41), (1.0, 0.9, 0.3)):
        chances = _chances(num_in, num_out, share * null.tpr(fpr=fpr), fpr)
        for level in np.unique(p_values):
            assert chances[p_values <= level].sum() <= level * (1 + 1e-12)


def test_p_values_are_the_supremum_and_not_just_above_it(tested):
    null, (num_in, num_out), p_values = tested
    fine = np.sort(
        np.concatenate([np.linspace(0, 1, 4001), np.geomspace(1e-9, 1, 800)])
    )
    chances = _chances(num_in, num_out, null.tpr(fpr=fine), fine)
    for level in np.unique(p_values[p_values < 0.5]):
        supremum = chances[:, p_values <= level].sum(axis=1).max()
        assert supremum <= level <= 1.03 * supremum


def test_more_evidence_gives_a_smaller_p_value(tested):
    _, (num_in, num_out), p_values = tested
    table = p_values.reshape(num_in + 1, num_out + 1)
    assert np.all(np.diff(table, axis=0) <= 0.02 * table[1:] + 1e-15)
    assert np.all(np.diff(table, axis=1) >= -0.02 * table[:, 1:] - 1e-15)


@pytest.mark.parametrize("delta", [0.0, 0.02])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("end", [0, 1])
def test_epsilon_is_covered_by_attacks_that_attain_it(epsilon, delta, end):
    num_in, num_out, level = 25, 20, 0.1
    found = np.array(
        [
            fdp.audit.epsilon_lower_bound(x, delta=delta, confidence=1 - level)
            for x in _outcomes(num_in, num_out)
        ]
    )
    null = ApproxDP(epsilon, delta)
    for fpr in np.linspace(0, 1, 51):
        tpr = null.tpr(fpr=fpr)
        rates = (tpr, fpr) if end == 0 else (1 - fpr, 1 - tpr)
        chances = _chances(num_in, num_out, *rates)
        assert chances[found > epsilon * (1 + 1e-12)].sum() <= level


def test_bounds_tend_to_a_known_leak():
    # Randomized response: both error rates are 1 / (1 + e).
    size, epsilon = 10**6, 1.0
    right = round(size * np.e / (1 + np.e))
    counts = fdp.audit.Counts(
        true_positives=right,
        false_negatives=size - right,
        false_positives=size - right,
        true_negatives=right,
    )
    assert epsilon > fdp.audit.epsilon_lower_bound(counts, delta=0.0) > 0.99
    hits, alarms = (round(size * float(norm.sf(x))) for x in (0.0, 1.0))
    counts = fdp.audit.Counts(
        true_positives=hits,
        false_negatives=size - hits,
        false_positives=alarms,
        true_negatives=size - alarms,
    )
    assert 1.0 > fdp.audit.mu_lower_bound(counts) > 0.99


def test_points_say_the_same_of_epsilon_delta_and_mu():
    points = fdp.audit.tradeoff_points(
        fdp.audit.Counts(
            true_positives=90, false_negatives=10, false_positives=20, true_negatives=80
        )
    )
    for delta in (0.0, 1e-5, 0.3):
        epsilon = points.epsilon(delta=delta)
        assert points.delta(epsilon=epsilon) == pytest.approx(delta, abs=1e-12)
        assert points.exclude(ApproxDP(epsilon - 1e-9, delta))
        assert not points.exclude(ApproxDP(epsilon + 1e-9, delta))
    assert points.exclude(Gaussian(points.mu() - 1e-9))
    assert not points.exclude(Gaussian(points.mu() + 1e-9))


def test_upper_bound_is_the_convex_hull():
    points = fdp.audit.TradeOffPoints(
        np.array([0.2, 0.5, 0.2]), np.array([0.4, 0.39, 0.6]), 0.9
    )
    at = np.array([0.0, 0.1, 0.2, 0.6, 1.0])
    np.testing.assert_allclose(
        points.upper(alpha=at), [1, 0.7, 0.4, 0.2, 0], rtol=1e-12
    )


def test_points_at_the_ends_say_nothing_wrong():
    points = fdp.audit.TradeOffPoints(
        np.array([0.0, 1.0, 0.3]), np.array([1.0, 1.0, 0.2]), 0.9
    )
    assert points.epsilon(delta=0.0) == pytest.approx(np.log(0.7 / 0.2))
    assert points.epsilon(delta=1.0) == 0.0
    assert points.delta(epsilon=1000.0) == 0.0
    assert points.mu() == pytest.approx(-norm.ppf(0.3) - norm.ppf(0.2))


COUNTS = fdp.audit.Counts(
    true_positives=57, false_negatives=43, false_positives=9, true_negatives=91
)
# One over the other, without and with the record.
CURVE = fdp.FromProbabilities([0.7, 0.2, 0.1], [0.3, 0.3, 0.4]).curve
REMOVE = Points((0, 0.1, 0.3, 1), (0, 0.4, 0.7, 1))


def test_directions_of_a_mechanism_are_hypotheses_of_their_own():
    found = fdp.audit.falsifies(CURVE().remove, COUNTS).p_value
    assert 0.001 < found < 0.1
    assert found == pytest.approx(fdp.audit.falsifies(REMOVE, COUNTS).p_value, rel=0.03)


@pytest.mark.slow
def test_both_directions_allow_no_less_than_either():
    found = fdp.audit.falsifies(CURVE().remove, COUNTS).p_value
    assert fdp.audit.falsifies(CURVE(), COUNTS).p_value >= found / 1.02


def test_a_verdict_is_true_if_it_falsifies():
    counts = fdp.audit.Counts(
        true_positives=90, false_negatives=10, false_positives=20, true_negatives=80
    )
    assert fdp.audit.falsifies(Gaussian(0.5), counts)
    assert not fdp.audit.falsifies(Gaussian(2.5), counts)
    verdict = fdp.audit.falsifies(Gaussian(1.6), counts, level=0.5)
    assert verdict.falsified == (verdict.p_value <= 0.5)


def test_perfect_attacks_and_blind_ones():
    perfect = fdp.audit.Counts(
        true_positives=10, false_negatives=0, false_positives=0, true_negatives=10
    )
    tail = 0.025 ** (1 / 10)  # both limits by hand
    assert fdp.audit.epsilon_lower_bound(perfect, delta=0.0) == pytest.approx(
        np.log(tail / (1 - tail)), rel=1e-7
    )
    assert fdp.audit.falsifies(ApproxDP(0.0, 1.0), perfect).p_value == 1.0
    blind = fdp.audit.Counts(
        true_positives=5, false_negatives=5, false_positives=5, true_negatives=5
    )
    assert fdp.audit.epsilon_lower_bound(blind, delta=0.0) == 0.0
    assert fdp.audit.falsifies(ApproxDP(0.0, 0.0), blind).p_value > 0.5
    # Blind guesses with one rate for all: the sum of squares of a binomial's parts.
    one = fdp.audit.Counts(
        true_positives=1, false_negatives=0, false_positives=0, true_negatives=1
    )
    p_value = fdp.audit.falsifies(ApproxDP(0.0, 0.0), one).p_value
    assert p_value == pytest.approx(0.25, rel=0.02)


def test_counts_in_another_order_are_refused():
    with pytest.raises(TypeError, match=r"by name, got 4 without .*tn, fp, fn, tp"):
        fdp.audit.Counts(1, 2, 3, 4)  # pyright: ignore[reportCallIssue]
