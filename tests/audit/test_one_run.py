"""One-run audits against published numbers, linear programs and exact tails."""

import itertools
from typing import Any

import numpy as np
import pytest
from audit.nulls import ApproxDP, Gaussian, Subsampled
from scipy.optimize import brentq, linprog
from scipy.stats import binom, norm

import fdp_jax as fdp
from fdp_jax.audit import OneRun, _one_run

# Steinke, Nasr, Jagielski (2023): (correct, guesses, canaries, delta), and the bound at
# confidence 0.95 that is printed in Appendix D (the first two) and Section 7.
PUBLISHED = [
    (75, 100, 100, 1e-4, 0.699),
    (75, 100, 1000, 1e-4, 0.672),
    (1439, 1510, 100_000, 1e-5, 2.675),
]


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_bounds_of_approximate_dp(case):
    *counts, delta, published = case
    run = OneRun(*counts)
    place = published + np.array([0.0, 1e-3])
    p_values = run._by_pairs(place, np.full(2, delta))
    assert p_values[0] <= 0.05 < p_values[1]
    assert fdp.audit.epsilon_lower_bound(run, delta=delta) >= published


def _all_mechanisms(size, guesses, pairs):
    """Constraints on all mechanisms whose outputs are guesses about `size` bits.

    A column for each input and output, then for each neighbors, pair and output its
    positive excess; all pairs (epsilon, delta) hold.
    """
    inputs = list(itertools.product((0, 1), repeat=size))
    outputs = [
        x
        for x in itertools.product((0, 1, 2), repeat=size)
        if sum(y != 2 for y in x) == guesses
    ]
    near = [
        (a, b)
        for a, b in itertools.permutations(range(len(inputs)), 2)
        if sum(x != y for x, y in zip(inputs[a], inputs[b], strict=True)) == 1
    ]
    width = len(inputs) * len(outputs)
    slack = len(near) * len(pairs) * len(outputs)
    rows, limits, place = [], [], width
    for (a, b), (epsilon, delta) in itertools.product(near, pairs):
        total = np.zeros(width + slack)
        for k in range(len(outputs)):
            row = np.zeros(width + slack)
            row[a * len(outputs) + k] = 1.0
            row[b * len(outputs) + k] = -np.exp(epsilon)
            row[place] = -1.0
            total[place] = 1.0
            rows.append(row)
            limits.append(0.0)
            place += 1
        rows.append(total)
        limits.append(delta)
    sums = np.zeros((len(inputs), width + slack))
    for a in range(len(inputs)):
        sums[a, a * len(outputs) : (a + 1) * len(outputs)] = 1.0
    right = np.array(
        [
            [sum(x == y for x, y in zip(t, o, strict=True)) for o in outputs]
            for t in inputs
        ]
    )
    return np.array(rows), np.array(limits), sums, right


@pytest.mark.parametrize(
    ("pairs", "null"),
    [
        ([(1.0, 0.0)], ApproxDP(1.0, 0.0)),
        ([(0.5, 0.1)], ApproxDP(0.5, 0.1)),
        ([(0.0, 0.3), (0.8, 0.1), (1.5, 0.0)], None),
    ],
)
@pytest.mark.parametrize(("size", "guesses"), [(2, 2), (3, 2)])
def test_no_mechanism_at_all_guesses_more_often(pairs, null, size, guesses):
    rows, limits, sums, right = _all_mechanisms(size, guesses, pairs)
    if null is None:
        epsilon, delta = np.array(pairs).T
        null = fdp.tradeoff.PrivacyProfile.from_points(epsilon, delta)
    for correct in range(1, guesses + 1):
        gain = np.zeros(rows.shape[1])
        gain[: right.size] = (right >= correct).ravel() / len(sums)
        best = linprog(-gain, rows, limits, sums, np.ones(len(sums)))
        assert best.status == 0
        found = fdp.audit.falsifies(null, OneRun(correct, guesses, size)).p_value
        assert found >= -best.fun * (1 - 1e-7)
        # Where everything must be right, the bound for pure DP is attained.
        if pairs == [(1.0, 0.0)] and correct == guesses:
            expected = binom.sf(correct - 1, guesses, np.e / (1 + np.e))
            assert -best.fun == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(6, 8, 8), (9, 12, 30)])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_recursion_solves_its_linear_program(correct, guesses, canaries, mu):
    # Probabilities p_i of i right guesses under all inequalities of the theorem for
    # E = {i + 1, ...}: tangents in place of the curve.
    slope = np.linspace(-8, 8, 1601)
    delta = norm.cdf(mu / 2 - slope / mu) - np.exp(slope) * norm.cdf(
        -mu / 2 - slope / mu
    )
    every = np.arange(guesses + 1)
    right, wrong = every / canaries, (guesses - every) / canaries
    rows = np.concatenate(
        [
            (every > i) * right - np.exp(slope)[:, None] * (every >= i) * wrong
            for i in range(guesses)
        ]
    )
    limits = np.tile(delta, guesses)
    best = linprog(-1.0 * (every >= correct), rows, limits, [every >= 0], [1.0])
    run = OneRun(correct, guesses, canaries)
    found = run._by_recursion(lambda mass: norm.cdf(norm.ppf(mass) - mu))
    assert found == pytest.approx(-best.fun, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 2.0])
