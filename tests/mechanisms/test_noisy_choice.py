"""Noisy maxima and thresholds against the laws of their answers, by integration."""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import fdp_jax as fdp

EPSILONS = np.array([0.0, 0.2, 0.5, 0.8])


def _most_deltas(p, q):
    """The larger deltas of two laws of few outputs, at the epsilons."""
    gaps = [b - np.exp(EPSILONS)[:, None] * a for a, b in ((p, q), (q, p))]
    return np.max([np.maximum(gap, 0).sum(axis=1) for gap in gaps], axis=0)


# ------------------------------------------------------------------- the noisy maximum


def _winners(scores, scale, law: Any = stats.laplace):
    """Probabilities of the largest noisy score, by a sum of cells."""
    x = np.linspace(-40 * scale, 40 * scale, 30_001)
    below = law.cdf(x[:, None], loc=scores, scale=scale)
    middle = 0.5 * (below[1:] + below[:-1])
    parts = [
        np.diff(below[:, i]) @ np.prod(np.delete(middle, i, axis=1), axis=1)
        for i in range(scores.size)
    ]
    return np.array(parts)


@pytest.mark.parametrize("monotonic", [False, True])
def test_maxima_with_laplace_noise_are_dominated_by_their_pair(monotonic):
    scale = 2.0
    mechanism = fdp.ReportNoisyMax(scale, monotonic=monotonic)
    bounds = np.array([float(mechanism.delta(epsilon=e)) for e in EPSILONS])
    random, found = np.random.default_rng(0), []
    for _ in range(15):
        scores = random.uniform(0, 4, size=random.integers(2, 5))
        change = random.choice([0, 1] if monotonic else [-1, 1], size=scores.size)
        laws = [_winners(x, scale) for x in (scores, scores + change)]
        assert np.allclose([law.sum() for law in laws], 1, atol=1e-6)
        found.append(_most_deltas(*laws))
    most = np.max(found, axis=0)
    assert np.all(most <= bounds + 1e-6)  # what the cells add up to, see above
    assert most[0] > 0.4 * bounds[0]


@pytest.mark.parametrize(
    ("noise", "law"),
    [
        ("laplace", stats.laplace),
        ("exponential", stats.expon),
        ("gumbel", stats.gumbel_r),
    ],
)
def test_two_candidates_that_change_places_leak_the_other_end(noise, law):
    mechanism = fdp.ReportNoisyMax(2.0, noise=noise)
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    p, q = once = [_winners(x, 2.0, law) for x in scores]
    twice = [np.outer(x, x).ravel() for x in (p, q)]
    for laws, count in ((once, 1), (twice, 2)):
        found = mechanism.repeat(count).bounds(epsilon=EPSILONS)
        exact = _most_deltas(*laws)
        assert np.all(exact <= np.asarray(found.upper) + 1e-5)
        if count == 2 or noise == "laplace":
            assert np.asarray(found.lower) == pytest.approx(exact, abs=1e-5)
    # Of a threshold between the scores one release leaks all of the pair.
    if noise != "laplace":
        assert np.all(np.asarray(mechanism.bounds(epsilon=EPSILONS).status) == 0)


def test_searches_and_choices_are_not_said_to_leak_what_they_may_not():
    # With little noise of the threshold alone its total variation is below .3935.
    search = fdp.AboveThreshold(1.0, query_ratio=1e6)
    assert float(search.bounds(epsilon=0.0).lower) <= 0.3934
    found = fdp.compare(search, fdp.Laplace(1.0))
    assert found.verdict == "undecided"
    assert found.a_worse.regret[0] == 0


def test_noises_that_are_other_mechanisms():
    epsilon = 0.5  # weights exp(epsilon score / 2): Gumbel noise of scale 2 / epsilon
    for kind, noise in (
        (fdp.ExponentialMechanism, "gumbel"),
        (fdp.PermuteAndFlip, "exponential"),
    ):
        for monotonic in (False, True):
            named = kind(epsilon, monotonic=monotonic)
            noisy = fdp.ReportNoisyMax(2 / epsilon, noise=noise, monotonic=monotonic)
            assert float(noisy.delta(epsilon=0.1)) == float(named.delta(epsilon=0.1))


