"""Upper bounds that were once too small: each against a number from elsewhere."""

import bisect
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.stats

import fdp_jax as fdp


def test_discrete_gaussian_moved_beyond_what_is_looked_at():
    # A shift of 100 standard deviations: epsilon is about 100^2 / 2.
    assert fdp.DiscreteGaussian(1.0, sensitivity=100).bounds(delta=1e-5).upper > 4500


@pytest.mark.parametrize("q", [0.25, 0.3, 0.5])
def test_sampled_mechanism_whose_loss_is_almost_one_number(q):
    # With a noise multiplier of 0.1, delta(0) is the probability of a sample.
    found = _almost_revealed(q).repeat(10).remove.bounds(epsilon=0.0)
    assert float(found.upper) >= 1 - (1 - q) ** 10 - 1e-5


def test_sampled_mechanism_whose_loss_is_almost_one_number_by_the_record_left():
    q = 0.3
    assert float(_almost_revealed(q).add.bounds(epsilon=0.0).upper) >= q - 1e-5


def _almost_revealed(q):
    return fdp.PoissonSubsampled(
        fdp.MixtureOfGaussians(0.1, shifts=[1.0], probs=[1.0]), q
    )


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


def test_large_groups_of_probability_vectors():
    group = fdp.FromProbabilities([0.6, 0.3, 0.1], [0.15, 0.35, 0.5]).group(26)
    assert float(group.add.bounds(epsilon=33.83).upper) >= 0.680


def test_what_is_printed_is_no_less_than_what_is_claimed():
    assert (
        "1.42858e-05" in fdp.targets.ApproxDP(epsilon=1.0, delta=1 / 70000).describe()
    )
    assert "1.23457" in fdp.targets.ApproxDP(epsilon=1.23456449, delta=1e-5).describe()
    assert "(1, 1e-05)" in fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5).describe()


def test_renyi_of_a_random_count_has_derivatives():
    def divergence(s):
        step = fdp.DPSGD(noise_multiplier=s, sampling_prob=0.1, num_steps=1)
        run = fdp.RandomRepeat(step, num_steps=[1, 2], probs=[0.5, 0.5])
        return fdp.divergences.renyi(run, order=2.0)

    assert float(jax.grad(divergence)(1.0)) == pytest.approx(-0.0803985, rel=1e-4)


# Lower bounds: what is only a bound of a mass is not in them.


LOST = 1e-3


def _with_lost_counts(noise):
    """A random number of releases, and its delta without what is left out."""
    run = fdp.RandomRepeat(
        noise, num_steps=[1.0, 3.0], probs=[0.5, 0.5 - LOST], tail_prob=LOST
    )
    known = lambda epsilon: float(
        0.5 * noise.delta(epsilon=epsilon)
        + (0.5 - LOST) * noise.repeat(3).delta(epsilon=epsilon)
    )
    return run, known


NOISES = pytest.mark.parametrize(
    "noise",
    [
        fdp.Gaussian(2.0),
        fdp.DiscreteGaussian(2.0),
    ],
)


@NOISES
def test_counts_that_were_left_out_are_in_the_upper_bound_alone(noise):
    run, known = _with_lost_counts(noise)
    found = run.bounds(epsilon=1.0)
    assert found.lower == pytest.approx(known(1.0), rel=1e-9)
    assert found.lower <= known(1.0) * (1 + 1e-12)
    assert found.upper == pytest.approx(known(1.0) + LOST, rel=1e-9)
    assert run.bounds(epsilon=jnp.inf).lower == 0
    assert run.bounds(epsilon=jnp.inf).upper == pytest.approx(LOST)


@NOISES
def test_counts_that_were_left_out_in_epsilon(noise):
    # With nothing lost after all, epsilon is as small as this.
    run, known = _with_lost_counts(noise)
    found = run.bounds(delta=2e-3)
    assert known(float(found.lower)) >= 2e-3 * (1 - 1e-10)
    assert known(float(found.upper)) + LOST <= 2e-3 * (1 + 1e-10)


