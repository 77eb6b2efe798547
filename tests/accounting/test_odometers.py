"""What was leaked at any time, of choices in view of earlier results."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import fdp_jax as fdp
from fdp_jax.accounting import GaussianOdometer, RenyiOdometer, ZCDPOdometer

ORDERS = [1.5, 3.0, 9.0]


@functools.cache
def _unit():
    return fdp.RenyiDP(ORDERS, [0.5 * t for t in ORDERS])


def _response_divergence(epsilon, t):
    """Of randomized response that is epsilon-DP, at order t."""
    # p^t q^(1-t) + q^t p^(1-t), with p = e^epsilon q = 1 / (1 + e^-epsilon).
    both = np.logaddexp(t * epsilon, (1 - t) * epsilon)
    return (both - np.logaddexp(0, epsilon)) / (t - 1)


def _gaussian_cost(epsilon):
    """mu: its trade-off function's kink is on the one of mu-GDP."""
    return 2 * norm.ppf(1 / (1 + math.exp(-epsilon)))


def _zcdp_cost(epsilon):
    """rho = sup D_t / t over a fine grid of orders, and a little."""
    orders = 1 + np.geomspace(1e-6, 1e3, 4000)
    return 1.001 * max(_response_divergence(epsilon, t) / t for t in orders)


def _renyi_cost(epsilon):
    return fdp.RenyiDP(ORDERS, [_response_divergence(epsilon, t) for t in ORDERS])


KINDS = {
    "gaussian": (lambda: GaussianOdometer(mu=0.5), _gaussian_cost),
    "zcdp": (lambda: ZCDPOdometer(rho=0.1), _zcdp_cost),
    "renyi": (lambda: RenyiOdometer(_unit()), _renyi_cost),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delta", [0.02, 0.9])
def test_no_adversary_gains_more_than_delta(kind, delta):
    """Randomized response, its noise and the stopping time chosen by the results.

    By backward induction over all histories, which finds the best of all adversaries.
    """
    make, cost = KINDS[kind]
    choices = [0.3, 0.8, 2.0]
    costs = [cost(x) for x in choices]

    @functools.cache
    def epsilon(spent):
        odometer = make()
        for index, count in enumerate(spent):
            if count:
                odometer = odometer.step(costs[index], count=count)
        return float(odometer.epsilon(delta=delta))

    def gain(p, q, spent):
        """The most that int (dP - e^E dQ)_+ may be, of all that may follow."""
        most = max(p - math.exp(epsilon(spent)) * q, 0.0)
        if sum(spent) == 4:
            return most
        for index, choice in enumerate(choices):
            truth = 1 / (1 + math.exp(-choice))
            after = tuple(n + (i == index) for i, n in enumerate(spent))
            each = ((truth, 1 - truth), (1 - truth, truth))
            total = sum(gain(p * one, q * other, after) for one, other in each)
            most = max(most, total)
        return most

    found = gain(1.0, 1.0, (0, 0, 0))
    assert found <= delta, found
    if delta > 0.5:
        # And the game is not a void one.
        assert found > 0


@pytest.mark.parametrize("kind", KINDS)
def test_more_is_never_less(kind):
    make, cost = KINDS[kind]
    odometer, last = make(), 0.0
    assert odometer.epsilon(delta=1e-5) == 0
    for _ in range(12):
        odometer = odometer.step(cost(0.4), count=3)
        found = float(odometer.epsilon(delta=1e-5))
        assert found >= last * (1 - 1e-15)  # at the most that is ever told
        assert found >= odometer.epsilon(delta=1e-3)
        last = found
    assert odometer.step(cost(0.4), count=0).epsilon(delta=1e-5) == last


def test_bounds_are_those_of_the_grid():
    """The least mu^2 2^(i/2) that holds, with its share of delta, by closed forms."""
    total = sum(1 / (1 + abs(i)) ** 2 for i in range(-64, 65))
    for spent in (1e-3, 0.7, 1.0, 1.1, 37.0):
        odometer = GaussianOdometer(mu=2.0).step(math.sqrt(spent))
        level = math.ceil(2 * math.log2(spent / 4.0) - 1e-9)
        share = 1 / (1 + abs(level)) ** 2 / total
        noise = (4.0 * 2 ** (level / 2)) ** -0.5
        expected = fdp.Gaussian(noise).epsilon(delta=1e-5 * share)
        found = odometer.epsilon(delta=1e-5)
        assert found == pytest.approx(float(expected), rel=1e-6)
        assert found >= expected
    # Where the unit is what was spent, nothing but a share of delta is lost.
    close = GaussianOdometer(mu=1.0).step(1.0).epsilon(delta=1e-5)
    assert close <= 1.06 * fdp.Gaussian(1.0).epsilon(delta=1e-5)
    # A unit that is wrong by 1000 costs logarithms: 40 levels.
    far = GaussianOdometer(mu=1000.0).step(1.0).epsilon(delta=1e-5)
    assert far <= 1.6 * close
    assert GaussianOdometer(mu=1.0).step(1e5).epsilon(delta=1e-5) == np.inf


def test_mechanisms_cost_what_they_cost_filters():
    noisy = fdp.Gaussian(3.0)
    for odometer, budget in [
        (GaussianOdometer(), fdp.accounting.GaussianFilter(9.0)),
        (ZCDPOdometer(), fdp.accounting.ZCDPFilter(9.0)),
        (RenyiOdometer(_unit()), fdp.accounting.RenyiFilter(_unit())),
    ]:
        np.testing.assert_array_equal(
            odometer.step(noisy, count=2).spent, budget.step(noisy, count=2).spent
        )


@pytest.mark.parametrize("double", [True, False])
def test_runs_inside_of_programs(double):
    """One program for any noise, with the choice of each step made inside."""
    traces = []

    @jax.jit
    def run(odometer, noise):
        traces.append(None)

        def step(state, x):
            odometer, noise = state
            odometer = odometer.step(fdp.Gaussian(noise))
            return (odometer, noise * (1 + x)), odometer.epsilon(delta=1e-5)

        return jax.lax.scan(step, (odometer, noise), jnp.linspace(0, 0.5, 6))[1]

    with jax.enable_x64(double):
        start = jax.tree.map(jnp.asarray, GaussianOdometer(mu=1.0))
        for first in (2.0, 3.0):
            found = run(start, first)
            noise = first * np.cumprod(1 + np.linspace(0, 0.5, 6))
            noise = np.append(first, noise[:-1])
            odometer = GaussianOdometer(mu=1.0)
            for one, value in zip(noise, found, strict=True):
                odometer = odometer.step(fdp.Gaussian(float(one)))
                expected = float(odometer.epsilon(delta=1e-5))
                assert value == pytest.approx(expected, rel=1e-9 if double else 1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize("make", [GaussianOdometer, ZCDPOdometer])
def test_batches_and_derivatives(make):
    costs, deltas = jnp.asarray([0.1, 0.4]), jnp.asarray([1e-5, 1e-3])
    ask = lambda cost, delta: make(1.0).step(cost).epsilon(delta=delta)
    found = jax.vmap(ask)(costs, deltas)
    for cost, delta, value in zip(costs, deltas, found, strict=True):
        assert value == pytest.approx(float(ask(float(cost), float(delta))), rel=1e-12)
        slope = jax.grad(ask, argnums=1)(cost, delta)
        step = 1e-4 * delta
        change = ask(cost, delta + step) - ask(cost, delta - step)
        assert slope == pytest.approx(float(change / (2 * step)), rel=1e-4)
    many = make(1.0).step(0.1).epsilon(delta=np.asarray(deltas))
    assert many.shape == (2,)