def test_pure_epsilon_of_laplace_noise_is_approached():
    pair, farther = fdp.ReportNoisyMax(4.0).group(2), fdp.ReportNoisyMax(2.0)
    assert float(pair.delta(epsilon=0.3)) == float(farther.delta(epsilon=0.3))
    # A candidate that hardly ever wins.
    far = [_winners(np.array([-30.0 + s, 0.0 - s]), 2.0)[0] for s in (0, 1)]
    assert math.log(far[1] / far[0]) == pytest.approx(1.0, abs=0.12)
    assert float(fdp.ReportNoisyMax(2.0).epsilon(delta=0.0)) == pytest.approx(1.0)


# ------------------------------------------------------------------ above the threshold

_Z = np.linspace(-400.0, 400.0, 8_001)
"""Values of the noisy threshold: what is proved holds for such a law as well."""


def _answers(scores, threshold_noise, query_noise, most, law: Any = stats.laplace):
    """Probabilities of all sequences of answers."""
    above = law.sf(_Z[:, None], loc=scores, scale=query_noise)
    below = law.cdf(_Z[:, None], loc=scores, scale=query_noise)
    weights = law.pdf(_Z, scale=threshold_noise)
    weights = weights / weights.sum()
    found = {}
    for pattern in itertools.product((0, 1), repeat=scores.size):
        ends = [i + 1 for i in range(scores.size) if sum(pattern[: i + 1]) == most]
        told = pattern[: ends[0]] if ends else pattern
        parts = [(above if x else below)[:, i] for i, x in enumerate(told)]
        found[told] = float(np.prod(parts, axis=0) @ weights)
    return found


@pytest.mark.parametrize(("most", "monotonic"), [(1, False), (2, False), (2, True)])
def test_answers_of_above_threshold_are_dominated(most, monotonic):
    noise = 4.0
    search = fdp.AboveThreshold(noise, num_above=most, monotonic=monotonic)
    query_noise = float(search.query_noise_multiplier)
    pure = 1 / noise + (1 if monotonic else 2) * most / query_noise
    assert float(search.epsilon(delta=0.0)) == pytest.approx(pure, rel=1e-12)
    bounds = np.array([float(search.delta(epsilon=e)) for e in EPSILONS])
    losses = []
    for scores in ([0.0, 0.0, 0.0], [3.0, -2.0, 4.0], [15.0, 15.0, -9.0]):
        p = _answers(np.array(scores), noise, query_noise, most)
        assert sum(p.values()) == pytest.approx(1, abs=1e-12)
        for change in itertools.product((0, 1) if monotonic else (-1, 1), repeat=3):
            q = _answers(np.array(scores) + change, noise, query_noise, most)
            both = np.array([[x[key] for key in p] for x in (p, q)])
            losses.append(np.max(np.abs(np.log(both[0] / both[1]))))
            assert np.all(_most_deltas(*both) <= bounds + 1e-9)
    assert 0.3 * pure < max(losses) <= pure * (1 + 1e-9)