def test_randomized_response_is_never_overstated(epsilon):
    size, level = 60, 0.05
    found = np.array(
        [
            fdp.audit.epsilon_lower_bound(OneRun(k, size, size), delta=0.0)
            for k in range(size + 1)
        ]
    )
    chances = binom.pmf(np.arange(size + 1), size, 1 / (1 + np.exp(-epsilon)))
    over = chances[found > epsilon].sum()
    assert over <= level
    # The bound is the exact one: the next outcome would break the level.
    first = int(np.argmax(found > epsilon))
    assert chances[first - 1 :].sum() > level


def test_bounds_tend_to_the_truth():
    size = 100_000
    right = round(size * np.e / (1 + np.e))
    run = OneRun(right, size, size)
    assert 1.0 > fdp.audit.epsilon_lower_bound(run, delta=0.0) > 0.97
    # Gaussian canaries tell most where an attack is sure: the 400 most extreme scores.
    size, mu, tail = 1_000_000, 1.0, 2e-4
    cut: Any = brentq(lambda x: norm.sf(x) + norm.sf(x - mu) - 2 * tail, 0, 9)
    right = round(size * float(norm.sf(cut - mu)))
    bound = fdp.audit.mu_lower_bound(OneRun(right, round(2 * size * tail), size))
    assert mu > bound > 0.7


@pytest.mark.parametrize("epsilon", [0.0, 0.7])
@pytest.mark.parametrize("delta", [0.005, 0.04])
@pytest.mark.parametrize(("size", "canaries"), [(1, 1), (6, 6), (40, 90)])
def test_runs_that_tell_all_now_and_then_are_never_overstated(
    epsilon, delta, size, canaries
):
    """With probability delta all coins are told, else each by randomized response."""
    level, every = 0.1, np.arange(size + 1)
    truth = (1 - delta) * binom.pmf(every, size, 1 / (1 + np.exp(-epsilon)))
    truth[-1] += delta
    runs = [OneRun(k, size, canaries) for k in every]
    bounds = [
        fdp.audit.epsilon_lower_bound(x, delta=delta, confidence=0.9) for x in runs
    ]
    assert truth[np.asarray(bounds) > epsilon].sum() <= level
    null = ApproxDP(epsilon, delta)
    floor = _one_run._tradeoff_floor(null)
    p_values = np.array([x._by_recursion(floor) for x in runs])
    pairs = np.array([epsilon]), np.array([delta])
    p_values = np.minimum(p_values, [x._by_pairs(*pairs)[0] for x in runs])
    tails = truth[::-1].cumsum()[::-1]
    assert np.all(p_values >= tails * (1 - 1e-12))


def test_a_floor_without_a_profile_is_convex_and_serves_both_orders():
    null = Subsampled(2.0, 0.4)
    floor = _one_run._tradeoff_floor(null)
    mass = np.linspace(0.0, 1.0, 2001)
    found = floor(mass)
    assert np.all(np.diff(found, 2) >= -1e-12)
    own = 1 - null.tpr(fpr=1 - mass)
    # Its inverse by bisection: alpha at which f is what f(1 - mass) should be.
    inverse = [
        brentq(lambda a, m=m: 1 - null.tpr(fpr=a) - (1 - m), 0.0, 1.0) for m in mass
    ]
    lower = np.minimum(own, np.asarray(inverse))
    assert np.all(found <= lower + 1e-15)
    # Lines between the outermost points of both are the most that is convex.
    bent = np.diff(found, 2) > 1e-9
    np.testing.assert_allclose(found[1:-1][bent], lower[1:-1][bent], atol=1e-3)
    smooth, mass = Gaussian(1.0), np.geomspace(1e-9, 1.0, 500)
    exact = norm.cdf(norm.ppf(mass) - 1.0)
    found = _one_run._tradeoff_floor(smooth)(mass)
    assert np.all(found <= exact)
    np.testing.assert_allclose(found, exact, rtol=0.02, atol=1e-12)


def test_many_pairs_are_taken_a_few_at_a_time(monkeypatch):
    run, pairs = OneRun(30, 50, 60), (np.linspace(-1, 3, 37), np.linspace(0, 0.3, 37))
    whole = run._by_pairs(*pairs)
    monkeypatch.setattr(_one_run, "_AT_A_TIME", 100)
    np.testing.assert_array_equal(run._by_pairs(*pairs), whole)


