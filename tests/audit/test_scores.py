"""Scores: no leak is found where there is none, whatever threshold is chosen."""

import numpy as np
import pytest
from audit.nulls import ApproxDP, Gaussian
from scipy.stats import binom, binomtest, norm

import fdp_jax as fdp
from fdp_jax.audit import Counts, Scores, Split

STRATEGIES = {
    "explicit": 0.5,
    "bonferroni": [-1.0, 0.0, 1.0, 2.0],
    "split": Split(0.5, 3),
    "ranks": "ranks",
    "dkw": "dkw",
}
LEVEL = 0.1


def _most(trials, level):
    """How often something of this probability may happen, but for one in a million."""
    return binom.isf(1e-6, trials, level)


@pytest.mark.parametrize("threshold", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("leak", [0.0, 1.5])
def test_bounds_of_gaussian_scores_are_covered(threshold, leak):
    rng = np.random.default_rng(11)
    trials, size = 400, 60
    over = np.zeros(3)
    delta = 0.05
    truth = float(fdp.tradeoff.Gaussian(leak).epsilon(delta=delta)) if leak else 0.0
    for _ in range(trials):
        scores = Scores(
            rng.normal(leak, 1, size), rng.normal(size=size), threshold=threshold
        )
        points = fdp.audit.tradeoff_points(scores, confidence=1 - LEVEL)
        exact = norm.cdf(norm.isf(points.alpha) - leak)
        found = points.epsilon(delta=delta) > truth, points.mu() > leak
        over += np.array([*found, np.any(exact > points.beta)])
    assert np.all(over <= _most(trials, LEVEL))


@pytest.mark.parametrize("threshold", STRATEGIES.values(), ids=STRATEGIES)
def test_p_values_keep_the_level(threshold):
    rng = np.random.default_rng(12)
    trials, size, null = 150, 15, Gaussian(1.0)
    p_values = np.array(
        [
            fdp.audit.falsifies(
                null,
                Scores(
                    rng.normal(1, 1, size), rng.normal(size=size), threshold=threshold
                ),
            ).p_value
            for _ in range(trials)
        ]
    )
    for level in (0.02, 0.1, 0.3):
        assert np.sum(p_values <= level) <= _most(trials, level)


@pytest.mark.parametrize("threshold", ["ranks", "dkw"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_bands_hold_at_all_thresholds_at_once(threshold, ties, size):
    rng = np.random.default_rng(13)
    trials, failures = 1000, 0
    for _ in range(trials):
        inside, outside = rng.random(size), rng.random(2 * size)
        if ties:  # on multiples of 1/8: P(score >= k/8) is 1 - k/8
            inside, outside = np.floor(8 * inside) / 8, np.floor(8 * outside) / 8
        scores = Scores(inside, outside, threshold=threshold)
        points = fdp.audit.tradeoff_points(scores, confidence=1 - LEVEL)
        cuts, *_ = fdp.audit._scores._cuts(inside, outside)
        missed = np.clip(np.ceil(8 * cuts) / 8 if ties else cuts, 0, 1)
        failures += np.any(missed > points.beta) or np.any(1 - missed > points.alpha)
    assert failures <= _most(trials, LEVEL)


def test_points_follow_their_definition():
    inside, outside = np.arange(10.0), np.arange(10.0) - 4.5
    stated = Scores(inside, outside, threshold=[1.0, 3.0])
    assert stated.counts() == [
        Counts(
            true_positives=9, false_negatives=1, false_positives=4, true_negatives=6
        ),
        Counts(
            true_positives=7, false_negatives=3, false_positives=2, true_negatives=8
        ),
    ]
    points = fdp.audit.tradeoff_points(stated, confidence=0.9)
    # Two thresholds and two error rates share the level of 0.1.
    np.testing.assert_allclose(
        points.alpha, [_upper(k, 10, 0.025) for k in (4, 2)], rtol=1e-8
    )
    p_values = [fdp.audit.falsifies(Gaussian(0.1), x).p_value for x in stated.counts()]
    found = fdp.audit.falsifies(Gaussian(0.1), stated).p_value
    assert found == pytest.approx(2 * min(p_values))
    margin = np.sqrt(np.log(1 / 0.05) / 20)
    points = fdp.audit.tradeoff_points(
        Scores(inside, outside, threshold="dkw"), confidence=0.9
    )
    assert min(points.alpha) == pytest.approx(margin)


def test_small_levels_are_shared_with_all_their_digits():
    """(1 - p)^n = tail where nothing was counted, solved by hand."""
    scores, number = [np.zeros(30), np.ones(30)], 100
    stated = Scores(scores[1], scores[0], threshold=np.full(number, 0.5))
    found = stated.points_at(1e-14).alpha
    np.testing.assert_allclose(
        found, -np.expm1(np.log(1e-14 / number / 2) / 30), rtol=1e-8
    )
    # All told apart: blind guesses are excluded where (tail / ranks)^(1 / n) is 1/2.
    size = 40
    ranks = fdp.audit._scores._ranks(size).size
    band = Scores(np.ones(size), np.zeros(size))
    p_value = fdp.audit.falsifies(ApproxDP(0.0, 0.0), band).p_value
    exact = 2 * ranks * 2.0**-size
    assert exact <= p_value <= exact * (1 + 1e-6)


def _upper(count, size, tail):
    test = binomtest(count, size, alternative="less")
    return test.proportion_ci(1 - tail, method="exact").high


def test_a_split_counts_what_it_did_not_look_at():
    rng = np.random.default_rng(1)
    scores = Scores(rng.normal(3, 1, 101), rng.normal(size=80), threshold=Split(0.25))
    (counts,) = scores.counts()
    assert (counts.num_in, counts.num_out) == (76, 60)
    assert scores.counts() == [counts]
    with pytest.raises(ValueError, match="counts needs thresholds that are stated"):
        Scores([1.0], [0.0]).counts()
    with pytest.raises(ValueError, match="out_scores must have scores for both parts"):
        Scores([1.0, 2.0], [0.0], threshold=Split()).counts()


def test_a_leak_is_found_by_every_strategy():
    rng = np.random.default_rng(2)
    inside, outside = rng.normal(2, 1, 2000), rng.normal(size=2000)
    truth = float(fdp.tradeoff.Gaussian(2.0).epsilon(delta=1e-2))
    for threshold in STRATEGIES.values():
        scores = Scores(inside, outside, threshold=threshold)
        bound = fdp.audit.epsilon_lower_bound(scores, delta=1e-2)
        assert truth > bound > 0.3 * truth
        assert fdp.audit.falsifies(Gaussian(1.0), scores)
        assert not fdp.audit.falsifies(Gaussian(2.1), scores)


def test_infinite_scores_and_equal_ones_are_allowed():
    scores = Scores([np.inf, 1.0, 1.0], [-np.inf, 1.0, 1.0])
    assert fdp.audit.epsilon_lower_bound(scores, delta=0.0) == 0.0
    counts = Counts.from_scores([np.inf, 1.0], [-np.inf, 1.0], threshold=1.0)
    assert counts == Counts(
        true_positives=2, false_negatives=0, false_positives=1, true_negatives=1
    )
