"""Private selection against exact selection, and published numbers."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import optimize, stats

import fdp_jax as fdp
from fdp_jax._internal import _compilation
from fdp_jax.selection import Geometric, Logarithmic, NegativeBinomial, Poisson


@pytest.mark.parametrize(
    ("mu", "success_prob", "expected"),
    [(0.25, 0.1, 1.631306), (0.25, 0.01, 2.150840), (1.0, 0.1, 7.080311)],
)
def test_below_one_weight_for_all_winners(mu, success_prob, expected):
    """Digits of delta(eps) <= m delta_run(eps - 2 r) by mpmath, which a curve has."""
    law = NegativeBinomial(shape=1.0, success_prob=success_prob)
    with mpmath.workdps(30):
        phi, g = mpmath.ncdf, mpmath.mpf(success_prob)
        delta = lambda e: phi(mu / 2 - e / mu) - mpmath.exp(e) * phi(-mu / 2 - e / mu)
        # The root of H_R = (R - 1) g / (1 - g).
        r = mpmath.findroot(
            lambda r: delta(r) - mpmath.expm1(r) * g / (1 - g),
            (0.0, -mpmath.log(g)),
            solver="anderson",
        )
        e = mpmath.findroot(lambda e: delta(e) / g - 1e-6, expected - 2 * r)
        single = float(e + 2 * r)
    assert single == pytest.approx(expected, abs=6e-7)
    known = fdp.SelectBest(fdp.tradeoff.Gaussian(mu), repetitions=law)
    assert single <= known.bounds(delta=1e-6).upper <= single * (1 + 1e-6)
    tuned = fdp.SelectBest(fdp.Gaussian(1 / mu), repetitions=law)
    assert float(tuned.bounds(delta=1e-6).upper) < 0.99 * single


def _winner(p, law):
    """The exact law of the best output; outputs are in their order, ties at random.

    With the generating function: the best is at most i with chance phi(F_i), and equal
    outputs are the same release.
    """
    below = np.concatenate([[0.0], np.cumsum(p)])
    below[-1] = 1.0
    if isinstance(law, Poisson):
        mean = float(law.mean())
        values = np.exp(mean * (below - 1))
        return np.concatenate([[values[0]], np.diff(values)])
    g, shape = float(law.success_prob), float(law.shape)
    rest = 1 - (1 - g) * below
    if shape == 0:
        values = np.log(rest) / np.log(g)
    else:
        values = (rest**-shape - 1) / (g**-shape - 1)
    return np.diff(values)


LAWS = (
    *(
        NegativeBinomial(shape=x, success_prob=y)
        for x in (0.5, 3.0)
        for y in (0.5, 0.05)
    ),
    *(Geometric(success_prob=0.1), Logarithmic(success_prob=0.02)),
    *(Poisson(mean=0.7), Poisson(mean=8.0), Poisson(mean=60.0)),
)
EPSILONS = np.array([-2.0, -0.7, -0.1, 0.0, 0.2, 0.6, 1.3, 3.0])


@pytest.fixture(autouse=True)
def _optimized(monkeypatch):
    """Programs of selection run so often here that the compiler's optimization pays."""
    monkeypatch.setitem(_compilation.OPTIONS, "xla_backend_optimization_level", 1)


