"""Dominance, lattice, extremal mechanisms, weights, emergence, reconstruction."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from reference import comparison_checks
from scipy import stats

import fdp_jax as fdp
from fdp_jax import comparison as cmp

CHECKS = comparison_checks()
GAUSS, LAPLACE, PURE = fdp.Gaussian(1.0), fdp.Laplace(1.0), fdp.PureDP(1.0)


def value(name):
    return CHECKS[name]["value"]


def step(sigma, prob=9e-4, count=1.0):
    return fdp.DPSGD(noise_multiplier=float(sigma), sampling_prob=prob, num_steps=count)


# ---------------------------------------------------------------- extremal mechanisms

NAMED = {"G1": GAUSS, "Lap1": LAPLACE, "f1_0": PURE}


@pytest.mark.parametrize("name", ["G1", "Lap1", "f1_0"])
def test_distances_from_both_ends(name):
    mechanism = NAMED[name]
    far, error = (
        cmp.distance_from_perfect_privacy(mechanism),
        cmp.minimax_error(mechanism),
    )
    np.testing.assert_allclose(far, value(f"pp.{name}"), rtol=1e-11)
    np.testing.assert_allclose(error, value(f"bnp.{name}"), rtol=1e-11)
    # Lemma 5 for symmetric f, and alpha* is the fixed point.
    np.testing.assert_allclose(far + error, 0.5, rtol=1e-11)
    np.testing.assert_allclose(mechanism.beta(alpha=error), error, rtol=1e-9)


def test_definitions_agree_with_the_divergence():
    perfect = fdp.delta_divergence(fdp.PerfectPrivacy(), GAUSS).value
    np.testing.assert_allclose(perfect.estimate, value("pp.G1"), rtol=1e-12)
    blatant = fdp.delta_divergence(GAUSS, fdp.BlatantNonPrivacy()).value
    np.testing.assert_allclose(blatant.estimate, value("bnp.G1"), rtol=1e-12)


def test_sum_exceeds_one_half_for_asymmetric_trade_offs():
    side = step(1.0, 0.5).remove
    far, error = cmp.distance_from_perfect_privacy(side), cmp.minimax_error(side)
    assert float(far + error) > 0.5 + 1e-4
    prior = np.linspace(0.01, 0.99, 99)
    errors = np.asarray(side.bayes_error(prior=prior))
    np.testing.assert_allclose(error, errors.max(), atol=1e-3)
    assert error >= errors.max() - 1e-9


# -------------------------------------------------------------------------- dominance


def test_crossing_of_gauss_and_laplace():
    found = fdp.blackwell_dominates(GAUSS, LAPLACE)
    assert found.answer == "no"
    assert not found
    assert int(found.crossings.count) == 2
    priors = cmp.crossing_priors(found.crossings)
    np.testing.assert_allclose(priors[0], value("fig3.cross_pi"), rtol=1e-11)
    np.testing.assert_allclose(priors.sum(), 1.0, rtol=1e-11)
    low, high = found.crossings.epsilon_lower, found.crossings.epsilon_upper
    inside = (low[:2] <= found.crossings.epsilon[:2]) & (
        found.crossings.epsilon[:2] <= high[:2]
    )
    assert np.all(np.asarray(inside))
    assert np.all(np.asarray(high[:2] - low[:2]) < 1e-3)


def test_three_answers():
    yes = fdp.blackwell_dominates(fdp.Gaussian(0.5), GAUSS)
    assert yes.answer == "yes"
    assert yes
    assert int(yes.crossings.count) == 0
    no = fdp.blackwell_dominates(GAUSS, fdp.Gaussian(0.5))
    assert no.answer == "no"
    assert fdp.blackwell_dominates(GAUSS, GAUSS, tolerance=0.0).answer == "yes"
    # Otherwise a tie cannot be told from a tiny difference.
    twice = fdp.compose(fdp.Gaussian(2**0.5), fdp.Gaussian(2**0.5))
    tie = fdp.blackwell_dominates(GAUSS, twice, tolerance=0.0)
    assert tie.answer == "undecided"
    assert fdp.blackwell_dominates(GAUSS, LAPLACE, tolerance=0.006).answer == "yes"
    with pytest.raises(ValueError, match="tolerance"):
        fdp.blackwell_dominates(GAUSS, LAPLACE, tolerance=2.0)


# ---------------------------------------------------------------------------- lattice


def test_join_and_meet_at_reference_points():
    join, meet = cmp.Join(GAUSS, LAPLACE), cmp.Meet(GAUSS, LAPLACE)
    alpha = np.linspace(0.0, 1.0, 21)
    found = join.bounds(alpha=alpha)
    truth = value("join.G1_Lap1.a0.2")
    np.testing.assert_allclose(found.estimate[4], truth, rtol=1e-12)
    assert found.lower[4] <= truth <= found.upper[4]
    assert found.upper[4] - found.lower[4] < 1e-3
    truth = value("meet.G1_Lap1.a0.2")
    np.testing.assert_allclose(meet.beta(alpha=alpha)[4], truth, rtol=1e-10)


def test_lattice_laws():
    join, meet = cmp.Join(GAUSS, LAPLACE), cmp.Meet(GAUSS, LAPLACE)
    alpha = np.linspace(0.0, 1.0, 21)
    curves = [np.asarray(g.beta(alpha=alpha)) for g in (join, GAUSS, LAPLACE, meet)]
    assert np.all(curves[0] <= np.minimum(curves[1], curves[2]) + 1e-12)
    assert np.all(curves[3] >= np.maximum(curves[1], curves[2]) - 1e-12)


def test_lattice_laws_of_the_bayes_error():
    join, meet = cmp.Join(GAUSS, LAPLACE), cmp.Meet(GAUSS, LAPLACE)
    prior = np.linspace(0.05, 0.95, 19)
    errors = [
        np.asarray(g.bayes_error(prior=prior)) for g in (join, GAUSS, LAPLACE, meet)
    ]
    np.testing.assert_allclose(errors[0], np.minimum(errors[1], errors[2]), rtol=1e-12)
    assert np.all(errors[3] >= np.maximum(errors[1], errors[2]) - 1e-6)
    # Absorption: the join with something smaller is the thing itself.
    same = cmp.Join(fdp.Gaussian(0.5), GAUSS).bayes_error(prior=prior)
    np.testing.assert_allclose(same, fdp.Gaussian(0.5).bayes_error(prior=prior))


@pytest.mark.slow
def test_divergence_is_the_distance_to_the_join():
    join = cmp.Join(GAUSS, LAPLACE)
    direct = fdp.delta_divergence(GAUSS, LAPLACE).value.estimate
    found = fdp.delta_divergence(GAUSS, join)
    np.testing.assert_allclose(found.value.estimate, direct, rtol=1e-10)
    # They coincide on an interval of priors: zero, but not proved to all digits.
    back = fdp.delta_divergence(join, GAUSS).value
    assert back.estimate < 1e-14
    assert back.upper < 1e-4


@pytest.mark.slow
def test_meet_is_the_hull():
    # Two points of an (epsilon, delta) pair: the hull can be had from f = max(f, f~).
    meet = cmp.Meet(GAUSS, LAPLACE)
    epsilon = np.array([-0.5, 0.0, 0.3, 0.8, 1.5])
    alpha = np.linspace(0.0, 1.0, 4001)
    both = np.maximum(GAUSS.beta(alpha=alpha), LAPLACE.beta(alpha=alpha))
    conjugate = np.max(1 - both - np.exp(epsilon)[:, None] * alpha, axis=1)
    found = meet.bounds(epsilon=epsilon)
    np.testing.assert_allclose(found.estimate, conjugate, atol=1e-4)
    assert np.all(np.asarray(found.lower) <= conjugate + 1e-4)
    assert np.all(np.asarray(found.upper) >= conjugate - 1e-12)
    inverse = meet.bounds(delta=np.asarray(found.estimate)[1:4])
    np.testing.assert_allclose(inverse.estimate, epsilon[1:4], atol=1e-3)
    assert np.all(np.asarray(inverse.upper) >= epsilon[1:4] - 1e-9)


# ---------------------------------------------------------------------------- weights

PRIORS = {"beta": cmp.jeffreys(), "uquad": cmp.uquadratic()}
PAIRS = {"G_L": (GAUSS, LAPLACE), "L_G": (LAPLACE, GAUSS)}


@pytest.mark.parametrize("pair", ["L_G", "G_L"])
@pytest.mark.parametrize("prior", PRIORS)
def test_weighted_divergence(prior, pair):
    truth = value(f"weighted.{prior}.{pair}")
    found = cmp.weighted_divergence(*PAIRS[pair], hyper_prior=PRIORS[prior]).value
    np.testing.assert_allclose(found.estimate, truth, rtol=1e-12)
    assert found.lower <= truth <= found.upper
    np.testing.assert_allclose(found.upper, truth, rtol=1e-5)


def test_custom_densities():
    uniform = cmp.HyperPrior(lambda pi: 1 + 0 * pi)
    found = cmp.weighted_divergence(GAUSS, LAPLACE, hyper_prior=uniform).value
    np.testing.assert_allclose(found.estimate, value("fig3.gauss_lap"), rtol=1e-12)
    assert np.isinf(found.upper)  # nothing is known between the places looked at


def test_densities_that_are_none():
    with pytest.raises(ValueError, match="density"):
        cmp.HyperPrior(lambda pi: -1 + 0 * pi)
    with pytest.raises(ValueError, match="density"):
        cmp.HyperPrior(lambda pi: 1 / pi**2)
    with pytest.raises(ValueError, match="density must be finite at prior 1"):
        cmp.HyperPrior(lambda pi: 1 / jnp.sqrt(pi * (1 - pi)), convex=True)
    with pytest.raises(ValueError, match="density must be symmetric"):
        cmp.HyperPrior(lambda pi: 1 + pi, symmetric=True)
    with pytest.raises(TypeError, match="hyper_prior"):
        cmp.weighted_divergence(GAUSS, LAPLACE, hyper_prior=3.0)  # pyright: ignore


def test_a_density_of_the_users_may_be_infinite_at_both_ends():
    own = cmp.HyperPrior(
        lambda pi: 1 / (jnp.pi * jnp.sqrt(pi * (1 - pi))), convex=True, symmetric=True
    )
    found, known = (
        cmp.weighted_divergence(LAPLACE, GAUSS, hyper_prior=x).value
        for x in (own, cmp.jeffreys())
    )
    np.testing.assert_allclose(found.estimate, known.estimate, rtol=1e-14)
    assert known.lower <= found.estimate <= found.upper


def test_derivatives_of_weighted_divergences():
    def weighted(noise):
        found = cmp.weighted_divergence(
            LAPLACE, fdp.Gaussian(noise), hyper_prior=cmp.jeffreys()
        )
        return found.value.estimate

    slope, step = jax.grad(weighted)(1.3), 1e-5
    difference = (weighted(1.3 + step) - weighted(1.3 - step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_regrets_have_no_derivative():
    regret = lambda s: fdp.blackwell_dominates(GAUSS, fdp.Gaussian(s)).reverse.estimate
    assert np.isnan(jax.grad(regret)(2.0))


@pytest.mark.slow
def test_derivatives_at_point_masses():
    """(1 - p, p) against (.8, .2): the error .8 / (1.8 - p) where they are equal."""

    def error(p):
        pair = fdp.FromProbabilities(jnp.stack([p, 1 - p]), jnp.asarray([0.2, 0.8]))
        return cmp.minimax_error(pair.remove)

    for p in (0.43, 0.6):
        np.testing.assert_allclose(error(p), 1 - 0.8 / (1.8 - p), rtol=2e-12)
        slope = -0.8 / (1.8 - p) ** 2
        np.testing.assert_allclose(jax.grad(error)(p), slope, rtol=1e-12)


def test_selection_on_average():
    choices = [fdp.Gaussian(0.8), GAUSS, fdp.Gaussian(0.5)]
    found = cmp.best_on_average(choices, hyper_prior=cmp.uquadratic())
    assert int(found.best) == 1
    prior = np.linspace(0.0, 1.0, 20_001)
    density = 12 * (prior - 0.5) ** 2
    for mechanism, mean in zip(choices, found.bayes_error, strict=True):
        at = np.asarray(mechanism.bayes_error(prior=prior)) * density
        np.testing.assert_allclose(mean, np.trapezoid(at, prior), rtol=1e-5)
    with pytest.raises(ValueError, match="guarantees"):
        cmp.best_on_average([], hyper_prior=cmp.jeffreys())


def test_averages_of_errors_with_kinks():
    """R has a kink at the prior 1 / (1 + e^mu), beyond which it is min(pi, 1 - pi)."""
    mu = 1.1
    p = 1 / (1 + np.exp(mu))
    rest = 2 * (np.arcsin(np.sqrt(p)) - np.sqrt(p * (1 - p)))
    laplace = (np.exp(-mu / 2) * (1 - 2 * p) + rest) / np.pi
    assert laplace == pytest.approx(0.149493266705, rel=1e-11)
    # f_{eps,0}: R = p all the way between its two kinks.
    pure = (2 * p * np.arcsin(1 - 2 * p) + rest) / np.pi
    poisson = fdp.tradeoff.Poisson(0.8, 2.5)
    choices = {
        "mechanism": (fdp.Laplace(1 / mu), laplace),
        "curve": (fdp.tradeoff.Laplace(mu), laplace),
        "pure": (fdp.tradeoff.ApproxDP(epsilon=mu, delta=0.0), pure),
        "counts": (poisson, _jeffreys_mean_of_counts(0.8, 2.5)),
    }
    found = cmp.best_on_average(
        [f for f, _ in choices.values()], hyper_prior=cmp.jeffreys()
    )
    truths = [truth for _, truth in choices.values()]
    np.testing.assert_allclose(found.bayes_error, truths, rtol=1e-9)


def _jeffreys_mean_of_counts(low, high):
    """The mean of min over k of pi alpha_k + (1 - pi) beta_k, piece by piece."""
    below = np.cumsum(stats.poisson.pmf(np.arange(60)[:, None], [low, high]), axis=0)
    alpha, beta = np.append(1.0, 1 - below[:, 0]), np.append(0.0, below[:, 1])
    # From one count to the next where the posterior odds are even.
    odds = np.exp(low - high) * (high / low) ** np.arange(60)
    cuts = np.concatenate([[0.0], 1 / (1 + 1 / odds), [1.0]])
    mass = np.diff(2 / np.pi * np.arcsin(np.sqrt(cuts)))
    # The mean of pi under Jeffreys' prior: (asin sqrt x - sqrt(x (1 - x))) / Pi.
    first = (np.arcsin(np.sqrt(cuts)) - np.sqrt(cuts * (1 - cuts))) / np.pi
    first = np.diff(first)
    return np.sum(alpha * first + beta * (mass - first))


# -------------------------------------------------------------------------- emergence

KINDS = {"G1": GAUSS, "Lap1": LAPLACE, "f1_0": PURE}
for _s in (2, 3):
    KINDS[f"sgm_p9e-4_s{_s}_P"] = step(_s).remove
    KINDS[f"sgm_p9e-4_s{_s}_Q"] = step(_s).add


@pytest.mark.parametrize("name", KINDS)
def test_moments(name):
    found = cmp.loss_moments(KINDS[name])
    shown = {"eta": found.eta, "be": found.berry_esseen}
    shown |= {k: getattr(found, k) for k in ("v1", "v2", "v3", "v4")}
    for key, number in shown.items():
        truth = value(f"mom.{name}.{key}")
        np.testing.assert_allclose(number, truth, rtol=2e-12, err_msg=key)


def test_moments_of_discrete_losses():
    epsilon = 1.0
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    same = fdp.FromProbabilities([keep, 1 - keep], [1 - keep, keep])
    found, truth = cmp.loss_moments(same), cmp.loss_moments(PURE)
    for name in ("v1", "v2", "v3", "v4", "variance"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(truth, name), rtol=1e-12
        )
    broken = cmp.loss_moments(fdp.FromProbabilities([0.5, 0.5, 0.0], [0.4, 0.4, 0.2]))
    assert np.isinf(broken.v4)
    with pytest.raises(ValueError, match="release once"):
        cmp.loss_moments(GAUSS.repeat(3))


def test_theorem_3():
    found = cmp.emergent_bound(PURE, LAPLACE, num_steps_a=100)
    assert bool(found.premise_ok)
    np.testing.assert_allclose(found.bound, value("thm3.Lap_Lap.N100"), rtol=1e-12)
    turned = cmp.emergent_bound(LAPLACE, PURE, num_steps_a=100)
    assert not bool(turned.premise_ok)
    with pytest.raises(ValueError, match="must meet the theorem's premise"):
        _ = turned.bound
    with pytest.raises(ValueError, match="num_steps_a"):
        cmp.emergent_bound(PURE, LAPLACE, num_steps_a=0.5)


def test_the_bound_of_theorem_3_holds():
    found = cmp.emergent_bound(PURE, LAPLACE, num_steps_a=100)
    true = fdp.delta_divergence(PURE.repeat(100), LAPLACE.repeat(100)).value
    assert true.upper <= found.bound


@pytest.mark.parametrize("side", ["P", "Q"])
def test_printed_tightness_example(side):
    pick = (lambda s: s.remove) if side == "P" else (lambda s: s.add)
    found = cmp.emergent_bound(
        pick(step(2.0)), pick(step(3.0)), num_steps_a=1.4e6, num_steps_b=3.4e6
    )
    # The formula's value, though its premise fails (and a step is not symmetric).
    truth = value(f"tightness.bound.{side}")
    np.testing.assert_allclose(found.berry_esseen_sum, truth, rtol=1e-9)
    assert not bool(found.premise_ok)
    if side == "P":
        needed = value("tightness.ratio_needed")
        np.testing.assert_allclose(found.ratio_needed, needed, rtol=1e-9)


def test_berry_esseen_without_symmetry():
    """Symmetric ones with the premise give Theorem 3; steps of DP-SGD a true bound."""
    found = cmp.berry_esseen_bound(PURE, LAPLACE, num_steps_a=100)
    np.testing.assert_allclose(found, value("thm3.Lap_Lap.N100"), rtol=1e-9)
    # The other way the two Gaussian curves differ too: by R(1/2) = Phi(-mu / 2).
    turned = cmp.berry_esseen_bound(LAPLACE, PURE, num_steps_a=100)
    mu = [20 * float(cmp.loss_moments(m).eta) for m in (LAPLACE, PURE)]
    gap = stats.norm.cdf(-mu[0] / 2) - stats.norm.cdf(-mu[1] / 2)
    np.testing.assert_allclose(turned, value("thm3.Lap_Lap.N100") + gap, rtol=0.05)
    assert turned >= value("thm3.Lap_Lap.N100") + gap - 1e-12
    runs = {"num_steps_a": 1.4e6, "num_steps_b": 3.4e6}
    both = cmp.berry_esseen_bound(step(2.0), step(3.0), **runs)
    # 1.68e-3 of the formula, and 2.77e-4 that the approximations differ by.
    assert 1.68e-3 < both < 1.68e-3 + 4e-4
    one_way = cmp.berry_esseen_bound(step(2.0).add, step(3.0).add, **runs)
    np.testing.assert_allclose(one_way, both, rtol=1e-9)
    with pytest.raises(ValueError, match="num_steps_b must be at least 1"):
        cmp.berry_esseen_bound(PURE, PURE, num_steps_a=1, num_steps_b=0.5)


def _mp_moments(epsilon, *, laplace):
    """v1, v2, v3, v4 of one release by mpmath: two points, or Laplace noise."""
    e, exp = mp.mpf(epsilon), mp.exp(mp.mpf(epsilon))
    first = e - 1 + 1 / exp if laplace else e * (exp - 1) / (exp + 1)

    def mean(g):
        if not laplace:
            return (g(-e) * exp + g(e)) / (1 + exp)
        # X = -e where the noise is below 0, e above e, and 2 z - e in between.
        kinks = [0, (e - first) / 2, e / 2, e]
        inner = mp.quad(lambda z: g(2 * z - e) * mp.exp(-z) / 2, kinks)
        return g(-e) / 2 + g(e) / (2 * exp) + inner

    powers = (lambda x: x**2), (lambda x: abs(x + first) ** 3), lambda x: abs(x) ** 3
    return [first, *map(mean, powers)]


def test_sums_over_a_triangular_array():
    row = fdp.compose(fdp.PureDP(0.1).repeat(50), fdp.Laplace(20.0).repeat(30))
    with mp.workdps(30):
        one, two = _mp_moments(0.1, laplace=False), _mp_moments(0.05, laplace=True)
        total = [50 * a + 30 * b for a, b in zip(one, two, strict=True)]
        variance = 50 * (one[1] - one[0] ** 2) + 30 * (two[1] - two[0] ** 2)
        distance = float(0.56 * total[2] / variance**1.5)
        limit = float(2 * total[0] / mp.sqrt(total[1]))
    found = cmp.array_limit(row)
    for name, truth in zip(("v1", "v2", "v3", "v4"), total, strict=True):
        shown = getattr(found.moments, name)
        np.testing.assert_allclose(shown, float(truth), rtol=1e-11, err_msg=name)
    np.testing.assert_allclose(found.moments.variance, float(variance), rtol=1e-11)
    np.testing.assert_allclose(found.moments.largest, float(one[0]), rtol=1e-11)
    np.testing.assert_allclose(found.moments.mu, limit, rtol=1e-11)
    np.testing.assert_allclose(found.distance, distance, rtol=1e-11)
    # Of two rows the one with the larger mu dominates, up to both distances.
    weaker = fdp.compose(fdp.PureDP(0.08).repeat(50), fdp.Laplace(25.0).repeat(30))
    other = cmp.array_limit(weaker)
    bound = cmp.emergent_bound(row, weaker).bound
    np.testing.assert_allclose(bound, found.distance + other.distance, rtol=1e-12)
    assert not bool(cmp.emergent_bound(weaker, row).premise_ok)
    np.testing.assert_allclose(cmp.berry_esseen_bound(row, weaker), bound, rtol=1e-9)


def test_limits_of_triangular_arrays():
    scales = np.asarray([0.5, 1.0, 2.0])
    found = cmp.array_moments(fdp.Schedule(fdp.Laplace, scales))
    with mp.workdps(30):
        every = [_mp_moments(1 / s, laplace=True) for s in scales.tolist()]
    shown = [getattr(found, name) for name in ("v1", "v2", "v3", "v4")]
    truth = [float(sum(v)) for v in zip(*every, strict=True)]
    np.testing.assert_allclose(shown, truth, rtol=1e-11)
    # Along the lemma's arrays mu tends to 1, and what has to vanish does.
    row = lambda n: fdp.PureDP(n**-0.5).repeat(n)
    rows = [cmp.array_limit(row(n)) for n in (100, 10_000)]
    for name in ("largest", "v4"):
        parts = [float(getattr(x.moments, name)) for x in rows]
        assert parts[1] < 0.11 * parts[0]
    assert abs(rows[1].moments.mu - 1) < 1e-4 < abs(rows[0].moments.mu - 1)
    # A Gaussian is its own limit.
    gaussian = cmp.array_limit(fdp.compose(GAUSS, fdp.Gaussian(2.0)))
    np.testing.assert_allclose(gaussian.mu, 1.25**0.5, rtol=1e-14)
    assert float(gaussian.distance) == 0
    with pytest.raises(ValueError, match="mechanism must be symmetric"):
        cmp.array_limit(step(1.0, 0.1, 10.0))
    with pytest.raises(ValueError, match="discrete loss, got"):
        cmp.array_moments(fdp.tradeoff.Poisson(1.0, 2.0).as_mechanism())
    with pytest.raises(TypeError, match="array_moments must be a mechanism"):
        cmp.array_limit(1.0)


def test_distance_from_the_limit_of_an_array():
    """Two kinds of randomized response, composed by enumeration."""
    (e, n), (o, m) = (0.3, 20), (0.2, 15)
    found = cmp.array_limit(
        fdp.compose(fdp.PureDP(e).repeat(n), fdp.PureDP(o).repeat(m))
    )
    ups = [
        stats.binom.pmf(np.arange(k + 1), k, 1 / (1 + np.exp(x)))
        for x, k in ((e, n), (o, m))
    ]
    p = np.outer(*ups).ravel()
    loss = e * (2 * np.arange(n + 1) - n)[:, None] + o * (2 * np.arange(m + 1) - m)
    q = p * np.exp(loss.ravel())
    prior = np.linspace(0.01, 0.99, 99)[:, None]
    true = np.minimum(prior * p, (1 - prior) * q).sum(axis=1)
    prior, mu = prior[:, 0], float(found.mu)
    cut = np.log(prior / (1 - prior)) / mu
    normal = stats.norm.cdf
    limit = prior * normal(-mu / 2 - cut) + (1 - prior) * normal(cut - mu / 2)
    gap = np.max(np.abs(true - limit))
    assert 1e-5 < gap < float(found.distance) < 0.15


def test_order_after_many_releases():
    found = cmp.first_dominating_num_steps(fdp.Gaussian(1.5), GAUSS, max_num_steps=4)
    assert found.num_steps is None
    assert not found.expected
    assert {1, 2, 4} <= {n for n, _, _ in found.tried}
    assert all(lower > 1e-3 for _, lower, _ in found.tried)
    assert cmp.first_dominating_num_steps(GAUSS, fdp.Gaussian(1.5)).num_steps == 1


# --------------------------------------------------------------------- reconstruction


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["add", "remove"])
def test_reconstruction_bound(direction):
    for name, entry in CHECKS.items():
        if ".rero." not in name:
            continue
        _, _, which, rest = name.split(".", 3)
        if which != direction:
            continue
        kappa = float(rest.split(".k")[1])
        params = entry["params"]
        run = step(params["sigma"], params["p"], float(params["T"]))
        side = run.add if direction == "add" else run
        found = cmp.reconstruction_bound(side, kappa=kappa)
        np.testing.assert_allclose(found, entry["value"], rtol=1e-6, err_msg=name)


def test_reconstruction_edges():
    found = cmp.reconstruction_bound(GAUSS, kappa=jnp.array([0.0, 0.1, 1.0]))
    np.testing.assert_allclose(found, [0.0, 0.38914369164536, 1.0], rtol=1e-9)
    with pytest.raises(ValueError, match="kappa"):
        cmp.reconstruction_bound(GAUSS, kappa=1.5)


@pytest.mark.slow
def test_a_meet_beyond_the_priors_that_are_looked_at():
    """It leaks no more than the better of two Gaussians, which is the meet of them."""
    meet, truth = cmp.Meet(fdp.Gaussian(0.1), fdp.Gaussian(0.11)), fdp.Gaussian(0.11)
    delta, epsilon = meet.delta(epsilon=70.0), meet.epsilon(delta=1e-3)
    np.testing.assert_allclose(delta, truth.delta(epsilon=70.0), rtol=1e-10)
    np.testing.assert_allclose(epsilon, truth.epsilon(delta=1e-3), rtol=1e-10)
    assert np.isnan(jax.grad(lambda e: meet.delta(epsilon=e))(1.0))


def test_arguments_of_emergence():
    with pytest.raises(ValueError, match=r"constant must be at least 0\.4097"):
        cmp.emergent_bound(PURE, LAPLACE, num_steps_a=100, constant=0.1)
    with pytest.raises(TypeError, match="a must be a whole mechanism, got"):
        cmp.first_dominating_num_steps(GAUSS.remove, LAPLACE)
    other = fdp.Laplace(1.0, relation=fdp.NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match="relation"):
        cmp.emergent_bound(PURE, other, num_steps_a=100)


def test_a_constant_for_equal_releases_is_refused_where_they_differ():
    row = fdp.compose(fdp.PureDP(0.1).repeat(50), fdp.Laplace(20.0).repeat(50))
    with pytest.raises(ValueError, match=r"constant must be at least 0.56 .*0.4748"):
        fdp.comparison.array_limit(row, constant=0.4748)
    assert fdp.comparison.array_limit(fdp.PureDP(0.1).repeat(50), constant=0.4748)
