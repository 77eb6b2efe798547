"""Last iterates against exact laws: quadratic objectives, and others on a grid."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

import fdp_jax as fdp


def _mu(noise, contraction, steps):
    last = fdp.LastIterate(noise, contraction=contraction, num_steps=steps)
    return float(fdp.divergences.gdp(last).mu)


@pytest.mark.parametrize("contraction", [0.0, 1e-3, 0.3, 0.9, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 3000])
def test_quadratic_objectives_attain_it(contraction, steps):
    # x <- c x - (shift + noise): means move apart as variances grow.
    apart, variance = 0.0, 0.0
    for _ in range(steps):
        apart, variance = contraction * apart + 1, contraction**2 * variance + 1
    truth = apart / math.sqrt(variance) / 2.5
    assert _mu(2.5, contraction, steps) == pytest.approx(truth, rel=1e-7)


def _iterates(maps, noise, steps):
    """Densities of the last iterates of one-dimensional maps, on a common grid."""
    x = np.linspace(-14, 14, 1401)
    found = []
    for f in maps:
        kernel = stats.norm.pdf(x[:, None], loc=f(x), scale=noise) * (x[1] - x[0])
        law = stats.norm.pdf(x, loc=f(np.array(0.5)), scale=noise) * (x[1] - x[0])
        for _ in range(steps - 1):
            law = kernel @ law
        found.append(law)
    return found


@pytest.mark.parametrize("steps", [2, 4, 12])
def test_other_convex_objectives_are_below_it(steps):
    rate, noise = 0.5, 1.5
    # The second derivative of log(cosh(x)) + x^2 / 10 is between 0.2 and 1.2; another
    # record adds or changes a convex loss with a derivative of at most 1, and 0.6 at
    # most of its own: c = 1 - 0.1.
    base = lambda x: np.tanh(x) + 0.2 * x
    more = [
        lambda x: np.ones_like(x),
        lambda x: np.tanh(0.6 * x),
        lambda x: np.tanh(0.6 * (x - 3)),
        lambda x: -np.ones_like(x) * (x < 50),
    ]
    last = fdp.LastIterate(noise, contraction=0.9, num_steps=steps)
    epsilons = np.array([0.0, 0.5, 1.5])
    bounds = np.array([float(last.delta(epsilon=e)) for e in epsilons])
    without = lambda x: x - rate * base(x)
    for record in more:
        with_record = lambda x, g=record: x - rate * (base(x) + g(x))
        p, q = _iterates((without, with_record), rate * noise, steps)
        assert [p.sum(), q.sum()] == pytest.approx([1, 1], abs=1e-9)
        for a, b in ((p, q), (q, p)):
            gaps = np.maximum(b - np.exp(epsilons)[:, None] * a, 0).sum(axis=1)
            assert np.all(gaps <= bounds + 1e-9)


def test_no_number_of_steps_leaks_more_than_the_limit():
    limit = math.sqrt((1 + 0.9) / (1 - 0.9)) / 20
    assert _mu(20.0, 0.9, 10**9) == pytest.approx(limit, rel=1e-12)
    last = fdp.LastIterate(20.0, contraction=0.9, num_steps=1000)
    same = fdp.Gaussian(1 / limit)
    assert float(last.epsilon(delta=1e-6)) == pytest.approx(
        float(same.epsilon(delta=1e-6))
    )
    pair = last.group(2)
    assert float(fdp.divergences.gdp(pair).mu) == pytest.approx(2 * limit)


def test_fitted_to_a_budget():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-6)
    needed = float(
        fdp.calibrate(fdp.Gaussian(None), target, solve_for="noise_multiplier").value
    )
    last = fdp.LastIterate(None, contraction=0.5, num_steps=2)
    found = fdp.calibrate(last, target, solve_for="noise_multiplier").value
    assert float(found) == pytest.approx(needed * math.sqrt(3 * 0.75 / 1.25), rel=1e-6)
    run = fdp.LastIterate(30.0, contraction=0.99, num_steps=None)
    steps = float(fdp.calibrate(run, target, solve_for="num_steps").value)
    assert _mu(30.0, 0.99, steps) <= 1 / needed < _mu(30.0, 0.99, steps + 1)


@pytest.mark.parametrize("contraction", [0.0, 0.25, 0.75, 1.0])
def test_derivatives(contraction):
    def mu(noise, c, steps):
        last = fdp.LastIterate(noise, contraction=c, num_steps=steps)
        return last.exact().parameters[0]

    step = 1e-6
    found = jax.grad(mu, argnums=(0, 1))(2.0, contraction, 5.0)
    low, high = max(contraction - step, 0.0), min(contraction + step, 1.0)
    slope = (_mu(2.0, high, 5) - _mu(2.0, low, 5)) / (high - low)
    assert float(found[0]) == pytest.approx(-_mu(2.0, contraction, 5) / 2, rel=1e-5)
    assert float(found[1]) == pytest.approx(slope, rel=1e-4, abs=1e-5)