@pytest.mark.parametrize("law", LAWS)
def test_above_exact_selection(law):
    """For random pairs in every order of their outputs, in both directions."""
    draw = np.random.default_rng(5)
    tightest = np.inf
    for _ in range(2):
        p, q = draw.dirichlet(np.ones(4) * 3, 2)
        tuned = fdp.SelectBest(fdp.FromProbabilities(p, q), repetitions=law)
        with jax.enable_x64(True):
            sides = [
                np.asarray(x.delta(epsilon=EPSILONS)) for x in (tuned.remove, tuned.add)
            ]
            rates = np.linspace(0.05, 0.95, 8)
            power = [np.asarray(x.tpr(fpr=rates)) for x in (tuned.remove, tuned.add)]
            thresholds = np.asarray(
                tuned.epsilon(delta=np.array([1e-3, 0.01, 0.1, 0.3]))
            )
        for order in itertools.permutations(range(4)):
            best = [_winner(x[list(order)], law) for x in (p, q)]
            for side, tpr, (a, b) in zip(sides, power, (best, best[::-1]), strict=True):
                gaps = b - np.exp(EPSILONS)[:, None] * a
                exact = np.sum(np.maximum(gaps, 0), axis=1)
                assert np.all(exact <= side + 1e-14)
                # Neyman-Pearson on finitely many outputs, joined by lines.
                by_ratio = np.argsort(-b / a)
                fpr, roc = (np.append(0, np.cumsum(x[by_ratio])) for x in (a, b))
                assert np.all(np.interp(rates, fpr, roc) <= tpr + 1e-14)
                tightest = min(tightest, np.min((side - exact)[3:]))
                gaps = b - np.exp(thresholds)[:, None] * a
                leaks = np.sum(np.maximum(gaps, 0), axis=1)
                assert np.all(leaks <= np.array([1e-3, 0.01, 0.1, 0.3]) + 1e-14)
    assert tightest < 0.2  # not by far


@pytest.mark.parametrize("law", LAWS[:6])
def test_above_exact_selection_of_what_has_a_density(law):
    """The same of outputs with a little Gaussian noise beside them, which is dropped.

    So that a winner's pair is composed with the run.
    """
    draw, deltas = np.random.default_rng(7), np.array([1e-6, 1e-3, 0.01, 0.1])
    p, q = draw.dirichlet(np.ones(4) * 3, 2)
    run = fdp.compose(fdp.FromProbabilities(p, q), fdp.Gaussian(30.0))
    tuned = fdp.SelectBest(run, repetitions=law)
    closest = np.inf
    with jax.enable_x64(True):
        ways = [
            (np.asarray(x.epsilon(delta=deltas)), np.asarray(x.delta(epsilon=EPSILONS)))
            for x in (tuned.remove, tuned.add)
        ]
    for order in itertools.permutations(range(4)):
        best = [_winner(x[list(order)], law) for x in (p, q)]
        for (thresholds, side), (a, b) in zip(ways, (best, best[::-1]), strict=True):
            gaps = b - np.exp(thresholds)[:, None] * a
            assert np.all(np.sum(np.maximum(gaps, 0), axis=1) <= deltas + 1e-14)
            gaps = b - np.exp(EPSILONS)[:, None] * a
            exact = np.sum(np.maximum(gaps, 0), axis=1)
            assert np.all(exact <= side + 1e-14)
            closest = min(closest, np.min((side - exact)[3:]))
    assert closest < 0.2


def _slope(law, below):
    """The derivative of the generating function of the number of runs."""
    g, shape = float(law.success_prob), float(law.shape)
    rest = 1 - (1 - g) * below
    if shape == 0:
        return -(1 - g) / (rest * np.log(g))
    return shape * (1 - g) * rest ** (-shape - 1) / (g**-shape - 1)


@pytest.mark.parametrize("law", LAWS[1:6])
@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_above_the_exact_winner_of_noisy_numbers(law, mu):
    """Of runs with Gaussian noise, the largest, smallest and outermost number wins."""
    y = np.linspace(-12.0, 12.0 + mu, 200_001)
    normal = stats.norm
    tuned = fdp.SelectBest(fdp.Gaussian(1 / mu), repetitions=law)
    deltas = np.array([1e-8, 1e-6, 1e-4, 1e-2])
    thresholds = np.asarray(tuned.epsilon(delta=deltas))

    def worse(center, order):
        up, down = normal.cdf(y - center), normal.sf(y - center)
        if order == "largest":
            return up
        if order == "smallest":
            return down
        far = np.abs(y - mu / 2)
        return normal.cdf(mu / 2 + far - center) - normal.cdf(mu / 2 - far - center)

    for order in ("largest", "smallest", "outermost"):
        a, b = (
            normal.pdf(y - center) * _slope(law, worse(center, order))
            for center in (0.0, mu)
        )
        assert np.trapezoid(a, y) == pytest.approx(1.0, abs=1e-6)
        for x, z in ((a, b), (b, a)):
            gaps = np.maximum(x - np.exp(thresholds)[:, None] * z, 0)
            assert np.all(np.trapezoid(gaps, y, axis=1) <= deltas * (1 + 1e-6))