def test_no_lower_bound_from_outputs_that_were_not_looked_at():
    run = fdp.DiscreteGaussian(1.0, sensitivity=100)
    found = run.bounds(delta=1e-5)
    assert found.lower <= 5000 <= found.upper
    assert run.bounds(epsilon=jnp.inf).lower == 0
    rates = run.bounds(alpha=0.5)
    assert rates.lower <= 1e-300 <= rates.upper


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_groups_have_both_bounds_deep_in_either_tail(size, sign):
    # Two outputs, of probability 1e-9 under one member: g = 1 - f is x / r up to r and
    # 1 beyond, r = 1e-9 (and a mass of 1e-9 that only the other one has).
    r = 1e-9
    p, q = [1 - r, r], [r, 1 - r]
    view = fdp.FromProbabilities(p, q).group(size)
    view = view.remove if sign > 0 else view.add
    with mp.workdps(60):
        r = mp.mpf(r)
        power = lambda x: x * (1 - r) / r if x <= r else 1 - r * (1 - x) / (1 - r)

        def composed(x):
            for _ in range(size):
                x = power(x)
            return x

        for epsilon in (5.0, 20.0, 21 * size - 2.0):
            # The largest of power(x) - e^eps x is at a kink.
            x, kinks = r, [r]
            for _ in range(size - 1):
                x = x * r / (1 - r)
                kinks.append(x)
                kinks.append(1 - (1 - x) * (1 - r) / r)
            scale = mp.e ** mp.mpf(epsilon)
            kinks = [x for x in kinks if 0 < x < 1]
            truth = max(composed(x) - scale * x for x in kinks)
            found = view.bounds(epsilon=epsilon)
            assert mp.mpf(float(found.lower)) <= truth * (1 + mp.mpf(10) ** -12)
            assert mp.mpf(float(found.upper)) >= truth * (1 - mp.mpf(10) ** -12)
            assert found.upper - found.lower <= 1e-8 * found.upper


@pytest.mark.parametrize(
    ("p", "q", "size", "epsilon", "truth"),
    [
        ([0.5, 0.5], [1.0, 1e-17], 2, 1.0, 0.75),
        ([3 / 7, 2 / 7, 2 / 7], [2 / 7, 3 / 7, 2 / 7], 3, 2.2, 0.0),
        # Knots 1e-46 apart are two.
        ([1 - 2e-5, 2e-5, 9e-18], [9e-18, 2e-5, 1 - 2e-5], 3, 55.0, 1.0),
    ],
)
def test_groups_of_extreme_vectors(p, q, size, epsilon, truth):
    found = fdp.FromProbabilities(p, q).group(size).add.bounds(epsilon=epsilon)
    assert found.lower <= truth * (1 + 1e-12)
    assert found.upper >= truth * (1 - 1e-12)
    assert found.upper - found.lower <= 1e-10


def _exact_overlap(p, q, size):
    """1 - TV of a group, in rational numbers: its power function knot by knot."""
    p, q = ([Fraction(x) / sum(map(Fraction, v)) for x in v] for v in (p, q))
    order = sorted(range(len(p)), key=lambda i: q[i] / p[i], reverse=True)
    x = [sum((p[i] for i in order[:k]), Fraction(0)) for k in range(len(p) + 1)]
    y = [sum((q[i] for i in order[:k]), Fraction(0)) for k in range(len(p) + 1)]

    def between(at, x, y):
        i = min(bisect.bisect_right(x, at), len(x) - 1)
        return y[i - 1] + (at - x[i - 1]) * (y[i] - y[i - 1]) / (x[i] - x[i - 1])

    knots, powers = x, y
    for _ in range(size - 1):
        more = [between(at, powers, knots) for at in x]
        inner = {at: between(at, knots, powers) for at in {*knots, *more}}
        knots = sorted(inner)
        powers = [between(inner[at], x, y) for at in knots]
    return min(1 - b + a for a, b in zip(knots, powers, strict=True))


