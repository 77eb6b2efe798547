"""Curves of points that are traced: the same as those of known points."""

import functools
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax import tradeoff

ALPHAS = np.asarray([0.0, 1e-6, 0.11, 0.31, 0.77, 1.0])
EPSILONS = np.asarray([-2.1, 0.01, 0.4, 1.7])
PRIORS = np.asarray([0.1, 0.52, 0.8])


def test_a_former_name_warns():
    with pytest.warns(DeprecationWarning, match="from_error_rates"):
        old = tradeoff.TradeOff.from_points([0.1, 0.4], [0.6, 0.25])
    new = tradeoff.TradeOff.from_error_rates([0.1, 0.4], [0.6, 0.25])
    assert float(old.beta(alpha=0.2)) == float(new.beta(alpha=0.2))


def _roc(fpr, tpr):
    return tradeoff.TradeOff.from_roc(fpr, tpr)


def _one_way(epsilon, delta):
    """Every pair twice: as many knots as those of `RATES`, so programs are shared."""
    pairs = jnp.tile(epsilon, 2), jnp.tile(delta, 2)
    return tradeoff.PrivacyProfile.from_points(*pairs, symmetric=False)


# ------------------------------------------------ curves in NumPy, by definition


def _of_curve(alpha, beta):
    """Values of all views from the vertices of f, and points that are above it."""
    order = np.lexsort((beta, alpha))
    x, y = _exact_hull(alpha[order], beta[order])
    x, y = np.append(x, 1.0), np.append(y, 0.0)
    delta = np.max(1 - y - np.exp(EPSILONS)[:, None] * x, axis=1)
    error = np.min(PRIORS[:, None] * x + (1 - PRIORS[:, None]) * y, axis=1)
    return np.concatenate([np.interp(ALPHAS, x, y), delta, error])


def _exact_hull(alpha, beta):
    """Vertices in rational numbers."""
    points = {(Fraction(x), Fraction(y)) for x, y in zip(alpha, beta, strict=True)}
    points |= {(Fraction(0), Fraction(1)), (Fraction(1), Fraction(0))}
    kept = []
    for x, y in sorted(points):
        if kept and y >= kept[-1][1]:
            continue
        while len(kept) > 1:
            (a, b), (c, d) = kept[-2:]
            if (d - b) * (x - c) < (y - d) * (c - a):
                break
            kept.pop()
        kept.append((x, y))
    return np.asarray(kept, float).T