@pytest.mark.parametrize(
    ("law", "mu"),
    [
        (Geometric(success_prob=0.1), 0.25),
        (Geometric(success_prob=0.01), 0.25),
        (Geometric(success_prob=0.1), 1.0),
        (Logarithmic(success_prob=0.1), 1.0),
        (NegativeBinomial(shape=3.0, success_prob=0.1), 0.5),
    ],
)
def test_costs_what_a_quadrature_says(law, mu):
    """The least over r of an integral over the chance to be beaten, or little more."""
    x = np.append(0.0, np.geomspace(1e-4, 1e9, 6000))
    phi, power = stats.norm.cdf, 1 + float(law.shape)
    delta = lambda t: phi(mu / 2 - t / mu) - np.exp(t) * phi(-mu / 2 - t / mu)
    density = power * (1 + x) ** (-power - 1)
    scale, mean = 1 / float(law.success_prob) - 1, float(law.mean())

    def bound(epsilon, r):
        moved = scale * delta(r) + np.exp(r) * x
        at = epsilon + r - (power + 1) * (np.log1p(moved) - np.log1p(x))
        return mean * np.trapezoid(density * delta(at), x)

    root: Any = lambda r: optimize.brentq(lambda e: bound(e, r) - 1e-6, 0, 40)
    alike: Any = optimize.brentq(lambda r: np.expm1(r) - scale * delta(r), 1e-9, 40)
    exact = min(map(root, np.linspace(alike, 1.5 * alike, 26)))
    tuned = fdp.SelectBest(fdp.Gaussian(1 / mu), repetitions=law)
    found = float(tuned.epsilon(delta=1e-6))
    assert exact * (1 - 1e-4) <= found <= exact * 1.01
    assert float(tuned.delta(epsilon=found)) == pytest.approx(1e-6, rel=1e-8)


@pytest.mark.parametrize(("mean", "published"), [(10.0, 2.0394), (100.0, 6.9635)])
def test_many_runs_cost_what_a_quadrature_says(mean, published):
    """The least over r of the integral over W, and a published bound beside it."""
    mu, w = 0.25, np.linspace(0, 40, 40_001)
    phi = stats.norm.cdf
    delta = lambda t: phi(mu / 2 - t / mu) - np.exp(t) * phi(-mu / 2 - t / mu)

    def bound(epsilon, r):
        at = epsilon - mean * delta(r) + r - np.expm1(r) * w
        return mean * np.trapezoid(np.exp(-w) * delta(at), w)

    root: Any = lambda r: optimize.brentq(lambda e: bound(e, r) - 1e-6, 0, 40)
    exact = min(map(root, np.linspace(0.05, 0.6, 45)))
    tuned = fdp.SelectBest(fdp.Gaussian(4.0), repetitions=Poisson(mean=mean))
    found = float(tuned.epsilon(delta=1e-6))
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 2e-3)
    assert found <= published * 1.001
    assert float(tuned.delta(epsilon=found)) == pytest.approx(1e-6, rel=1e-4)


def test_slopes_of_many_runs():
    law = lambda mean: Poisson(mean=mean)
    epsilon = lambda noise, mean: fdp.SelectBest(
        fdp.Gaussian(noise), repetitions=law(mean)
    ).epsilon(delta=1e-6)
    with jax.enable_x64(True):
        found = jax.grad(epsilon, (0, 1))(4.0, 100.0)
        for slope, step in zip(found, [(1e-5, 0.0), (0.0, 1e-4)], strict=True):
            up, down = (
                epsilon(4.0 + s * step[0], 100.0 + s * step[1]) for s in (1, -1)
            )
            change = float(up - down) / (2 * sum(step))
            assert float(slope) == pytest.approx(change, rel=1e-4)