def test_of_equal_scores_no_order_gives_fewer_right_guesses():
    rng = np.random.default_rng(3)
    for _ in range(200):
        inside, outside = rng.integers(0, 3, rng.integers(1, 5)), rng.integers(0, 3, 4)
        total = inside.size + outside.size
        top = int(rng.integers(0, total))
        rest = int(rng.integers(top == 0, total - top + 1))
        found = OneRun.from_scores(
            inside, outside, positive_guesses=top, negative_guesses=rest
        ).correct
        scores = np.concatenate([inside, outside])
        coins = np.arange(total) < inside.size
        for _ in range(10):
            order = np.lexsort((rng.random(total), -scores))
            best, worst = order[:top], order[total - rest :]
            assert found <= coins[best].sum() + (~coins[worst]).sum()


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_gaussian_canaries_are_never_overstated(mu):
    size, level = 50, 0.1
    runs = [OneRun(k, size, size) for k in range(size + 1)]
    bounds = np.array([fdp.audit.mu_lower_bound(x, confidence=1 - level) for x in runs])
    floor = _one_run._tradeoff_floor(Gaussian(mu))
    p_values = np.array([x._by_recursion(floor) for x in runs])
    chances = binom.pmf(np.arange(size + 1), size, norm.cdf(mu / 2))
    assert chances[bounds > mu].sum() <= level
    for value in np.unique(p_values):
        assert chances[p_values <= value].sum() <= value * (1 + 1e-9)


def test_guesses_that_are_left_open_keep_the_level():
    size, mu, level = 200, 1.0, 0.1
    rng = np.random.default_rng(5)
    floor = _one_run._tradeoff_floor(Gaussian(mu))
    least = next(
        k for k in range(41) if OneRun(k, 40, size)._by_recursion(floor) <= level
    )
    coins = rng.random((20_000, size)) < 0.5
    scores = rng.normal(size=coins.shape) + mu * coins
    order = np.argsort(scores, axis=1)
    sorted_coins = np.take_along_axis(coins, order, axis=1)
    right = sorted_coins[:, -20:].sum(axis=1) + (~sorted_coins[:, :20]).sum(axis=1)
    assert np.mean(right >= least) <= level


def test_guarantees_in_jax_and_in_numpy_agree():
    run = OneRun(68, 100, 300)
    ours = fdp.audit.falsifies(fdp.tradeoff.Gaussian(0.3), run).p_value
    plain = fdp.audit.falsifies(Gaussian(0.3), run).p_value
    assert ours == pytest.approx(plain, rel=3e-3)
    pure = fdp.audit.falsifies(fdp.tradeoff.ApproxDP(epsilon=0.5, delta=0.0), run)
    exact = binom.sf(67, 100, 1 / (1 + np.exp(-0.5)))
    assert pure.p_value == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 600.0])
def test_ends_of_privacy(epsilon):
    # With no privacy at all every guess may be right, with perfect one they are coins.
    null = fdp.tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)
    found = fdp.audit.falsifies(null, OneRun(10, 10, 10)).p_value
    assert found == pytest.approx(1.0 if epsilon else 2.0**-10, rel=1e-6)
    run = OneRun(10, 10, 10)
    assert fdp.audit.epsilon_lower_bound(run, delta=1.0) == 0.0
    # All right: the binomial tail is (e^eps / (1 + e^eps))^10.
    power = 0.05**0.1
    exact = np.log(power / (1 - power))
    bound = fdp.audit.epsilon_lower_bound(run, delta=0.0)
    assert exact > bound > exact - 1e-6


def test_one_direction_is_not_enough():
    pair = fdp.FromProbabilities(
        without_record=[0.7, 0.2, 0.1], with_record=[0.3, 0.3, 0.4]
    )
    run = OneRun(70, 100, 100)
    curve = pair.curve()
    for one in (pair.remove, curve.add):
        with pytest.raises(ValueError, match="guarantee must hold in both directions"):
            fdp.audit.falsifies(one, run)
    both = fdp.audit.falsifies(curve, run).p_value
    # A trade-off function of one direction is made symmetric.
    one = fdp.tradeoff.TradeOff.from_error_rates([0, 0.1, 0.3, 1], [1, 0.6, 0.3, 0])
    assert fdp.audit.falsifies(one, run).p_value == pytest.approx(both, rel=1e-2)


def test_guesses_from_scores():
    run = OneRun.from_scores(
        [3.0, 2.0, -1.0], [0.0, -2.0, 2.5], positive_guesses=2, negative_guesses=1
    )
    assert (run.correct, run.guesses, run.canaries) == (2, 3, 6)
    # All equal: nothing may depend on the order in which scores are handed over.
    run = OneRun.from_scores(
        np.zeros(5), np.zeros(7), positive_guesses=3, negative_guesses=3
    )
    assert run.correct == 0
    run = OneRun.from_scores(
        np.zeros(5), np.zeros(2), positive_guesses=4, negative_guesses=0
    )
    assert run.correct == 2


def test_points_are_of_counts_alone():
    with pytest.raises(
        TypeError, match="evidence must be Counts or Scores, got OneRun"
    ):
        fdp.audit.tradeoff_points(OneRun(1, 2, 3))


def test_of_a_mechanism_its_curve_is_asked():
    """That is quick, and hardly above what a question for every pair gives, .66817."""
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
    guesses = OneRun(140, 200, 1000)
    assert 0.66816 < guesses.p_value(run) < 0.6686