def _of_lines(heights, slopes):
    """The same of the largest of lines c - s alpha, and of 0."""
    c, s = np.append(heights, 0.0), np.append(slopes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = (c[:, None] - c) / (s[:, None] - s)
    meet = meet[np.isfinite(meet) & (meet > 0) & (meet < 1)]
    alpha = np.concatenate([[0.0, 1.0], meet])
    f = lambda x: np.max(c - s * x[:, None], axis=1)
    found = _of_curve(alpha, np.clip(f(alpha), 0, 1))
    found[: ALPHAS.size] = f(ALPHAS)
    return found


def _of_pairs(epsilon, delta):
    return _of_lines(1 - delta, np.exp(epsilon))


def _of_both_ways(epsilon, delta):
    slopes = np.exp(np.append(epsilon, -epsilon))
    return _of_lines(np.append(1 - delta, (1 - delta) * np.exp(-epsilon)), slopes)


def _of_errors(prior, error):
    return _of_lines(error / (1 - prior), prior / (1 - prior))


WEIGHTS = np.linspace(1.0, 2.0, ALPHAS.size + EPSILONS.size + PRIORS.size)
SMOOTH = 2
"""The first tables have derivatives; others have points at edges or on chords."""
ROC = np.asarray([[0.0], [1.0]])
RATES = np.asarray(
    [
        ([0.5, 0.1, 0.6, 0.1], [0.2, 0.6, 0.3, 0.5]),
        ([0.9, 0.5, 0.2, 0.05], [0.01, 0.2, 0.4, 0.9]),
        ([0.5, 0.5, 0.5, 0.5], [0.2, 0.2, 0.2, 0.2]),
        ([0.0, 0.0, 0.4, 1.0], [0.9, 0.8, 0.0, 0.0]),
        ([0.25, 0.5, 0.75, 0.5], [0.75, 0.5, 0.25, 0.5]),
    ]
)
TWO_WAYS = np.asarray(
    [
        ([1.0, 0.5, 2.0], [0.2, 0.25, 1e-3]),
        ([-1.2, 1.0, 0.5], [0.75, 0.1, 0.5]),
        ([0.7, 0.7, 0.7], [0.1, 0.1, 0.1]),
        ([-1.0, 0.0, 1.0], [1.0, 1.0, 1.0]),
        ([0.0, -1.0, 2.0], [0.0, 0.64, 0.0]),
    ]
)
ERRORS = np.asarray(
    [
        ([0.5, 0.25, 0.7, 0.6, 0.3, 0.9], [0.3, 0.2, 0.2, 0.3, 0.05, 0.01]),
        ([0.5, 0.25, 0.7, 0.65, 0.4, 0.12], [0.4, 0.2, 0.25, 0.1, 0.35, 0.1]),
        ([0.5, 0.25, 0.7, 0.7, 0.7, 0.1], [0.5, 0.25, 0.3, 0.1, 0.3, 0.1]),
        ([0.5, 0.25, 0.7, 0.7, 0.7, 0.1], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ]
)


CASES = {
    "points": (tradeoff.TradeOff.from_error_rates, _of_curve, RATES),
    "roc": (_roc, lambda fpr, tpr: _of_curve(fpr, 1 - tpr), np.abs(RATES - ROC)),
    "profile": (tradeoff.PrivacyProfile.from_points, _of_both_ways, TWO_WAYS),
    "profile of one order": (_one_way, _of_pairs, TWO_WAYS),
    "errors": (tradeoff.BayesError.from_points, _of_errors, ERRORS),
}
cases = pytest.mark.parametrize("case", CASES)


def _answers(f, bound=fdp.Bound.ESTIMATE):
    return jnp.concatenate(
        [
            f.beta(alpha=ALPHAS, bound=bound),
            f.delta(epsilon=EPSILONS, bound=bound),
            f.bayes_error(prior=PRIORS, bound=bound),
        ]
    )


@functools.cache
def _program(case):
    """Answers of many tables at once, and the derivative of a weighted sum of them."""
    make = CASES[case][0]

    def value(table):
        found = _answers(make(table[0], table[1]))
        return jnp.sum(found * WEIGHTS), found

    return jitted(jax.vmap(jax.value_and_grad(value, has_aux=True)))


@cases
def test_traced_points_answer_by_the_definition(case):
    _, truth, tables = CASES[case]
    (_, found), _ = _program(case)(tables)
    truths = np.stack([truth(*table) for table in tables])
    np.testing.assert_allclose(found, truths, rtol=1e-12, atol=1e-14)


@cases
def test_known_points_answer_the_same(case):
    make, _, tables = CASES[case]
    (_, found), _ = _program(case)(tables)
    table = tables[0]
    np.testing.assert_allclose(found[0], _answers(make(*table)), rtol=1e-13, atol=1e-14)


@cases
def test_gradients_in_the_points(case):
    _, truth, tables = CASES[case]
    _, found = _program(case)(tables)
    assert np.all(np.isfinite(found))
    step = 1e-6
    for table, gradient in zip(tables[:SMOOTH], found, strict=False):
        for place in np.ndindex(table.shape):
            ends = [table.copy(), table.copy()]
            ends[0][place] += step
            ends[1][place] -= step
            high, low = (np.sum(truth(*end) * WEIGHTS) for end in ends)
            numeric = (high - low) / (2 * step)
            np.testing.assert_allclose(gradient[place], numeric, rtol=1e-7, atol=1e-8)


def test_gradient_is_that_of_the_chord():
    (x, y), (u, v), at = (0.1, 0.4), (0.6, 0.25), 0.2
    value = lambda a, b: tradeoff.TradeOff.from_error_rates(a, b).beta(alpha=at)
    points = np.asarray([x, 0.5, y, y]), np.asarray([u, 0.5, v, 0.7])
    found = jax.grad(value, (0, 1))(*points)
    weight, slope = (at - x) / (y - x), (v - u) / (y - x)
    truth = [[slope * (weight - 1), 0, -slope * weight, 0], [1 - weight, 0, weight, 0]]
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-15)


def test_points_of_a_mechanism():
    """`FromTradeOffPoints` is atoms, not knots."""
    query = lambda table: fdp.FromTradeOffPoints(table[0], table[1]).remove.delta(
        epsilon=EPSILONS, bound=fdp.Bound.ESTIMATE
    )
    found = jitted(jax.vmap(query))(RATES)
    views = slice(ALPHAS.size, ALPHAS.size + EPSILONS.size)
    truth = [_of_curve(*table)[views] for table in RATES]
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found[0], query(RATES[0]), rtol=1e-13)


@pytest.mark.slow
def test_gradient_of_a_mechanism_in_its_points():
    query = lambda table: fdp.FromTradeOffPoints(table[0], table[1]).remove.delta(
        epsilon=EPSILONS, bound=fdp.Bound.ESTIMATE
    )
    found = jitted(jax.vmap(jax.jacobian(query)))(RATES)
    knots = lambda t: tradeoff.TradeOff.from_error_rates(t[0], t[1]).delta(
        epsilon=EPSILONS
    )
    truth = jitted(jax.vmap(jax.jacobian(knots)))(RATES)
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found[:SMOOTH], truth[:SMOOTH], rtol=1e-10, atol=1e-12)