def test_one_run_costs_a_run():
    run = fdp.Gaussian(1.0)
    tuned = fdp.SelectBest(run, repetitions=Geometric(success_prob=1 - 1e-9))
    expected = pytest.approx(float(run.epsilon(delta=1e-5)), rel=1e-6)
    assert float(tuned.epsilon(delta=1e-5)) == expected


def test_differentiates():
    def epsilon(noise, success_prob):
        law = Geometric(success_prob=success_prob)
        return fdp.SelectBest(fdp.Gaussian(noise), repetitions=law).epsilon(delta=1e-6)

    with jax.enable_x64(True):
        found = jax.grad(epsilon, (0, 1))(4.0, 0.1)
        for i, h in ((0, 1e-4), (1, 1e-5)):
            up, down = ([4.0, 0.1] for _ in range(2))
            up[i] += h
            down[i] -= h
            slope = float(epsilon(*up) - epsilon(*down)) / (2 * h)
            assert float(found[i]) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(
    "law",
    [
        Geometric(success_prob=0.1),
        pytest.param(Poisson(mean=10.0), marks=pytest.mark.slow),
    ],
)
def test_refuses_second_derivatives(law):
    """In place of wrong ones, also inside of programs."""
    tuned = lambda noise: fdp.SelectBest(fdp.Gaussian(noise), repetitions=law)
    epsilon = lambda noise: tuned(noise).epsilon(delta=1e-6)
    delta = lambda noise: tuned(noise).delta(epsilon=1.0)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.grad(jax.grad(epsilon))(4.0)
    # By one profile, where the other query is a search.
    with pytest.raises(Exception, match="first derivatives only"):
        jax.block_until_ready(jax.jit(jax.grad(jax.grad(delta)))(4.0))


def test_under_transformations():
    def epsilon(noise, success_prob):
        law = Geometric(success_prob=success_prob)
        return fdp.SelectBest(fdp.Gaussian(noise), repetitions=law).epsilon(delta=1e-6)

    noises, probs = np.asarray([4.0, 2.0]), np.asarray([0.125, 0.5])
    plain = [float(epsilon(*x)) for x in zip(noises, probs, strict=True)]
    with jax.enable_x64(True):
        mapped = jax.jit(jax.vmap(epsilon))(jnp.asarray(noises), jnp.asarray(probs))
    np.testing.assert_allclose(mapped, plain, rtol=1e-9)
    with jax.enable_x64(False):
        single = jax.jit(epsilon)(jnp.float32(4.0), jnp.float32(0.125))
    assert plain[0] * (1 - 1e-12) <= float(single) <= plain[0] * (1 + 1e-6)


def test_the_pair_to_compose_is_above_exact_selection():
    rng, law = np.random.default_rng(1), LAWS[3]
    p, q = rng.dirichlet(np.ones(4)), np.full(4, 0.25)
    pair = fdp.SelectBest(fdp.FromProbabilities(p, q), repetitions=law).as_mechanism()
    epsilons = np.linspace(-1.0, 3.0, 17)
    found = np.asarray(pair.bounds(epsilon=epsilons).upper)
    for order in itertools.permutations(range(4)):
        a, b = (_winner(x[list(order)], law) for x in (p, q))
        for x, y in ((a, b), (b, a)):
            gaps = np.maximum(x - np.exp(epsilons)[:, None] * y, 0)
            assert np.all(np.sum(gaps, axis=1) <= found)