@pytest.mark.parametrize(
    ("p", "q", "size"),
    [
        ([1 - 1e-5, 1e-14, 1e-5], [1e-5, 1e-14, 1 - 1e-5], 4),
        ([1 - 1e-3, 1e-7, 1e-3 - 1e-7], [1e-4 - 1e-7, 1e-7, 1 - 1e-4], 4),
    ],
)
def test_outputs_without_any_loss_are_in_both_ends_for_groups(p, q, size):
    # Their mass is what rounding leaves of 1 - 1, or less.
    found = fdp.FromProbabilities(p, q).group(size).bounds(prior=0.5)
    truth = float(_exact_overlap(p, q, size)) / 2
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower <= 3e-12


def test_left_out_outputs_of_a_sample_are_in_no_lower_bound():
    # The sample's own output by itself: at most 0.325070596212.
    noise = fdp.DiscreteGaussian(1.0, sensitivity=60)
    found = fdp.PoissonSubsampled(noise, 0.5).add.bounds(epsilon=0.3)
    assert found.lower <= 0.325070596212 <= found.upper
    # Counts of a million: what is left out is most of it. Gaussian, mu = 1, about.
    found = fdp.tradeoff.Poisson(1e6, 1.001e6).bounds(epsilon=1.0)
    assert found.lower <= 0.1269 <= found.upper


def test_delta_that_is_just_the_infinite_losses_of_one_direction():
    pair = fdp.FromProbabilities([0, 0.5, 0.148, 0.352], [0.1, 0.5, 0.001, 0.399])
    found = pair.bounds(delta=0.1)
    assert found.lower <= 3.8712 <= found.upper


def test_closed_forms_with_left_out_outputs_have_derivatives():
    # By sums of normal densities with 60 digits.
    epsilon = lambda s: fdp.DiscreteGaussian(s, sensitivity=62).epsilon(delta=0.98)
    assert float(epsilon(1.0)) == pytest.approx(1796.747680226205, rel=1e-11)
    assert float(jax.grad(epsilon)(1.0)) == pytest.approx(-3601.429764502943, rel=1e-9)


def test_groups_whose_delta_is_nothing_meet_a_target():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
    assert fdp.calibrate(fdp.Laplace(10.0), target, solve_for="size").value == 9


def test_counts_above_a_threshold():
    """Every split of three partitions into shared and new ones, by sums over a grid.

    Shared counts stay far above the threshold for one split, and near it for another.
    """
    noise, threshold, most = 1.5, 4.0, 3
    sf = lambda x: scipy.stats.norm.sf(x, scale=noise)
    shown = -math.expm1(most * math.log1p(-sf(threshold - 1)))
    bound = fdp.compose(
        fdp.Gaussian(noise / math.sqrt(most)), fdp.ApproxDP(epsilon=0.0, delta=shown)
    )
    grid = np.append(threshold, np.linspace(threshold, 60.0, 400))

    def masses(count):
        """Of what is shown of a count: nothing, or between two points of the grid."""
        above = sf(grid[1:] - count)
        return np.append(1 - above[0], np.append(-np.diff(above), above[-1]))

    for epsilon in (0.25, 1.5):
        found = bound.bounds(epsilon=epsilon)
        largest = 0.0
        for shared in range(most + 1):
            for count in (3.0, 30.0):
                without, with_user = np.ones(1), np.ones(1)
                for _ in range(min(shared, 2)):
                    without = np.outer(without, masses(count)).ravel()
                    with_user = np.outer(with_user, masses(count + 1)).ravel()
                hidden = scipy.stats.norm.cdf(threshold - 1, scale=noise)
                hidden **= most - shared
                excess = hidden * with_user - math.exp(epsilon) * without
                largest = max(largest, 1 - hidden + np.maximum(excess, 0).sum())
        assert 0.1 * float(found.upper) < largest <= float(found.upper)