@pytest.mark.parametrize(("most", "monotonic"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("ratio", [None, 0.5])
def test_answers_of_above_threshold_with_gaussian_noise_are_dominated(
    most, monotonic, ratio
):
    noise, moved = 2.0, 1 if monotonic else 2
    query_noise = noise * ((moved * most**0.5) ** 0.5 if ratio is None else ratio)
    search = fdp.AboveThreshold.with_gaussian_noise(
        noise, num_queries=3, num_above=most, query_ratio=ratio, monotonic=monotonic
    )
    bounds = np.array([float(search.delta(epsilon=e)) for e in EPSILONS])
    orders = 1 + np.geomspace(1e-2, 1e4, 300)
    limits = np.asarray(search.divergence(jnp.asarray(orders)))
    for scores in ([0.0, 0.0, 0.0], [3.0, -2.0, 4.0], [15.0, 15.0, -9.0]):
        p = _answers(np.array(scores), noise, query_noise, most, stats.norm)
        for change in itertools.product((0, 1) if monotonic else (-1, 1), repeat=3):
            q = _answers(np.add(scores, change), noise, query_noise, most, stats.norm)
            both = np.array([[x[key] for key in p] for x in (p, q)])
            assert np.all(_most_deltas(*both) <= bounds)
            for one, other in (both, both[::-1]):
                some = one > 0
                logs = np.log(one[some]), np.log(other[some])
                t = orders[:, None]
                sums = np.logaddexp.reduce(t * logs[0] + (1 - t) * logs[1], axis=1)
                assert np.all(sums / (orders - 1) <= limits)
    # One query is a randomized answer: no less than what the threshold itself costs.
    assert float(search.divergence(jnp.asarray(2.0))) >= 1 / noise**2


def test_searches_with_gaussian_noise_compose_and_move_as_their_formula():
    search = functools.partial(
        fdp.AboveThreshold.with_gaussian_noise, num_queries=1000, num_above=4
    )
    found = search(10.0)
    orders = 1 + np.geomspace(1.0, 1e12, 640)
    ways = 4 * (1 + math.log(250))  # less than 4 log(1001)
    # Where it falls in the order, those of larger ones are less.
    least = np.maximum(orders, 1 + math.sqrt(ways / 0.025))
    wanted = 0.025 * least + ways / (least - 1)
    np.testing.assert_allclose(
        found.divergence(jnp.asarray(orders)), wanted, rtol=1e-11
    )
    # A little better than the conversion of Mironov (2017).
    usual: Any = optimize.minimize_scalar(
        lambda x: 0.025 * x + (ways + math.log(1e6)) / (x - 1),
        bounds=(1.01, 1e4),
        method="bounded",
    )
    assert 0.85 * usual.fun < float(found.epsilon(delta=1e-6)) < usual.fun
    both = fdp.compose(found, fdp.Gaussian(10.0))
    assert float(found.epsilon(delta=1e-6)) < float(both.epsilon(delta=1e-6))
    # Of three of them divergences are listed; alone the best order of all is taken.
    thrice = float(fdp.compose(found, found, found).epsilon(delta=1e-6))
    assert float(found.repeat(3).epsilon(delta=1e-6)) == pytest.approx(thrice)
    for noise in (9.7, 10.0, 10.2):
        slope = jax.grad(lambda s: search(s).epsilon(delta=1e-6))(noise)
        ends = [float(search(noise + s).epsilon(delta=1e-6)) for s in (-1e-3, 1e-3)]
        assert float(slope) == pytest.approx((ends[1] - ends[0]) / 0.002, rel=1e-5)
    target = fdp.targets.ApproxDP(epsilon=float(found.epsilon(delta=1e-6)), delta=1e-6)
    noise = fdp.calibrate(search(None), target, solve_for="noise_multiplier")
    assert float(noise.value) == pytest.approx(10.0, rel=1e-6)
    many = fdp.AboveThreshold.with_gaussian_noise(10.0, num_queries=None, num_above=4)
    most = fdp.calibrate(many, target, solve_for="num_queries", whole=True)
    assert float(most.value) in (999, 1000)
    wrongs: Any = {"num_queries": 0}, {"num_queries": 10, "num_above": 1.5}
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"num_.* must be a"):
            fdp.AboveThreshold.with_gaussian_noise(1.0, **wrong)


@pytest.mark.parametrize(("most", "monotonic"), [(1, False), (3, False), (3, True)])
def test_cost_of_above_threshold_is_that_of_long_searches(most, monotonic):
    search = fdp.AboveThreshold(
        3.0, num_above=most, query_ratio=1.5, monotonic=monotonic
    )
    # Many queries below, which all rise, and at the end some above, which fall (or do
    # not rise): the threshold has to be one higher, and the last by one or two more.
    logs = []
    for low, high in ((0.0, 0.0), (1.0, 0.0 if monotonic else -1.0)):
        below = 1e15 * stats.laplace.logcdf(_Z, loc=low, scale=4.5)
        above = most * stats.laplace.logsf(_Z, loc=high, scale=4.5)
        logs.append(
            np.logaddexp.reduce(stats.laplace.logpdf(_Z, scale=3.0) + below + above)
        )
    reached = logs[0] - logs[1]
    assert reached == pytest.approx(float(search.epsilon(delta=0.0)), rel=1e-3)


def test_the_ratio_is_the_best_one():
    # The noise of a comparison has variance 2 b^2 (1 + ratio^2).
    def spread(ratio):
        search = fdp.AboveThreshold(1.0, num_above=5, query_ratio=ratio)
        return float(search.epsilon0) ** 2 * (1 + ratio**2)

    best = float(fdp.AboveThreshold(1.0, num_above=5).query_noise_multiplier)
    assert best == pytest.approx(10 ** (1 / 3))
    assert spread(best) < min(spread(0.98 * best), spread(1.02 * best))


def test_a_search_that_fits_a_budget():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-6)
    pure = math.log((math.e + 1e-6) / (1 - 1e-6))  # of randomized response
    found = fdp.calibrate(
        fdp.AboveThreshold(None, num_above=4), target, solve_for="noise_multiplier"
    )
    assert 0 <= float(found.value) - 5.0 / pure < 5e-4
    # 1 / 16 + 2 k / 32 = (1 + k) / 16, at most 1.0000014.
    search = fdp.AboveThreshold(16.0, num_above=None, query_ratio=2.0)
    assert float(fdp.calibrate(search, target, solve_for="num_above").value) == 15
    runs = fdp.compose(
        fdp.AboveThreshold(10.0, num_above=4), fdp.Laplace(4.0).repeat(4)
    )
    assert float(runs.epsilon(delta=0.0)) == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_thresholded_counts_of_every_split_of_partitions(noise):
    """Brute force: j partitions of the record alone, and others in the rest.

    Where one of its own is shown the record is told; else what is released of the rest
    is k - j noisy counts, and that nothing else was shown, with (1 - p)^j.
    """
    scale, threshold, k = 3.0, 9.0, 3
    law = stats.norm if noise == "gaussian" else stats.laplace
    hidden = law.cdf(threshold - 1, scale=scale)
    selection = fdp.PartitionSelection(
        scale, threshold=threshold, max_partitions=k, noise=noise
    )
    one = fdp.Gaussian(scale) if noise == "gaussian" else fdp.Laplace(scale)
    for epsilon in (0.0, 0.4, 1.5):
        found = selection.bounds(epsilon=epsilon)
        worst = 0.0
        for own in range(k + 1):
            kept = hidden**own
            rest = one.repeat(k - own) if own < k else fdp.PerfectPrivacy()
            moved = rest.remove.bounds(epsilon=epsilon - np.log(kept)).lower
            worst = max(worst, 1 - kept + kept * float(moved))
        assert worst * (1 - 1e-9) <= found.upper
        whole = fdp.compose(one.repeat(k), fdp.ApproxDP(epsilon=0, delta=1 - hidden**k))
        assert float(found.upper) == pytest.approx(
            float(whole.delta(epsilon=epsilon)), rel=1e-6
        )
        assert found.lower <= 0


def test_calibrated_threshold_meets_its_target():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-6)
    counts = fdp.PartitionSelection(9.0, max_partitions=3)
    found = fdp.calibrate(counts, target, solve_for="threshold")
    assert found.mechanism.delta(epsilon=1.0) <= 1e-6
    # A threshold that is lower by a thousandth does not.
    lower = fdp.PartitionSelection(
        9.0, threshold=float(found.value) * 0.999, max_partitions=3
    )
    assert lower.delta(epsilon=1.0) > 1e-6


@pytest.mark.parametrize(
    ("noise", "alone"), [("gaussian", fdp.Gaussian(2.0)), ("laplace", fdp.Laplace(2.0))]
)
def test_a_threshold_out_of_reach_tells_no_partition(noise, alone):
    selection = fdp.PartitionSelection(2.0, threshold=1e300, noise=noise)
    found, wanted = (x.epsilon(delta=1e-6) for x in (selection, alone))
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)