def test_composes():
    """By a pair that dominates it, and knows no lower bounds."""
    law = Geometric(success_prob=0.1)
    relation = fdp.NeighboringRelation.REPLACE_ONE
    run = fdp.Gaussian(4.0, relation=relation)
    tuned = fdp.SelectBest(run, repetitions=law)
    pair = tuned.as_mechanism()
    assert pair.relation is relation
    for delta in (1e-6, 1e-2):
        own, other = (float(x.epsilon(delta=delta)) for x in (tuned, pair))
        assert own * (1 - 1e-6) <= other <= own * 1.02
    twice = fdp.compose(pair, pair).bounds(delta=1e-6)
    once = float(tuned.epsilon(delta=1e-6))
    assert once < float(twice.upper) < 2 * once
    assert float(twice.lower) <= 0
    for same in (fdp.compose(pair, tuned), tuned.repeat(2)):
        again = float(same.bounds(delta=1e-6).upper)
        assert again == pytest.approx(float(twice.upper), rel=1e-14)


SAMPLING = fdp.sampling
WRAPPED = {
    "poisson": lambda pair: fdp.PoissonSubsampled(pair, 0.5),
    "cyclic": lambda pair: fdp.Subsampled(
        pair, SAMPLING.CyclicPoisson(0.5, num_groups=2), 2
    ),
    "group": lambda pair: pair.group(2),
    "random repeat": lambda pair: fdp.RandomRepeat(
        pair, num_steps=[1, 2], probs=[0.5, 0.5]
    ),
}


def _claims_no_lower_bound(wrapped):
    found = wrapped.bounds(epsilon=0.1)
    assert float(found.lower) == 0.0
    assert float(found.upper) > 0.05


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_wrapped_pairs_claim_no_lower_bound(wrap):
    """A pair that only dominates shows nothing of what is leaked at least."""
    run = fdp.FromProbabilities([0.5, 0.5], [0.4, 0.6])
    law = Geometric(success_prob=0.1)
    _claims_no_lower_bound(wrap(fdp.SelectBest(run, repetitions=law).as_mechanism()))


def test_wrapped_shuffles_claim_no_lower_bound():
    replaced = fdp.Shuffled(fdp.PureDP(1.0, relation="replace_one"), num_records=5)
    _claims_no_lower_bound(fdp.Subsampled(replaced, SAMPLING.FixedSize(prob=0.5), 1))


def test_rare_poisson_runs_are_no_failure():
    """Also where hardly anything is ever run."""
    tuned = fdp.SelectBest(fdp.Gaussian(1.0), repetitions=Poisson(mean=1e-9))
    assert tuned.epsilon(delta=1e-6) == 0


def test_bounded_losses_in_closed_form():
    """The profile of randomized response is a line in e^eps."""
    for success_prob in (0.1, 0.001):
        law = Geometric(success_prob=success_prob)
        tuned = fdp.SelectBest(fdp.PureDP(1.0), repetitions=law)
        slope = (1 / success_prob - 1) / (1 + np.e)
        root = (1 + slope * np.e) / (1 + slope)
        expected = 1 + 2 * np.log(root)
        found = float(tuned.bounds(delta=0.0).upper)
        assert expected <= found <= expected * (1 + 1e-6)
        assert found <= 3  # Papernot and Steinke, Corollary 3


def test_runs_known_by_renyi_divergences():
    """Above the Gaussian run that has them, below the published Renyi bound."""
    law, rho = Geometric(success_prob=0.1), 0.25**2 / 2
    tuned = fdp.SelectBest(fdp.ZCDP(rho), repetitions=law)
    assert 1.631306 < float(tuned.epsilon(delta=1e-6)) < 2.271315
    both = fdp.compose(fdp.ZCDP(rho / 2), fdp.Gaussian(4.0 * np.sqrt(2)))
    again = fdp.SelectBest(both, repetitions=law).epsilon(delta=1e-6)
    assert float(again) == pytest.approx(float(tuned.epsilon(delta=1e-6)), rel=1e-3)
    shown = fdp.SelectBest(fdp.Gaussian(4.0), repetitions=law)
    assert np.all(tuned.delta(epsilon=EPSILONS) >= shown.delta(epsilon=EPSILONS))


