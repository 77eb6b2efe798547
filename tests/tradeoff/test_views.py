"""Three views of one curve: conversions, certified sides, tables and checks."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from programs import jitted
from reference import checks

import fdp_jax as fdp
from fdp_jax import Bound, tradeoff
from fdp_jax.tradeoff.knots import from_profile

FEW = settings(max_examples=15, deadline=None, derandomize=True)
ALPHAS = np.asarray([1e-12, 1e-3, 0.04, 0.2, 0.45, 0.7, 0.93, 1 - 1e-6])
EPSILONS = np.asarray([-6.0, -1.3, -0.2, 0.1, 0.7, 1.9, 5.0, 9.0])
PRIORS = 1 / (1 + np.exp(-EPSILONS))
ROUNDING = 1e-14
"""Of the truth as computed here."""
GRID = np.asarray([-3.0, -1.0, -0.3, 0.3, 1.0, 3.0])


def _vector(size=5):
    entry = st.floats(1e-6, 1.0)
    weights = st.lists(entry, min_size=size, max_size=size).map(np.asarray)
    return weights.map(lambda x: x / x.sum())


PAIRS = st.tuples(_vector(), _vector())


def _truth_beta(p, q, alpha):
    """Neyman and Pearson, written out."""
    order = np.argsort(-(q / p))
    x = np.append(0.0, np.cumsum(p[order]))
    y = 1 - np.append(0.0, np.cumsum(q[order]))
    return np.interp(alpha, x, y)


def _truth_delta(p, q, epsilon):
    return np.sum(np.maximum(q - np.exp(epsilon)[:, None] * p, 0), axis=1)


@pytest.mark.parametrize("topic", ["atoms_f", "infmass_f"])
def test_discrete_pairs(topic):
    for entry in checks(topic):
        p = entry["params"]
        f = tradeoff.TradeOff.from_probabilities(p["P"], p["Q"])
        found = f.beta(alpha=p["alpha"], bound=Bound.ESTIMATE)
        np.testing.assert_allclose(found, entry["value"], rtol=1e-14, atol=1e-16)
    (entry,) = checks("atoms_naive")
    p = entry["params"]
    f = tradeoff.TradeOff.from_probabilities(p["P"], p["Q"])
    assert f.beta(alpha=p["alpha"]) < entry["value"] - 0.2


def test_pairs_that_say_nothing_more():
    """Values that others imply, at either end, leave the largest profile as it is."""
    f = tradeoff.PrivacyProfile.from_points([-50.0, 1.0], [1.0, 0.4])
    np.testing.assert_allclose(f.delta(epsilon=np.asarray([np.inf, 49.0])), 0.4)
    steep = tradeoff.PrivacyProfile.from_points([0.5, 1.0], [0.9, 0.1], symmetric=False)
    np.testing.assert_allclose(steep.beta(alpha=0.01), 0.9 - 0.01 * np.e, rtol=1e-12)
    flat = tradeoff.PrivacyProfile.from_points([1.0, 2.0], [0.1, 0.3])
    np.testing.assert_allclose(flat.tpr(fpr=0.0, bound=Bound.OPTIMISTIC), 0.1)
    error = tradeoff.BayesError.from_points([0.3, 0.5], [0.01, 0.4])
    found = error.bayes_error(prior=0.3, bound=Bound.OPTIMISTIC)
    np.testing.assert_allclose(found, 0.24, rtol=1e-12)
    # 1 - delta = 2^-30 at -20: the other profile at 20 is 1 - 2^-30 e^20.
    far = tradeoff.PrivacyProfile.from_points([-20.0], [1 - 2.0**-30], symmetric=False)
    truth = 1 - 2.0**-30 * np.exp(20.0)
    np.testing.assert_allclose(far.inverse().delta(epsilon=20.0), truth, rtol=1e-12)


@pytest.mark.parametrize("gap", [1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("least", [0.25, 3e-301])
def test_profile_next_to_the_largest_loss(gap, least):
    """The place where delta vanishes is rounded."""
    p, q = [mp.mpf(least), 1 - mp.mpf(least)], [mp.mpf(0.5), mp.mpf(0.5)]
    f = tradeoff.TradeOff.from_probabilities([least, 1 - least], [0.5, 0.5])
    epsilon = float(mp.log(q[0] / p[0]) - gap)
    truth = q[0] - mp.e ** mp.mpf(epsilon) * p[0]
    found = f.bounds(epsilon=epsilon)
    assert mp.mpf(float(found.lower)) <= truth <= mp.mpf(float(found.upper))


def test_thresholds_of_a_grid_that_almost_coincide():
    loss, mass = np.asarray([0.9, 1.4, 2.2]), np.asarray([0.17, 0.23, 0.6])
    q = np.append(1 - mass @ np.exp(-loss), mass * np.exp(-loss))
    f = tradeoff.TradeOff.from_probabilities(np.append(0.0, mass), q)
    alpha = np.asarray([1e-300, 1e-3, 0.3])
    for gap in (1e-9, 1e-8, 1e-6, 1e-4):
        for g in (f, f.inverse()):
            rough = tradeoff.TradeOff.of(g, epsilons=[0.0, gap])
            most = g.beta(alpha=alpha, bound=Bound.OPTIMISTIC)
            assert np.all(rough.beta(alpha=alpha) <= most * (1 + 1e-11))


@pytest.mark.parametrize("flip", [False, True])
def test_losses_of_one_sign_beside_infinite_ones(flip):
    p, q = np.asarray([0.5, 0.3, 0.2, 0.0]), np.asarray([0.1, 0.1, 0.1, 0.7])
    p, q = (q, p) if flip else (p, q)
    f = tradeoff.TradeOff.from_probabilities(p, q)
    found = f.bounds(epsilon=GRID)
    truth = _truth_delta(p, q, GRID)
    np.testing.assert_allclose(found.lower, truth, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.upper, truth, rtol=1e-12, atol=1e-14)


def test_profile_of_a_table_on_one_side_of_zero():
    given = tradeoff.PrivacyProfile.from_points([0.5], [0.1], symmetric=False)
    # The largest profile: 1 - delta is proportional to e^eps up to the node.
    truth = 1 - 0.9 * np.exp(np.minimum(EPSILONS - 0.5, 0))
    np.testing.assert_allclose(given.delta(epsilon=EPSILONS), truth, rtol=1e-12)


def test_areas_in_float32_programs():
    """Rounded outward, of three outputs: the chance of a larger loss, ties by half."""
    p, q = np.array([0.1, 0.2, 0.7]), np.array([0.4, 0.3, 0.3])  # falling losses
    pairs = np.triu(np.outer(q, p), 1).sum() + np.dot(p, q) / 2
    view = tradeoff.TradeOff.from_probabilities(p, q)
    with jax.enable_x64(False):
        low, high = (view.auc(bound=x) for x in ("optimistic", "pessimistic"))
    assert high.dtype == np.float32
    assert pairs - 1e-7 < float(low) <= pairs <= float(high) < pairs + 1e-7


@pytest.mark.parametrize("of", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_mechanisms_of_views_in_float32_programs(of):
    """The probabilities themselves, to all digits: half of others would leak less."""
    p, q = np.array([0.1, 0.2, 0.7]), np.array([0.4, 0.3, 0.3])
    view = tradeoff.TradeOff.from_probabilities(p, q)
    with jax.enable_x64(False):
        found = of(lambda f: f.as_mechanism().mechanism)(view)
        masses = [np.asarray(x) for x in (found.without_record, found.with_record)]
    for mass, truth in zip(masses, (p, q), strict=True):
        np.testing.assert_allclose(np.sort(mass)[-3:], np.sort(truth), rtol=1e-14)


@FEW
@given(PAIRS)
def test_exact_curves_of_discrete_pairs(pair):
    p, q = pair
    f = tradeoff.TradeOff.from_probabilities(p, q)
    assert f.is_exact
    np.testing.assert_allclose(f(ALPHAS), _truth_beta(p, q, ALPHAS), atol=2e-14)
    delta = _truth_delta(p, q, EPSILONS)
    np.testing.assert_allclose(f.to_profile()(EPSILONS), delta, atol=2e-14)
    error = (1 - PRIORS) * (1 - delta)
    np.testing.assert_allclose(f.to_bayes_error()(PRIORS), error, atol=2e-14)
    back = _truth_beta(q, p, ALPHAS)
    np.testing.assert_allclose(f.inverse()(ALPHAS), back, atol=2e-14)
    atoms = f.loss_atoms()
    assert abs(atoms.without_record.sum() + atoms.minus_infinity - 1) < 1e-14
    np.testing.assert_allclose(
        atoms.without_record * np.exp(atoms.loss), atoms.with_record, rtol=1e-12
    )


@FEW
@given(PAIRS)
def test_symmetric_maximum(pair):
    p, q = pair
    f = tradeoff.TradeOff.from_probabilities(p, q).symmetric_maximum()
    truth = np.maximum(_truth_beta(p, q, ALPHAS), _truth_beta(q, p, ALPHAS))
    np.testing.assert_allclose(f(ALPHAS), truth, atol=3e-14)
    np.testing.assert_allclose(f.inverse()(ALPHAS), truth, atol=3e-14)


@FEW
@given(PAIRS)
def test_what_is_proved_stays_proved(pair):
    p, q = pair
    f = tradeoff.TradeOff.from_probabilities(p, q)
    rough = tradeoff.TradeOff.of(f, epsilons=GRID)
    views = rough, rough.to_profile(), rough.to_bayes_error(), rough.inverse()
    for view, one, two in zip(views, (p, p, p, q), (q, q, q, p), strict=True):
        beta, delta = _truth_beta(one, two, ALPHAS), _truth_delta(one, two, EPSILONS)
        for truth, bounds in (
            (beta, view.bounds(alpha=ALPHAS)),
            (1 - beta, view.bounds(fpr=ALPHAS)),
            (delta, view.bounds(epsilon=EPSILONS)),
            ((1 - PRIORS) * (1 - delta), view.bounds(prior=PRIORS)),
        ):
            assert np.all(bounds.lower <= truth + ROUNDING)
            assert np.all(bounds.upper >= truth - ROUNDING)
            assert np.all(bounds.lower <= bounds.estimate)
            assert np.all(bounds.estimate <= bounds.upper)


# Two vertices next to each other on one line, once from either direction.
ALMOST_ONE = (
    [
        2.7585223843991317e-07,
        0.2758522384399132,
        0.2758522384399132,
        0.2241476236339676,
    ],
    [
        3.644491276408695e-07,
        0.36444912764086945,
        0.043273958999797475,
        0.296138274455102,
    ],
)


@FEW
@given(PAIRS)
@example([np.append(x, x[-1]) / np.sum([*x, x[-1]]) for x in ALMOST_ONE])  # pyright: ignore
def test_both_sides_are_convex(pair):
    rough = tradeoff.TradeOff.of(
        tradeoff.TradeOff.from_probabilities(*pair), epsilons=GRID
    )
    places, grid = np.linspace(0, 1, 64), np.linspace(-4, 4, 64)
    betas, deltas = rough.bounds(alpha=places), rough.bounds(epsilon=grid)
    errors = rough.bounds(prior=places)
    for side in ("lower", "estimate", "upper"):
        tradeoff.check_tradeoff(places, getattr(betas, side))
        tradeoff.check_profile(grid, getattr(deltas, side))
        tradeoff.check_bayes_error(places, getattr(errors, side))
    p, q = pair
    truth = _truth_delta(p, q, grid)
    assert np.all(deltas.lower <= truth + ROUNDING)
    assert np.all(truth <= deltas.upper + ROUNDING)


@pytest.fixture(scope="module")
def gaussian():
    return tradeoff.TradeOff.of(tradeoff.Gaussian(1.0))


def test_round_trip_of_objects_is_exact(gaussian):
    again = gaussian.to_profile().to_bayes_error().to_tradeoff()
    assert again.knots is gaussian.knots
    back = gaussian.inverse().inverse()
    for one, two in zip(
        jax.tree.leaves(back.knots), jax.tree.leaves(gaussian.knots), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-14, atol=1e-15)


def test_round_trip_of_numbers(gaussian):
    """f -> delta -> R and its gain -> delta -> f, through the numbers of each view."""
    knots, f = gaussian.knots, tradeoff.TradeOff(gaussian.knots)
    epsilon = np.asarray(knots.epsilon)
    prior, other = 1 / (1 + np.exp(-epsilon)), 1 / (1 + np.exp(epsilon))
    # R where it is, and how far below min(pi, 1 - pi), from the profile's numbers.
    point = jitted(lambda knots: jax.vmap(knots.point)(knots.epsilon))(knots)
    error = other * np.exp(point.log_rest.estimate)
    gain_right = other * np.exp(point.log_delta.estimate)
    gain_left = prior * np.exp(point.log_reverse.estimate)
    numbers = (
        epsilon,
        np.log(gain_right / other),
        np.log(gain_left / prior),
        np.minimum(np.log(error / other), 0),
    )
    again = tradeoff.TradeOff(jitted(from_profile)(*numbers))
    tails = np.asarray([1e-14, 1e-12, 1e-8, 1e-4, 0.1, 0.5])
    for query in (
        lambda g: g.beta(alpha=tails, bound=Bound.ESTIMATE),
        lambda g: g.tpr(fpr=tails, bound=Bound.ESTIMATE),
        lambda g: g.beta_at_tnr(tnr=tails, bound=Bound.ESTIMATE),
    ):
        one, two = np.asarray(query(f)), np.asarray(query(again))
        np.testing.assert_allclose(two, one, rtol=1e-10, atol=0)
        assert np.max(np.abs(one - two)) < 1e-13


@pytest.mark.slow
def test_gaussian_between_its_views(gaussian):
    truth = tradeoff.Gaussian(1.0)
    tails = np.asarray([1e-13, 1e-8, 1e-3, 0.1, 0.5, 0.9])
    for query in (
        lambda g, b: g.beta(alpha=tails, bound=b),
        lambda g, b: -g.tpr(fpr=tails, bound=b),
        lambda g, b: g.beta_at_tnr(tnr=tails, bound=b),
        lambda g, b: -g.delta(epsilon=np.linspace(-7, 7, 6), bound=b),
        lambda g, b: g.bayes_error(prior=tails, bound=b),
        lambda g, b: -g.bayes_gain(prior=tails, bound=b),
        lambda g, b: -g.epsilon(delta=tails, bound=b),
    ):
        exact = np.asarray(query(truth, Bound.ESTIMATE))
        low = np.asarray(query(gaussian, Bound.PESSIMISTIC))
        high = np.asarray(query(gaussian, Bound.OPTIMISTIC))
        assert np.all(low <= exact)
        assert np.all(exact <= high)
    (entry,) = [e for e in checks("auc") if e["id"].endswith("G1")]
    low, high = gaussian.auc(bound=Bound.OPTIMISTIC), gaussian.auc()
    assert low <= entry["value"] <= high
    assert high - low < 3e-3


@pytest.mark.slow
def test_other_guarantees_as_views():
    run = fdp.RandomizedResponse(1.0)
    grid = np.linspace(-4, 4, 9)
    view = tradeoff.PrivacyProfile.of(run.remove, epsilons=grid)
    truth = tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
    delta = truth.delta(epsilon=grid, bound=Bound.ESTIMATE)
    np.testing.assert_allclose(view(grid), delta, rtol=1e-9)
    with pytest.raises(TypeError, match="guarantee must be"):
        tradeoff.TradeOff.of(1.0)  # pyright: ignore[reportArgumentType]


def test_views_in_float32_programs():
    truth = tradeoff.Laplace(1.0)
    alpha = np.asarray([1e-6, 0.01, 0.3, 0.9])
    beta = np.asarray(truth.beta(alpha=alpha, bound=Bound.ESTIMATE))
    with jax.enable_x64(False):
        view = jitted(lambda mu: tradeoff.TradeOff.of(tradeoff.Laplace(mu)))(1.0)
        low = view.beta(alpha=alpha)
        assert low.dtype == np.float32
        high = view.beta(alpha=alpha, bound=Bound.OPTIMISTIC)
    assert np.all(low <= beta)
    assert np.all(beta <= high)
    np.testing.assert_allclose(low, high, rtol=1e-2)


def test_view_of_a_grid_curve():
    curve = fdp.Laplace(1.0).curve(num_points=16)
    view = tradeoff.TradeOff.of(curve.remove, epsilons=np.linspace(-3, 3, 7))
    truth = tradeoff.Laplace(1.0)
    alpha = np.asarray([0.01, 0.3, 0.9])
    bounds = view.bounds(alpha=alpha)
    beta = truth.beta(alpha=alpha, bound=Bound.ESTIMATE)
    assert np.all((bounds.lower <= beta) & (beta <= bounds.upper))


# ---------------------------------------------------------------------------- tables


def test_pairs_are_the_maximum_of_their_curves():
    pairs = [(0.5, 0.1), (2.0, 1e-5), (1.0, 0.2)]
    table = tradeoff.PrivacyProfile.from_points(*zip(*pairs, strict=True))
    alpha = np.asarray([1e-6, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])
    curves = [tradeoff.ApproxDP(epsilon=e, delta=d) for e, d in pairs]
    each = [f.beta(alpha=alpha, bound=Bound.ESTIMATE) for f in curves]
    np.testing.assert_allclose(
        table.beta(alpha=alpha, bound=Bound.ESTIMATE), np.max(each, axis=0), rtol=1e-12
    )
    one_way = tradeoff.PrivacyProfile.from_points([1.0], [0.2], symmetric=False)
    lines = np.maximum(0.8 - np.e * alpha, 0)
    np.testing.assert_allclose(one_way.beta(alpha=alpha), lines, atol=1e-13)


def test_bayes_error_table():
    prior = np.asarray([0.5, 0.25, 0.7])
    error = np.asarray([0.3, 0.2, 0.2])
    table = tradeoff.BayesError.from_points(prior, error)
    np.testing.assert_allclose(table(prior), error, rtol=1e-12)
    assert abs(table(0.4) - 0.26) < 1e-12
    # The maximum of [R - pi alpha] / (1 - pi).
    alpha = np.asarray([0.05, 0.2, 0.6])
    lines = (error - prior * alpha[:, None]) / (1 - prior)
    np.testing.assert_allclose(
        table.beta(alpha=alpha), np.maximum(lines.max(axis=1), 0), atol=1e-13
    )


def test_attack_points_and_scores():
    f = tradeoff.TradeOff.from_roc([0.4, 0.1, 0.5], [0.75, 0.4, 0.5])
    mechanism = fdp.FromTradeOffPoints([0.1, 0.4, 0.5], [0.6, 0.25, 0.5])
    np.testing.assert_allclose(mechanism.alpha_grid, [0.0, 0.1, 0.4, 1.0])
    np.testing.assert_allclose(mechanism.beta_grid, [1.0, 0.6, 0.25, 0.0])
    alpha = np.asarray([0.0, 0.05, 0.2, 0.7, 1.0])
    np.testing.assert_allclose(
        f.beta(alpha=alpha), np.interp(alpha, [0, 0.1, 0.4, 1], [1, 0.6, 0.25, 0])
    )
    np.testing.assert_allclose(f.advantage(), 0.35, rtol=1e-12)
    scores = np.asarray([0.1, 0.4, 0.8, 0.9]), np.asarray([0.0, 0.2, 0.5, 0.6])
    g = tradeoff.TradeOff.from_scores(*scores)
    # Thresholds at 0.8 and at 0.4: (0, 1/2) and (1/2, 1/4); at 0.1: (3/4, 0).
    np.testing.assert_allclose(g.beta(alpha=[0.0, 0.75]), [0.5, 0.0], atol=1e-14)
    np.testing.assert_allclose(g.beta(alpha=0.5), 0.5 / 3, rtol=1e-12)
    sure = tradeoff.TradeOff.from_scores(*scores, confidence=0.9)
    assert np.all(sure.beta(alpha=alpha) >= g.beta(alpha=alpha) - 1e-15)


@pytest.mark.slow
def test_gradient_of_a_sampled_curve():
    kind = tradeoff.Gaussian
    sampled = lambda mu, a: tradeoff.TradeOff.of(kind(mu)).beta(alpha=a)
    exact = lambda mu, a: kind(mu).beta(alpha=a)
    for alpha in (0.03, 0.9):
        found = jax.grad(sampled, (0, 1))(1.0, alpha)
        truth = jax.grad(exact, (0, 1))(1.0, alpha)
        np.testing.assert_allclose(found, truth, rtol=5e-3)


def test_piecewise_linear_and_its_gradient():
    alpha = np.asarray([0.0, 0.2, 0.6, 1.0])

    def value(beta):
        f = tradeoff.PiecewiseLinear(alpha, beta)
        return f.beta(alpha=0.3) + f.delta(epsilon=0.0) + f.bayes_error(prior=0.8)

    beta = jnp.asarray([0.9, 0.5, 0.2, 0.0])
    found = jitted(jax.value_and_grad(value))(beta)
    # beta(.3) = (3 b1 + b2) / 4; delta(0) = .8 - b1; R(.8) = .2 b0.
    np.testing.assert_allclose(found[0], 0.425 + 0.3 + 0.18, rtol=1e-12)
    np.testing.assert_allclose(found[1], [0.2, -0.25, 0.25, 0.0], atol=1e-12)
    f = tradeoff.PiecewiseLinear(alpha, beta)
    np.testing.assert_allclose(f.inverse().beta(alpha=[0.5, 0.35]), [0.2, 0.4])


# ---------------------------------------------------------------------------- checks


def test_checks_accept_closed_forms():
    alpha = np.concatenate([[0], np.geomspace(1e-12, 0.5, 40)])
    alpha = np.concatenate([alpha, 1 - alpha[::-1][1:]])
    grid = np.linspace(-8, 8, 81)
    prior = np.linspace(0, 1, 81)
    f = tradeoff.Laplace(1.5)
    tradeoff.check_tradeoff(alpha, f.beta(alpha=alpha))
    tradeoff.check_profile(grid, f.delta(epsilon=grid))
    tradeoff.check_bayes_error(prior, f.bayes_error(prior=prior))


def test_deltas_next_to_which_one_is_all_are_kept():
    """Each at its own threshold and, by convexity, below the line to the next one."""
    nodes = np.asarray([0.0, 5.0, 8.0, 10.0, 20.0])
    deltas = np.asarray([1e-3, 1e-10, 1e-18, 1e-25, 1e-60])
    make = fdp.tradeoff.PrivacyProfile.from_points
    for known in make(nodes, deltas), make(nodes[::-1], deltas[::-1], symmetric=False):
        found = known.bounds(epsilon=nodes[:4])
        assert np.all(found.lower <= deltas[:4] * (1 + 1e-6))
        assert np.all(found.upper >= deltas[:4] * (1 - 1e-6))
        np.testing.assert_allclose(found.upper, deltas[:4], rtol=1e-5)
        # The last one is next to nothing beside the rounding of where it stands.
        assert np.all(known.log_delta(epsilon=np.asarray([20.0, 30.0])) < -85)
        assert known.epsilon(delta=2e-25) == pytest.approx(10, abs=0.2)


@pytest.mark.parametrize("share", [0.5, 1 - 1e-9])
def test_two_outputs_whose_losses_are_far_apart(share):
    """Rounding of logarithms counts next to a vertex, and of losses in their powers."""
    rng = np.random.default_rng(5)
    false = []
    for far in rng.uniform(1, 690, 40):
        rare, left = np.exp(-far - rng.uniform(0, 3)), np.exp(-rng.uniform(0.01, far))
        p, q = np.array([1 - rare, rare]), np.array([left, 1 - left])
        f = tradeoff.TradeOff.from_probabilities(p, q)
        (p0, p1), (q0, q1) = (map(mp.mpf, map(float, x)) for x in (p, q))
        alpha, epsilon = float(rare * share), float(np.log(q[1] / p[1])) * share
        # On the line from (0, 1) to (p1, q0).
        beta = 1 - mp.mpf(alpha) / p1 * (1 - q0)
        delta = q1 - mp.exp(epsilon) * p1 + max(q0 - mp.exp(epsilon) * p0, 0)
        for truth, asked in (beta, {"alpha": alpha}), (delta, {"epsilon": epsilon}):
            found = f.bounds(**asked)
            if not mp.mpf(float(found.lower)) <= truth <= mp.mpf(float(found.upper)):
                false.append((far, asked))
    assert not false
