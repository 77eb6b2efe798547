"""Upper bounds that were once too small: each against a number from elsewhere."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import pytest

import fdp_jax as fdp


def test_discrete_gaussian_moved_beyond_what_is_looked_at():
    # A shift of 100 standard deviations: epsilon is about 100^2 / 2.
    assert fdp.DiscreteGaussian(1.0, sensitivity=100).bounds(delta=1e-5).upper > 4500


@pytest.mark.parametrize("q", [0.25, 0.3, 0.5])
def test_sampled_mechanism_whose_loss_is_almost_one_number(q):
    # With a noise multiplier of 0.1, delta(0) is the probability of a sample.
    step = fdp.PoissonSubsampled(
        fdp.MixtureOfGaussians(0.1, shifts=[1.0], probs=[1.0]), q
    )
    found = step.repeat(10).remove.bounds(epsilon=0.0)
    assert float(found.upper) >= 1 - (1 - q) ** 10 - 1e-5
    assert float(step.add.bounds(epsilon=0.0).upper) >= q - 1e-5


@pytest.mark.parametrize("s", [1.0, 2.0, 10.0])
def test_zcdp_of_a_mixture_is_that_of_its_farthest_components(s):
    mixture = fdp.MixtureOfGaussians(s, shifts=[0, 1], probs=[0.99, 0.01])
    assert float(fdp.divergences.zcdp(mixture)) == pytest.approx(0.5 / s**2, rel=1e-6)


def test_renyi_of_high_order_is_not_that_of_a_loss_with_an_end():
    mixture = fdp.MixtureOfGaussians(1.0, shifts=[0, 1], probs=[0.9, 0.1])
    same = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=1)
    for order in (2.0, 16.0, 64.0, 128.0):
        found, truth = (
            float(fdp.divergences.renyi(x, order=order)) for x in (mixture, same)
        )
        assert found == pytest.approx(truth, rel=1e-5) or math.isinf(found)


def test_a_cut_off_count_and_an_infinite_loss_add_up():
    counts = fdp.PoissonMechanism(offset=1e6, gain=1.0)
    run = fdp.compose(counts, fdp.ApproxDP(epsilon=1e-4, delta=1e-6))
    assert float(run.remove.bounds(epsilon=0.0026).upper) > 2e-6


def test_laplace_next_to_its_largest_loss():
    epsilon = 0.333333333
    truth = -mp.expm1((mp.mpf(epsilon) - mp.mpf(1) / 3) / 2)
    found = fdp.Laplace(3.0).bounds(epsilon=epsilon)
    assert found.lower <= float(truth) <= found.upper


def test_delta_that_is_mostly_infinite_losses():
    # delta = 1 - (1 - d)^2 of the two together with a Gaussian: with 2 d asked for,
    # d^2 is left for the Gaussian, whose epsilon is then 26.4 - 0.2 at most.
    d = 1e-12
    run = fdp.compose(
        fdp.Gaussian(1.0), fdp.ApproxDP(epsilon=0.1, delta=d).repeat(2)
    ).remove
    found = run.bounds(delta=2 * d)
    left = mp.mpf(2 * d) - (1 - (1 - mp.mpf(d)) ** 2)
    # For the upper end the Gaussian alone may use all that is left.
    gauss = fdp.Gaussian(1.0).bounds(delta=float(left)).lower
    assert found.upper >= gauss


def test_infinite_losses_of_a_mixture_do_not_vanish():
    mixture = fdp.RevealedMixture(
        [
            fdp.MixtureOfGaussians(1.0, shifts=[0.0, 1.0], probs=[0.9, 0.1]),
            fdp.Laplace(1.0),
        ],
        probs=[0.5, 0.5],
    )
    assert math.isinf(mixture.bounds(delta=0.0).upper)


@pytest.mark.parametrize("alpha", [1e-18, 1e-12, 1e-6])
def test_wide_cells_at_tiny_errors(alpha):
    # One cell boundary at 0 within reach: below it the power is proportional to alpha.
    found = fdp.tradeoff.QuantizedGaussian(1.0, width=10.0).tpr(fpr=jnp.asarray(alpha))
    tail = lambda x: mp.erfc(mp.mpf(x) / mp.sqrt(2)) / 2
    cuts = [mp.mpf(k) for k in (5, 15)]  # thresholds of the offset that is best
    ratios = [tail(c - 1) / tail(c) for c in cuts]
    assert float(found) > alpha
    assert float(found) <= alpha * float(ratios[-1])


@pytest.mark.parametrize(
    ("p", "q", "size", "epsilon", "truth"),
    [
        ([0.9, 0.1], [0.1, 0.9], 17, 36.22, 0.610),
        ([0.6, 0.3, 0.1], [0.15, 0.35, 0.5], 26, 33.83, 0.681),
    ],
)
def test_large_groups_of_probability_vectors(p, q, size, epsilon, truth):
    group = fdp.FromProbabilities(p, q).group(size)
    assert float(group.add.bounds(epsilon=epsilon).upper) >= truth - 1e-3


def test_what_is_printed_is_no_less_than_what_is_claimed():
    assert (
        "1.42858e-05" in fdp.targets.ApproxDP(epsilon=1.0, delta=1 / 70000).describe()
    )
    assert "1.23457" in fdp.targets.ApproxDP(epsilon=1.23456449, delta=1e-5).describe()
    assert "(1, 1e-05)" in fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5).describe()


def test_single_precision_brackets_hold_too():
    with fdp.native_float32():
        found = fdp.Laplace(1.1).bounds(delta=1e-5)
    truth = fdp.Laplace(1.1).epsilon(delta=1e-5)
    assert found.lower <= truth <= found.upper


def test_renyi_of_a_random_count_has_derivatives():
    def divergence(s):
        step = fdp.DPSGD(noise_multiplier=s, sampling_prob=0.1, num_steps=1)
        run = fdp.RandomRepeat(step, num_steps=[1, 2], probs=[0.5, 0.5])
        return fdp.divergences.renyi(run, order=2.0)

    assert float(jax.grad(divergence)(1.0)) == pytest.approx(-0.0803985, rel=1e-4)