@pytest.mark.parametrize("noise", [4.0, 1.0])
def test_advantage_is_what_the_curve_implies(noise):
    """1 - delta over e^eps falls: so delta(0) <= 1 - e^-t (1 - delta(t))."""
    law = Geometric(success_prob=0.1)
    tuned = fdp.SelectBest(fdp.Gaussian(noise), repetitions=law)
    deltas = np.geomspace(1e-4, 0.5, 64)
    epsilons = np.asarray(tuned.epsilon(delta=deltas))
    implied = np.min(1 - np.exp(-epsilons) * (1 - deltas))
    assert implied - 1e-7 <= float(tuned.advantage()) <= implied + 0.01
    rates = np.asarray([0.01, 0.3, 0.9])
    line = 1 - np.max(np.exp(-epsilons) * (1 - deltas - rates[:, None]), axis=1)
    assert np.all(tuned.tpr(fpr=rates) <= line + 0.01)


@pytest.mark.parametrize("law", [Geometric(success_prob=0.1), Poisson(mean=10.0)])
def test_error_rates_are_those_of_the_profile(law):
    """The best line 1 - delta - e^eps alpha, at a grid of thresholds and beyond."""
    run = fdp.Gaussian(1.5)
    tuned, thresholds = fdp.SelectBest(run, repetitions=law), np.linspace(-4, 4, 65)
    deltas = np.asarray(tuned.delta(epsilon=thresholds))
    for alpha in (1e-3, 0.1, 0.6):
        line = np.max(1 - deltas - np.exp(thresholds) * alpha)
        beta = float(tuned.beta(alpha=alpha))
        assert line - 1e-5 <= beta <= line + 2e-3
        assert beta < float(run.beta(alpha=alpha))
        assert float(tuned.tpr(fpr=alpha)) == pytest.approx(1 - beta, abs=1e-6)


def test_nothing_has_no_sign():
    tuned = fdp.SelectBest(fdp.PerfectPrivacy(), repetitions=Poisson(mean=2.0))
    with jax.enable_x64(False):
        found = tuned.delta(epsilon=np.array([1.0, np.inf, 30.0]))
    assert not np.any(np.signbit(found))


@pytest.mark.parametrize(
    ("run", "law", "name", "expected"),
    [
        (fdp.Gaussian(), Geometric(success_prob=0.1), "noise_multiplier", 4.0),
        (fdp.Gaussian(4.0), Geometric(), "success_prob", 0.1),
        (fdp.ZCDP(None), Geometric(success_prob=0.1), "rho", None),
        (fdp.Gaussian(4.0), Poisson(), "expected", None),
    ],
)
def test_calibrates(run, law, name, expected):
    """To the epsilon of a known case, and so that the query finds the target met."""
    tuned = fdp.SelectBest(run, repetitions=law)
    target = fdp.targets.ApproxDP(epsilon=1.5754147, delta=1e-6)
    with jax.enable_x64(True):
        found = fdp.calibrate(tuned, target, solve_for=name)
        assert float(found.mechanism.delta(epsilon=1.5754147)) <= 1e-6
        reached = float(found.mechanism.epsilon(delta=1e-6))
    assert reached == pytest.approx(1.5754147, abs=1e-8)
    if expected is not None:
        assert float(found.value) == pytest.approx(expected, rel=2e-6)
    assert name in found.guarantee


