"""Private selection against exact selection, and published numbers."""

import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.selection import Geometric, Logarithmic, NegativeBinomial, Poisson


@pytest.mark.parametrize(
    ("mu", "success_prob", "expected"),
    [(0.25, 0.1, 1.631306), (0.25, 0.01, 2.150840), (1.0, 0.1, 7.080311)],
)
def test_known_epsilons(mu, success_prob, expected):
    """Digits found by a search with 15 digits of the same equation."""
    law = NegativeBinomial(shape=1.0, success_prob=success_prob)
    tuned = fdp.SelectBest(fdp.Gaussian(1 / mu), repetitions=law)
    assert tuned.bounds(delta=1e-6).upper == pytest.approx(expected, abs=6e-7)
    # The same by mpmath, with the root of H_R = (R - 1) g / (1 - g).
    with mpmath.workdps(30):
        phi, g = mpmath.ncdf, mpmath.mpf(success_prob)
        delta = lambda e: phi(mu / 2 - e / mu) - mpmath.exp(e) * phi(-mu / 2 - e / mu)
        r = mpmath.findroot(
            lambda r: delta(r) - mpmath.expm1(r) * g / (1 - g),
            (0.0, -mpmath.log(g)),
            solver="anderson",
        )
        e = mpmath.findroot(lambda e: delta(e) / g - 1e-6, expected - 2 * r)
        exact = float(e + 2 * r)
    upper = float(tuned.bounds(delta=1e-6).upper)
    assert exact <= upper
    assert upper <= exact * (1 + 1e-6)


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
    *(Poisson(mean=0.7), Poisson(mean=8.0)),
)
EPSILONS = np.array([-2.0, -0.7, -0.1, 0.0, 0.2, 0.6, 1.3, 3.0])


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


@pytest.mark.parametrize("wrong", [10, 10.0, "geometric", Geometric])
def test_refuses_other_numbers_of_runs(wrong):
    with pytest.raises(TypeError, match="repetitions must be a law"):
        fdp.SelectBest(fdp.Gaussian(1.0), repetitions=wrong)


def test_rare_poisson_runs_are_no_failure():
    """Also where hardly anything is ever run."""
    tuned = fdp.SelectBest(fdp.Gaussian(1.0), repetitions=Poisson(mean=1e-9))
    assert tuned.epsilon(delta=1e-6) == 0


def test_refuses_other_runs():
    for wrong in (1.0, fdp.Gaussian, fdp.Gaussian(1.0).remove):
        with pytest.raises(TypeError, match="run must be a guarantee"):
            fdp.SelectBest(wrong, repetitions=Poisson(mean=2.0))