def test_known_points_inside_of_a_trace():
    curve = lambda: tradeoff.TradeOff.from_error_rates([0.1, 0.4], [0.6, 0.25])
    found = jitted(lambda a: curve().beta(alpha=a))(0.2)
    np.testing.assert_allclose(found, 0.6 - 0.35 / 3, rtol=1e-13)


def test_numbers_of_knots():
    """Known points leave nothing that repeats, traced ones leave the shape."""
    known = tradeoff.TradeOff.from_error_rates(*RATES[0])
    assert known.knots.epsilon.size == 3
    assert np.all(np.diff(known.knots.epsilon) > 0)
    make = eqx.filter_jit(tradeoff.TradeOff.from_error_rates)
    traced = make(*(jnp.asarray(x) for x in RATES[0]))
    assert traced.knots.epsilon.size == RATES[0][0].size + 2
    assert np.all(np.diff(traced.knots.epsilon) >= 0)


def test_hull_keeps_points_to_the_last_bit():
    random = np.random.default_rng(3)
    for size in (1, 4, 5, 40):
        alpha = np.round(random.random(size), 2)
        beta = np.round(random.random(size) * (1 - alpha), 3)
        x, y = _exact_hull(alpha, beta)
        found = fdp.FromTradeOffPoints(alpha, beta)
        np.testing.assert_array_equal(found.alpha_grid, x)
        np.testing.assert_array_equal(found.beta_grid, y)


def test_traced_scores():
    random = np.random.default_rng(0)
    scores = np.round(random.normal(1, 1, 8), 1), np.round(random.normal(0, 1, 6), 1)
    query = lambda a, b, c: tradeoff.TradeOff.from_scores(a, b, confidence=c).beta(
        alpha=ALPHAS
    )
    found = (
        jitted(query)(*scores, 0.1),
        jitted(lambda a, b: query(a, b, None))(*scores),
    )
    known = query(*scores, 0.1), query(*scores, None)
    np.testing.assert_allclose(found, known, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "points", "message"),
    [
        (
            tradeoff.TradeOff.from_error_rates,
            ([1.2], [0.1]),
            r"alpha must be in \[0, 1\]",
        ),
        (
            tradeoff.TradeOff.from_error_rates,
            ([0.2], [-0.1]),
            r"beta must be in \[0, 1\]",
        ),
        (_roc, ([1.2], [0.1]), r"fpr must be in \[0, 1\]"),
        (_roc, ([0.1], [np.nan]), r"tpr must be in \[0, 1\]"),
        (fdp.FromTradeOffPoints, ([0.1], [1.1]), r"beta must be in \[0, 1\]"),
        (_one_way, ([np.inf], [0.1]), "epsilon must be a finite number"),
        (_one_way, ([1.0], [1.1]), r"delta must be in \[0, 1\]"),
        (_one_way, ([1.0, -1.0], [0.1, 0.2]), r"delta must be at least 1 - e\^epsilon"),
        (tradeoff.BayesError.from_points, ([1.0], [0.0]), r"prior must be in \(0, 1\)"),
        (
            tradeoff.BayesError.from_points,
            ([0.5], [0.7]),
            r"bayes_error must be at most min\(prior, 1 - prior\)",
        ),
    ],
)
def test_bad_points(make, points, message):
    points = [np.asarray(x) for x in points]
    with pytest.raises(ValueError, match=message):
        make(*points)
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(jitted(make)(*points))
    single = [x.astype(np.float32) for x in points]
    with jax.enable_x64(False), pytest.raises(Exception, match=message):
        jax.block_until_ready(jitted(make)(*single))


@pytest.mark.parametrize("case", ["points", "roc", "profile of one order", "errors"])
def test_points_in_float32_programs(case):
    make, truth, tables = CASES[case]
    tables = tables[:SMOOTH].astype(np.float32)
    bounds = fdp.Bound.PESSIMISTIC, fdp.Bound.OPTIMISTIC
    query = lambda t: [make(t[0], t[1]).beta(alpha=ALPHAS[1:], bound=b) for b in bounds]
    with jax.enable_x64(False):
        low, high = jitted(jax.vmap(query))(tables)
    assert low.dtype == np.float32
    exact = np.stack([truth(*t.astype(float))[1 : ALPHAS.size] for t in tables])
    # The points as they are, but for a few units of the last place of float64.
    assert np.all(low <= exact + 1e-15)
    assert np.all(exact <= high + 1e-15)
    np.testing.assert_allclose(high, low, rtol=1e-6, atol=1e-15)