def test_calibration_differentiates():
    """As the epsilon that it inverts does."""

    def epsilon(noise, success_prob):
        law = Geometric(success_prob=success_prob)
        return fdp.SelectBest(fdp.Gaussian(noise), repetitions=law).epsilon(delta=1e-6)

    def noise(epsilon, success_prob):
        law = Geometric(success_prob=success_prob)
        tuned = fdp.SelectBest(fdp.Gaussian(), repetitions=law)
        target = fdp.targets.ApproxDP(epsilon=epsilon, delta=1e-6)
        return fdp.calibrate(tuned, target, solve_for="noise_multiplier").value

    with jax.enable_x64(True):
        # In a batch inside of a program, which asks for plain calls.
        found = jax.jit(jax.vmap(jax.value_and_grad(noise, (0, 1)), (0, None)))(
            jnp.array([1.631306]), 0.1
        )
        value, (slope, other) = jax.tree.map(lambda x: x[0], found)
        down, along = jax.grad(epsilon, (0, 1))(float(value), 0.1)
    assert float(slope) == pytest.approx(1 / float(down), rel=1e-6)
    assert float(other) == pytest.approx(-float(along) / float(down), rel=1e-6)
    with jax.enable_x64(False):
        assert float(jax.grad(noise)(1.631306, 0.1)) == pytest.approx(
            float(slope), rel=1e-5
        )


def test_calibration_refuses():
    law = Geometric(success_prob=0.1)
    tuned, target = fdp.SelectBest(fdp.Gaussian(), repetitions=law), fdp.targets
    with pytest.raises(TypeError, match="ApproxDP, Advantage or BayesError"):
        fdp.calibrate(tuned, target.MuGDP(1.0), solve_for="noise_multiplier")
    with pytest.raises(ValueError, match="noise_multiplier of Gaussian is not set"):
        tuned.epsilon(delta=1e-6)
    leaky = fdp.SelectBest(fdp.Gaussian(0.1), repetitions=Geometric())
    one = target.ApproxDP(epsilon=2.0, delta=1e-6)
    with pytest.raises(ValueError, match="could be certified to meet the target"):
        fdp.calibrate(leaky, one, solve_for="success_prob")
    with pytest.raises(ValueError, match="success_prob of Geometric is not set"):
        leaky.epsilon(delta=1e-6)


def test_programs_are_small():
    """Programs ask for plain calls rather than hold all that these would compile."""

    def epsilon(noise, success_prob):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=0.01, num_steps=1000)
        law = Geometric(success_prob=success_prob)
        return fdp.SelectBest(run, repetitions=law).epsilon(delta=1e-6)

    shown = jax.make_jaxpr(jax.jit(jax.vmap(epsilon)))(jnp.ones(2), jnp.full(2, 0.1))
    assert len(str(shown).splitlines()) < 200


def test_means_are_numbers_where_float32_has_one_for_the_probability():
    """Nearly always one run: 1 - g of a second, half of which is the mean's excess."""
    law = fdp.selection.NegativeBinomial(shape=0.0, success_prob=1 - 2e-13)
    np.testing.assert_allclose(law.mean(), 1.0, rtol=1e-6)
    many = fdp.selection.Geometric(success_prob=1 / 3e7)
    np.testing.assert_allclose(many.mean(), 3e7, rtol=1e-6)


@pytest.mark.parametrize("law", [Geometric(success_prob=0.1), Poisson(mean=10.0)])
def test_error_rates_are_below_those_of_the_winner(law):
    """By the exact law of the largest, or the least, of noisy numbers."""
    noise, x = 4.0, np.linspace(-60, 61, 200_001)
    step = x[1] - x[0]
    if isinstance(law, Poisson):
        runs, idle = lambda beaten: 10 * np.exp(10 * (beaten - 1)), np.exp(-10)
    else:
        runs, idle = lambda beaten: 0.1 / (1 - 0.9 * beaten) ** 2, 0.0
    tuned = fdp.SelectBest(fdp.Gaussian(noise), repetitions=law)
    for beaten in (stats.norm.cdf, stats.norm.sf):
        each = [stats.norm.pdf(x, m, noise) * runs(beaten(x, m, noise)) for m in (0, 1)]
        for p, q in (each, each[::-1]):
            order = np.argsort(-q / p)
            alpha, power = (np.cumsum(row[order]) * step for row in (p, q))
            for level in (1e-4, 0.05, 0.5, 0.95):
                least = np.sum(q) * step + idle - np.interp(level, alpha, power)
                assert tuned.beta(alpha=level) <= least + 1e-6
