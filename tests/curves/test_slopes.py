"""Slopes in a mechanism's parameters: of curves on a grid, and at ends of profiles."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fdp_jax as fdp
from fdp_jax.curves import DELTA, Bounds, Range, intersection, is_vague


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1e-3, 0.9])
def test_slopes_of_error_rates_are_those_of_the_mechanism(alpha):
    beta = lambda noise, make: make(fdp.Gaussian(noise)).beta(alpha=alpha)
    found = jax.grad(beta)(1.1, lambda g: g.curve())
    # f(alpha) = Phi(Phi^-1(1 - alpha) - mu), mu = 1 / noise.
    z = scipy.stats.norm.isf(alpha) - 1 / 1.1
    exact = scipy.stats.norm.pdf(z) / 1.1**2
    assert found == pytest.approx(exact, rel=1e-6)


def test_slopes_of_profiles_between_nodes():
    epsilons = [0.013, 0.4, 1.7, -0.6]
    for epsilon in epsilons:
        ask = lambda noise, make, e=epsilon: make(fdp.Gaussian(noise)).log_delta(
            epsilon=e
        )
        found = jax.grad(ask)(0.8, lambda g: g.curve())
        exact = jax.grad(ask)(0.8, lambda g: g)
        assert found == pytest.approx(float(exact), rel=1e-7)


@pytest.mark.parametrize(
    ("make", "at", "slope"),
    [
        (fdp.PureDP, 1.0, 1.0),
        (lambda s: fdp.Laplace(s).repeat(3), 2.0, -0.75),
        # log(1 + q (e - 1)), and -10 log(1 - q).
        (
            lambda q: fdp.PoissonSubsampled(fdp.Laplace(1.0), q),
            0.5,
            (math.e - 1) / (1 + 0.5 * (math.e - 1)),
        ),
        (
            lambda q: (
                fdp.DPSGD(noise_multiplier=1.0, sampling_prob=q, num_steps=10).add
            ),
            0.5,
            20.0,
        ),
        (fdp.Gaussian, 1.0, 0.0),  # infinite everywhere
    ],
)
def test_slopes_of_the_largest_loss(make, at, slope):
    found = jax.grad(lambda x: make(x).epsilon(delta=0.0))(at)
    assert found == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "at", "alpha", "slope"),
    [
        # By enumeration of all outputs.
        (
            lambda s: fdp.compose(fdp.DiscreteGaussian(s).repeat(4), fdp.PureDP(0.3)),
            *(3.0, 0.1, 0.0663997784),
        ),
        # By integrals of the closed form; at a point mass, and next to the largest.
        (
            lambda s: fdp.compose(fdp.Laplace(s), fdp.Laplace(2.2)),
            *(1.9, 0.43, 0.0899792076),
        ),
        (
            lambda s: fdp.compose(fdp.Laplace(s), fdp.Laplace(2.2)),
            *(1.9, 0.1, 0.0692161898),
        ),
        (
            lambda s: fdp.compose(fdp.Laplace(s), fdp.Laplace(1.3)),
            *(1.1, 0.3, 0.246493712271),
        ),
        # Between the point masses.
        (lambda s: fdp.Laplace(s).repeat(2), 2.0, 0.1, 0.124891326663),
        # A line to the largest loss: beta = 1 - alpha e^(sum of 1 / scale).
        (lambda s: fdp.Laplace(s).repeat(3), 2.0, 1e-3, 0.75e-3 * math.exp(1.5)),
        (
            lambda s: fdp.compose(fdp.Laplace(s), fdp.Laplace(1.0)),
            *(2.0, 1e-3, 0.25e-3 * math.exp(1.5)),
        ),
    ],
)
def test_slopes_of_error_rates_at_point_masses(make, at, alpha, slope):
    beta = lambda x: make(x).beta(alpha=alpha, bound="estimate")
    assert jax.grad(beta)(at) == pytest.approx(slope, rel=1e-6)


def test_slopes_next_to_the_largest_loss():
    # It is 3 / scale; all but 1e-9 of delta is the point mass there.
    epsilon = lambda s: fdp.Laplace(s).repeat(3).epsilon(delta=1e-6)
    assert jax.grad(epsilon)(2.0) == pytest.approx(-0.75, rel=1e-7)
    # And far beyond it.
    assert jax.grad(lambda s: fdp.Laplace(s).repeat(3).delta(epsilon=1.0))(1e3) == 0
    # And of noise without a largest loss, where its masses end.
    noise = lambda s: fdp.GeneralizedGaussian(s, shape=1.5)
    assert jax.grad(lambda s: noise(s).delta(epsilon=30.0))(1.0) == 0


def test_the_search_for_a_threshold_leaves_the_largest_loss():
    # The outputs with the largest loss have probability .0937.
    found = fdp.compose(fdp.Laplace(1.9), fdp.Laplace(2.2)).bounds(alpha=0.1)
    assert found.status == fdp.Status.TIGHT
    assert float(found.lower) <= 0.733860164522 <= float(found.upper)


def test_certified_ends_keep_the_derivative_of_the_estimate():
    # Of a closed form whose ends meet, as an intersection of two engines' answers has.
    def middle(x):
        one = Bounds(x, x, x, jnp.asarray(0))
        return intersection(one, one, DELTA).estimate

    with jax.enable_x64(True):
        assert jax.grad(middle)(0.5) == 1


@pytest.mark.parametrize(
    ("lower", "vague"), [(0.9 - 1e-8, True), (0.9 - 0.01 - 1e-10, False)]
)
def test_what_tells_next_to_nothing_is_vague_where_it_is_differentiated(lower, vague):
    """Both are tight, but one is known to a share of what a test can gain."""
    found = []

    def middle(x):
        upper = jnp.asarray(0.9 if vague else 0.89)
        answer = Bounds(jnp.asarray(lower), x, upper, jnp.asarray(0))
        found.append(is_vague(answer, Range(0.0, 0.9, 1.0)))
        return answer.estimate

    with jax.enable_x64(True):
        jax.grad(middle)(lower)
        middle(jnp.asarray(lower))
    assert found == [vague, False]


def test_slopes_where_losses_move_each_at_its_own_pace():
    beta = lambda s: fdp.Skellam(s).beta(alpha=0.1, bound="estimate")
    change = beta(2.3 + 1e-4) - beta(2.3 - 1e-4)
    assert jax.grad(beta)(2.3) == pytest.approx(float(change) / 2e-4, rel=1e-6)


# One Gaussian, and two that are like it; beside a list that is short, and a long one,
# which is cut.
@pytest.mark.parametrize(
    ("noise", "limit"),
    [
        (fdp.Gaussian(2.0), 20),
        (fdp.Schedule(fdp.Gaussian, np.full(2, math.sqrt(8))), 20),
        (fdp.Gaussian(2.0), None),
    ],
)
def test_slopes_of_unlike_releases_are_those_of_the_engine_that_knows_them(
    noise, limit
):
    """Contours alone say little of them; the truth is a sum over the integers."""

    def truth(scale):
        reach = limit or 60
        k = np.arange(-reach, reach + 2)
        log_mass = -0.5 * np.square([k / scale, (k - 1) / scale])
        p, q = np.exp(log_mass) * (k < reach + 1, k > -reach)
        gaps = 0.9 - np.diff(log_mass, axis=0)[0, 1:-1]
        near, far = (scipy.stats.norm.sf(2 * gaps + x) for x in (-0.25, 0.25))
        told = q[1:-1] * near - np.exp(0.9) * p[1:-1] * far
        return np.log((q[-1] + np.sum(told)) / np.sum(p))

    def log_delta(scale):
        counts = fdp.DiscreteGaussian(scale, truncation=limit)
        return fdp.compose(noise, counts).remove.log_delta(epsilon=0.9)

    with jax.enable_x64(True):
        found, slope = jax.value_and_grad(log_delta)(2.3)
    assert found == pytest.approx(truth(2.3), abs=1e-9)
    change = truth(2.3 + 1e-5) - truth(2.3 - 1e-5)
    assert slope == pytest.approx(change / 2e-5, rel=3e-9)


@pytest.mark.slow
def test_slopes_of_a_beta_next_to_one_minus_alpha():
    def beta(rate):
        run = fdp.DPSGD(noise_multiplier=4.6, sampling_prob=rate, num_steps=652_000)
        return run.remove.beta(alpha=1e-4, bound="estimate")

    # The contour says that it is between .9998995 and .9999, which is tight.
    with jax.enable_x64(True):
        change = beta(1.15e-6) - beta(1.13e-6)
        assert jax.grad(beta)(1.14e-6) == pytest.approx(float(change) / 2e-8, rel=1e-4)


def test_slopes_in_the_number_of_steps_are_those_of_the_interpolation():
    def epsilon(steps):
        run = fdp.DPSGD(noise_multiplier=0.9, sampling_prob=0.02, num_steps=steps)
        return run.epsilon(delta=1e-5, bound="estimate")

    # Between whole numbers, and by runs that there are.
    between = (epsilon(500.45) - epsilon(500.35)) / 0.1
    assert jax.grad(epsilon)(500.4) == pytest.approx(float(between), rel=1e-6)
    whole = (epsilon(501.0) - epsilon(499.0)) / 2
    assert jax.grad(epsilon)(500.0) == pytest.approx(float(whole), rel=1e-6)


def test_an_upper_end_is_that_of_the_pair_above():
    run = fdp.DPSGD(
        noise_multiplier=1.3,
        num_steps=1,
        sampling=fdp.sampling.FixedSize(prob=0.2),
        relation="zero_out",
    )
    # The pair below is asked on the grid, which says nothing of so little.
    found = run.bounds(epsilon=22.0)
    assert 0 < found.upper <= found.estimate * (1 + 1e-6)
    assert found.lower <= found.estimate
