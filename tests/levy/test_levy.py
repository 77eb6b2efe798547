"""Infinitely divisible privacy losses: triplets, members, approximations, limits."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import divisible_checks, exact
from scipy import integrate, stats

import fdp_jax as fdp
from fdp_jax import Bound
from fdp_jax.curves import Directed
from fdp_jax.levy import (
    LevyTriplet,
    SubordinatedGaussian,
    central_limit,
    from_density,
    jump_limit,
    small_jump_error,
)
from fdp_jax.losses import Method

TRIPLET = LevyTriplet(0.5, jumps=[0.8, -0.5], rates=[0.7, 0.3])
EPSILONS = jnp.asarray([-1.0, 0.0, 1.0])


def _entry(name):
    (found,) = (e for e in divisible_checks("jd", "vg", "geomcomp") if name in e["id"])
    return mp.mpf(found["value_str"]), found


def test_closed_forms_of_a_triplet():
    found = {
        "jd.drift": TRIPLET.drift(),
        "jd.kl": TRIPLET.kl(),
        "jd.renyi2": TRIPLET.renyi(order=2.0),
    }
    for name, value in found.items():
        assert float(value) == pytest.approx(float(_entry(name)[0]), rel=1e-15)
    assert float(TRIPLET.variance()) == pytest.approx(
        0.5 + 0.7 * 0.64 + 0.3 * 0.25, rel=1e-15
    )
    # Near the order 1, and of tiny jumps: nothing cancels.
    small = LevyTriplet(0.0, jumps=[1e-9], rates=[2.0])
    assert float(small.kl()) == pytest.approx(1e-18, rel=1e-8)
    assert float(TRIPLET.renyi(order=1.0)) == pytest.approx(
        float(TRIPLET.exchanged().kl()), rel=1e-14
    )


def test_profile_of_a_triplet():
    bounds = TRIPLET.remove.bounds(epsilon=EPSILONS)
    for i, name in enumerate(("jd.delta.e-1", "jd.delta.e0", "jd.delta.e1")):
        truth = _entry(name)[0]
        assert exact(bounds.lower[i]) <= truth <= exact(bounds.upper[i])
        assert float(bounds.upper[i] - bounds.lower[i]) < 1e-12
        assert float(bounds.estimate[i]) == pytest.approx(float(truth), rel=1e-13)
    truth = _entry("jd.f.a0.1")[0]
    found = TRIPLET.remove.beta(alpha=0.1, bound=Bound.ESTIMATE)
    assert float(found) == pytest.approx(float(truth), rel=1e-13)
    assert exact(TRIPLET.remove.beta(alpha=0.1)) <= truth


def test_tail_probability_from_the_slope_of_the_profile():
    # P(X > e) = -e^-e delta'(e).
    truth = _entry("jd.sfX")[0]
    slope = jax.grad(lambda e: TRIPLET.remove.delta(epsilon=e, bound=Bound.ESTIMATE))(
        1.0
    )
    assert float(-slope * math.exp(-1)) == pytest.approx(float(truth), rel=1e-11)


def test_the_other_direction_is_the_exchanged_triplet():
    other = TRIPLET.exchanged()
    one = TRIPLET.add.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    two = other.remove.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    np.testing.assert_allclose(one, two, rtol=1e-12)
    back = other.exchanged()
    np.testing.assert_allclose(back.jumps, TRIPLET.jumps, rtol=1e-15)
    np.testing.assert_allclose(back.rates, TRIPLET.rates, rtol=1e-15)


def test_symmetry_is_the_reflection_of_the_tilted_measure():
    assert not TRIPLET.is_symmetric()
    assert LevyTriplet(1.0).is_symmetric()
    symmetric = LevyTriplet(0.5, jumps=[0.8, -0.8], rates=[0.7, 0.7 * math.exp(0.8)])
    assert symmetric.is_symmetric()
    one = symmetric.remove.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    two = symmetric.add.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    np.testing.assert_allclose(one, two, rtol=1e-12)


def test_triplets_add_and_time_is_real():
    half = TRIPLET.repeat(0.5)
    for made in (half + half, half.repeat(2.0), fdp.compose(half, half)):
        found = made.remove.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
        truth = TRIPLET.remove.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
        np.testing.assert_allclose(found, truth, rtol=1e-11)
    assert float((half + TRIPLET).kl()) == pytest.approx(1.5 * float(TRIPLET.kl()))


def test_gaussian_and_poisson_members():
    gauss = LevyTriplet(0.49)
    truth = fdp.tradeoff.Gaussian(0.7).delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    found = gauss.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    np.testing.assert_allclose(found, truth, rtol=1e-12)
    count = LevyTriplet(jumps=[math.log(2.0)], rates=[1.0])
    for entry in divisible_checks("poisson_delta"):
        bounds = count.remove.bounds(epsilon=entry["params"]["eps"])
        truth = float(entry["value_str"])
        assert float(bounds.estimate) == pytest.approx(truth, rel=1e-13)


def test_many_jumps_in_one_stack():
    split = LevyTriplet(
        0.5, jumps=[0.8] * 4 + [-0.5] * 3, rates=[0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1]
    )
    found = split.remove.bounds(epsilon=EPSILONS)
    truth = TRIPLET.remove.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    np.testing.assert_allclose(found.estimate, truth, rtol=1e-12)


def test_parts_of_a_stack_of_jumps():
    # Powers that are not whole have no branch to be lost.
    sizes = 0.1 * np.asarray([3, -3, 5, -5, 8, -8, 12])
    rates = 4 * np.asarray([0.3, 0.4, 0.2, 0.3, 0.1, 0.2, 0.05])
    longer = LevyTriplet(0.5, jumps=sizes, rates=rates).repeat(2.5)
    more = LevyTriplet(1.25, jumps=sizes, rates=2.5 * rates)
    one, other = (x.bounds(epsilon=3.0) for x in (longer, more))
    assert one.upper - one.lower < 1e-10
    assert float(one.estimate) == pytest.approx(float(other.estimate), rel=1e-12)


@pytest.mark.slow
def test_a_rare_jump_that_tells_everything():
    # Moments that overflow say nothing of it; epsilon is about its size.
    farthest = 400.0
    sizes = [0.1, -0.1, 0.2, -0.2, 0.3, -0.3, farthest]
    rates = [0.05] * 6 + [0.01 * math.exp(-farthest)]
    loss = LevyTriplet(jumps=sizes, rates=rates).remove
    assert loss.epsilon(delta=0.5 * -math.expm1(-0.01)) > farthest - 2
    assert LevyTriplet(jumps=sizes, rates=rates).renyi(order=3.0) > 1e100


@pytest.mark.slow
def test_derivatives_in_all_parameters_and_batches():
    def delta(variance, jumps, rates, time):
        triplet = LevyTriplet(variance, jumps=jumps, rates=rates, num_steps=time)
        return triplet.remove.delta(epsilon=1.0, bound=Bound.ESTIMATE)

    args = (0.5, jnp.asarray([0.8, -0.5]), jnp.asarray([0.7, 0.3]), 1.0)
    slopes = jax.grad(delta, (0, 1, 2, 3))(*args)
    step, flat = 1e-5, [0.5, 0.8, -0.5, 0.7, 0.3, 1.0]
    unpack = lambda v: (v[0], jnp.asarray(v[1:3]), jnp.asarray(v[3:5]), v[5])
    found = np.concatenate([np.ravel(s) for s in slopes])
    for i in range(6):
        moved = [np.add(flat, s * step * np.eye(6)[i]) for s in (1, -1)]
        up, down = (float(delta(*unpack(list(m)))) for m in moved)
        assert found[i] == pytest.approx((up - down) / (2 * step), rel=1e-6)
    variances = jnp.asarray([0.2, 0.5])
    each = jax.vmap(lambda v: delta(v, *args[1:]))(variances)
    assert float(each[1]) == pytest.approx(float(delta(*args)), rel=1e-12)


def test_calibration_finds_the_time():
    target = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-5)
    found = fdp.calibrate(TRIPLET, target, solve_for="num_steps")
    reached = float(found.mechanism.delta(epsilon=2.0))
    assert 1e-5 * (1 - 1e-9) <= reached <= 1e-5


@pytest.mark.parametrize("name", ["vg.delta.e0", "vg.delta.e1"])
def test_variance_gamma(name):
    truth, entry = _entry(name)
    bounds = SubordinatedGaussian(2.0, 0.5).bounds(epsilon=EPSILONS)
    i = [-1.0, 0.0, 1.0].index(entry["params"]["eps"])
    assert float(bounds.estimate[i]) == pytest.approx(float(truth), rel=2e-13)
    assert float(bounds.upper[i] - bounds.lower[i]) < 1e-9


def test_inverse_gaussian_time():
    # E over tau: inverse Gaussian of mean a b and shape a^2 b / 2 ... by its density.
    shape, scale = 2.0, 0.5
    mean, width = shape * scale, 2 * shape**2 * scale
    bounds = SubordinatedGaussian(shape, scale, 0.5).bounds(epsilon=EPSILONS)

    def density(t):
        power = -width * (t - mean) ** 2 / (2 * mean**2 * t)
        return mp.sqrt(width / (2 * mp.pi * t**3)) * mp.exp(power)

    def delta(t, e):
        m = mp.sqrt(t)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)

    with mp.workdps(20):
        for i, e in enumerate(EPSILONS):
            value = lambda t, e=mp.mpf(float(e)): density(t) * delta(t, e)  # noqa: B008
            truth = mp.quad(value, [0, 0.1, 0.5, 1, 2, 4, 10, 40])
            assert float(bounds.estimate[i]) == pytest.approx(float(truth), rel=1e-11)


def test_random_number_of_releases_that_is_told():
    truth, _ = _entry("geomcomp")
    probs = 0.2 * 0.8 ** np.arange(150)
    run = fdp.RandomRepeat(
        fdp.Gaussian(2.0), num_steps=range(1, 151), probs=probs, tail_prob=0.8**150
    )
    bounds = run.bounds(epsilon=1.0)
    assert exact(bounds.lower) <= truth <= exact(bounds.upper)
    assert float(bounds.estimate) == pytest.approx(float(truth), rel=1e-11)


@pytest.mark.slow
def test_jumps_of_a_density_dominate_within_their_error():
    truth = SubordinatedGaussian(2.0, 0.5)
    exact_delta = truth.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
    found = []
    weight = 1 / (1 + np.exp(np.asarray(EPSILONS)))
    for count in (48, 96):
        made = from_density(
            truth.levy_density, cut=0.05, num_points=count, symmetric=True
        )
        assert made.triplet.is_symmetric(tolerance=1e-8)
        delta = made.triplet.remove.delta(epsilon=EPSILONS, bound=Bound.ESTIMATE)
        # |R - R~| = (1 - pi) |delta - delta~|; moving the larger jumps only adds to it.
        more = np.asarray(delta - exact_delta) * weight
        assert np.all(more >= -made.error)
        found.append(more.max())
    # What that adds falls with the square of the bins' width.
    assert 0 < found[1] < 0.4 * found[0] < 4e-4


def test_bound_of_small_jumps_is_a_bound():
    # Symmetric jumps +-h beside a Gaussian, against the Gaussian in their place.
    h, common = 0.3, 0.4
    rates = np.asarray([1.0, math.exp(-h)]) * 0.8
    jumps = np.asarray([-h, h])
    tilted = rates * np.exp(0.5 * jumps)
    second, fourth = np.sum(tilted * h**2), np.sum(tilted * h**4)
    bound = small_jump_error(fourth_moment=fourth, gaussian_variance=common, reach=h)
    epsilons = jnp.asarray([-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0])
    one = LevyTriplet(common, jumps=jumps, rates=rates)
    two = LevyTriplet(common + second)
    gap = one.remove.delta(epsilon=epsilons) - two.remove.delta(epsilon=epsilons)
    gap = np.abs(np.asarray(gap)) / (1 + np.exp(np.asarray(epsilons)))
    assert 0 < gap.max() <= bound < 0.1
    # Without that Gaussian part the bound is larger, with smaller jumps it shrinks.
    assert small_jump_error(fourth_moment=fourth, reach=h) > bound
    smaller = small_jump_error(
        fourth_moment=fourth / 16, gaussian_variance=common, reach=h / 2
    )
    assert smaller < bound / 10
    # The formula, by another quadrature.
    found = small_jump_error(fourth_moment=1e-6, gaussian_variance=0.5)
    bend = mp.cosh(0.5) / 384
    value = lambda t: (t**4 / 24 + bend) * mp.exp(-(0.25 + t * t) / 4) / (0.25 + t * t)
    truth = 1e-6 * mp.quad(value, [0, 1, 4, 10, 40]) / (2 * mp.pi)
    assert truth <= found <= 1.01 * truth


# ------------------------------------------------------------------------- limits


def test_gaussian_limit_of_randomized_responses():
    limit = float(fdp.tradeoff.Gaussian(1.0).beta(alpha=0.1))
    errors, excesses = [], []
    for entry in divisible_checks("clt_rr"):
        n = entry["params"]["n"]
        run = fdp.RandomizedResponse(1 / math.sqrt(n)).repeat(n)
        found = float(run.beta(alpha=0.1, bound=Bound.ESTIMATE))
        assert found == pytest.approx(float(entry["value_str"]), rel=1e-9)
        diagnostic = central_limit(run)
        assert float(diagnostic.mu) == pytest.approx(1.0, abs=1 / n)
        excesses.append(abs(float(diagnostic.excess)) * n)
        errors.append(abs(found - limit) * math.sqrt(n))
    # s^2 / 2k - 1 is of order 1 / n, the distance from the limit of order n^-1/2.
    assert max(excesses) < 0.2
    assert max(excesses) / min(excesses) < 1.1
    assert max(errors) < 0.02


def test_the_diagnostic_sees_jumps():
    count = LevyTriplet(jumps=[1.5], rates=[0.1])
    found = central_limit(count.remove)
    kl = 0.1 * (math.exp(1.5) - 2.5)
    assert float(found.kl) == pytest.approx(kl, rel=1e-12)
    assert float(found.variance) == pytest.approx(0.1 * 2.25, rel=1e-12)
    assert float(found.third) == pytest.approx(0.1 * 1.5**3, rel=1e-8)
    assert float(found.excess) == pytest.approx(0.1 * 2.25 / (2 * kl) - 1, rel=1e-10)
    assert abs(float(central_limit(LevyTriplet(0.3)).excess)) < 1e-14


def test_bernoulli_releases_tend_to_poisson_at_rate_one_over_n():
    gaps = []
    truth = fdp.tradeoff.Poisson(1.0, 2.0).delta(epsilon=0.5, bound=Bound.ESTIMATE)
    for n in (10, 40, 160):
        step = fdp.FromProbabilities([1 - 1 / n, 1 / n], [1 - 2 / n, 2 / n])
        limit = jump_limit(step.repeat(n), cut=0.4)
        assert float(jnp.max(limit.jumps)) == pytest.approx(math.log(2.0), rel=1e-9)
        assert float(limit.rates[jnp.argmax(limit.jumps)]) == pytest.approx(1.0)
        # What is small is only the missing one's: log((1 - 2/n) / (1 - 1/n)), with
        # probability 1 - 1/n, else 0.
        small = (1 - 1 / n) * math.log((1 - 2 / n) / (1 - 1 / n)) ** 2
        assert float(limit.gaussian_variance) == pytest.approx(small, rel=1e-9)
        found = limit.remove.delta(epsilon=0.5, bound=Bound.ESTIMATE)
        gaps.append(n * abs(float(found - truth)))
    assert max(gaps) < 0.1 * 10
    assert gaps[2] < 2 * gaps[1]


def test_binomial_counts_tend_to_poisson_counts():
    """Bernoulli(l / n) n times: beta of two binomial counts, by enumeration."""
    rates, n = (0.8, 1.9), 400
    ends = [[1 - rate / n, rate / n] for rate in rates]
    limit = jump_limit(fdp.FromProbabilities(*ends).repeat(n).remove)
    counts = np.arange(60, -1, -1)
    p, q = (stats.binom.pmf(counts, n, rate / n) for rate in rates)
    alpha = 0.05
    x, y = np.append(0.0, np.cumsum(p)), np.append(0.0, np.cumsum(q))
    truth = 1 - np.interp(alpha, x, y)
    found = float(limit.remove.beta(alpha=alpha))
    poisson = float(fdp.tradeoff.Poisson(*rates).beta(alpha=alpha))
    # The limit is about as good as the Poisson pair, whose error is O(1 / n).
    assert abs(poisson - truth) < 0.3 / n
    assert abs(found - truth) < 0.3 / n


@pytest.mark.slow
def test_sparse_participation_is_not_gaussian():
    run = fdp.DPSGD(noise_multiplier=0.35, sampling_prob=1e-4, num_steps=1000)
    truth = float(run.remove.delta(epsilon=0.5))
    limit = jump_limit(run)
    gaussian = central_limit(run.remove).triplet()
    assert float(limit.remove.delta(epsilon=0.5)) == pytest.approx(truth, rel=0.01)
    assert float(gaussian.remove.delta(epsilon=0.5)) < 1e-6 * truth


def test_bad_parameters_are_named():
    with pytest.raises(ValueError, match="gaussian_variance must be"):
        LevyTriplet(-1.0)
    with pytest.raises(ValueError, match="jumps must be finite numbers other than 0"):
        LevyTriplet(1.0, jumps=[0.0], rates=[1.0])
    with pytest.raises(ValueError, match="rates must be"):
        LevyTriplet(1.0, jumps=[1.0], rates=[-1.0])
    with pytest.raises(ValueError, match=r"rates must be one array .*: use jax"):
        jitted(lambda r: fdp.LevyTriplet(jumps=[0.5, 0.2], rates=[r, 0.3]))(0.7)
    with pytest.raises(ValueError, match="one length"):
        LevyTriplet(1.0, jumps=[1.0], rates=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"below e\^700, got 1.0 at 710.0"):
        LevyTriplet(1.0, jumps=[1.0, 710.0], rates=[1.0, 1.0])
    traced = eqx.filter_jit(lambda x: LevyTriplet(1.0, jumps=x, rates=[1.0]).kl())
    with pytest.raises(RuntimeError, match=r"below e\^700"):
        traced(jnp.asarray([710.0]))
    with pytest.raises(TypeError):
        _ = LevyTriplet(1.0) + 1
    densities = {
        "density must satisfy": lambda x: np.exp(-5 * np.abs(x)),
        "density must be a finite number": lambda x: np.abs(x) ** -3.5,
        "integral of x": lambda x: np.exp(-5 * np.abs(x)) * np.abs(x) ** -2.99,
        "density must leave next to no jumps": lambda x: np.minimum(np.abs(x) ** -2, 1),
    }
    for message, density in densities.items():
        with pytest.raises(ValueError, match=message):
            from_density(density, symmetric=message.endswith("satisfy"))


def test_jumps_of_a_wide_density_have_the_rates_of_the_density():
    # Bins so wide that e^x overflows in them: masses under P and under Q are kept.
    made = from_density(lambda x: np.exp(-2 * np.abs(x)), reach=5000.0, num_points=12)
    jumps, rates = made.triplet.jumps, made.triplet.rates
    np.testing.assert_allclose(np.sum(rates), math.exp(-0.02), rtol=1e-4)
    tilted = rates * np.exp(np.minimum(jumps, 700.0))
    truth = math.exp(-0.01) + math.exp(-0.03) / 3
    np.testing.assert_allclose(np.sum(tilted), truth, rtol=1e-4)


def test_known_rates_keep_their_digits_beside_traced_jumps():
    made = lambda jumps: LevyTriplet(0.5, jumps=jumps, rates=[0.1 + 1e-12]).rates
    with jax.enable_x64(False):
        kept = eqx.filter_jit(made)(jnp.asarray([0.5], jnp.float32))
        assert kept.dtype == np.float64
    np.testing.assert_array_equal(kept, [0.1 + 1e-12])


def test_sums_of_triplets():
    parts = [LevyTriplet(0.1 * k, jumps=[0.3 * k], rates=[0.2]) for k in (1, 2, 3)]
    total = sum(parts, start=LevyTriplet(0.0))
    for found in (total, sum(parts)):
        assert isinstance(found, LevyTriplet)
        np.testing.assert_allclose(found.kl(), sum(float(x.kl()) for x in parts))


def test_a_direction_that_leaks_nothing_does_not_loosen_the_other():
    # One jump in 3e9 under P beside a Gaussian of deviation 2e-5: of the direction
    # `add`, delta is below the least number.
    rare = LevyTriplet(0.5, jumps=[1.0], rates=[0.3]).repeat(1e-9)
    for epsilon in (0.1, 0.5):
        truth = 3e-10 * (math.e - math.exp(epsilon))
        found = rare._bounds_of("delta", epsilon)
        np.testing.assert_allclose(found.estimate, truth, rtol=1e-5)
        assert found.lower <= found.estimate <= found.upper <= truth * (1 + 1e-5)


@pytest.mark.parametrize("jump", [299.0, 400.0, 695.0, -650.0])
def test_enormous_jumps_tell_everything(jump):
    rates = [0.5] if jump > 0 else [0.5 * math.exp(-jump)]
    large = LevyTriplet(0.5, jumps=[jump], rates=rates)
    for view in (large, large.remove, large.add):
        found = view._bounds_of("delta", 5.0)
        assert (found.lower, found.estimate) == (1.0, 1.0)


SIZES = np.asarray([-1.2, -0.5, -0.3, 0.2, 0.4, 0.7, 0.8, 1.1])
RATES = np.asarray([0.05, 0.3, 0.2, 0.6, 0.5, 0.3, 0.1, 0.2])


def _delta_of_jumps(sizes, rates, epsilons, unit=0.1, reach=400):
    """By convolution of Poisson probabilities on the lattice of the sizes."""
    p = q = np.eye(1, 2 * reach + 1, reach)[0]
    for size, rate in zip(np.round(sizes / 0.1).astype(int), rates, strict=True):
        counts = np.arange(reach // abs(size) + 1)
        for mean, which in ((rate, "p"), (rate * np.exp(size * unit), "q")):
            steps = np.zeros(2 * reach + 1)
            steps[reach + size * counts] = stats.poisson.pmf(counts, mean)
            if which == "p":
                p = np.convolve(p, steps)[reach:-reach]
            else:
                q = np.convolve(q, steps)[reach:-reach]
    return [np.sum(np.maximum(q - np.exp(e) * p, 0)) for e in epsilons]


@pytest.mark.slow
def test_many_jumps_without_a_gaussian_part():
    loss = LevyTriplet(jumps=SIZES, rates=RATES, num_steps=0.8)
    epsilons = np.asarray([-1.0, 0.0, 0.5, 2.0, 5.0])
    there = _delta_of_jumps(SIZES, 0.8 * RATES, epsilons)
    back = _delta_of_jumps(-SIZES, 0.8 * RATES * np.exp(SIZES), epsilons)
    for side, truth in ((loss.remove, there), (loss.add, back)):
        bounds = side.using("grid").bounds(epsilon=epsilons)
        np.testing.assert_allclose(bounds.estimate, truth, rtol=3e-5)
        assert np.all(bounds.lower <= np.multiply(truth, 1 + 1e-11))
        assert np.all(bounds.upper >= np.multiply(truth, 1 - 1e-11))
        assert np.all(bounds.upper - bounds.lower <= 1e-3 * bounds.upper)
        # More than contour integrals know, which tend to nothing for no frequency.
        alone, both = (x.bounds(epsilon=1.0) for x in (side.using("contour"), side))
        assert alone.lower <= both.lower <= both.upper <= alone.upper


def test_derivatives_with_many_jumps_alone():
    # In all rates, and along the sizes, whose lattice then has another unit.
    for epsilon in (1.03, 0.57):
        _check_derivatives_of_jumps(epsilon)


def _check_derivatives_of_jumps(epsilon):
    def delta(sizes, rates):
        loss = LevyTriplet(jumps=sizes, rates=rates).remove.using("grid")
        return loss.delta(epsilon=epsilon, bound=Bound.ESTIMATE)

    in_sizes, in_rates = jax.grad(delta, (0, 1))(jnp.asarray(SIZES), jnp.asarray(RATES))
    truth = lambda rates, unit=0.1: _delta_of_jumps(SIZES, rates, [epsilon], unit)[0]
    step = 1e-4
    for slope, move in zip(in_rates, step * np.eye(8), strict=True):
        ends = truth(RATES + move), truth(RATES - move)
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)
    ends = truth(RATES, 0.1 * (1 + step)), truth(RATES, 0.1 * (1 - step))
    along = (ends[0] - ends[1]) / (2 * step)
    assert np.dot(in_sizes, SIZES) == pytest.approx(along, rel=1e-4)


def test_two_triplets_of_many_jumps():
    half = LevyTriplet(jumps=SIZES, rates=0.5 * RATES)
    both = fdp.compose(half, half).remove.using("grid").bounds(epsilon=1.0)
    (truth,) = _delta_of_jumps(SIZES, RATES, [1.0])
    assert both.lower <= truth <= both.upper
    assert both.upper - both.lower <= 1e-3 * both.upper


# ------------------------------------------------------------- what the limits refuse


INFINITE = fdp.FromProbabilities([0.999, 0.001, 0.0], [0.9, 0.0009, 0.0991])
TELLING = [
    INFINITE.repeat(10),
    fdp.FromProbabilities([0.5, 0.5, 0.0], [0.3, 0.3, 0.4]),
    fdp.FromProbabilities([0.3, 0.3, 0.4], [0.5, 0.5, 0.0]),
    fdp.RandomRepeat(fdp.Gaussian(2.0), num_steps=[1], probs=[0.9], tail_prob=0.1),
    fdp.compose(fdp.Gaussian(1.0), INFINITE),
]


@pytest.mark.parametrize("run", TELLING)
@pytest.mark.parametrize("side", ["remove", "add"])
def test_infinite_losses_have_no_central_limit(run, side):
    with pytest.raises(ValueError, match="mechanism must have finite losses only"):
        central_limit(getattr(run, side))


@pytest.mark.parametrize("run", TELLING[:3])
def test_infinite_losses_have_no_jump_limit(run):
    with pytest.raises(ValueError, match="mechanism must have finite losses only"):
        jump_limit(run)


def test_infinite_losses_are_refused_where_numbers_are_traced():
    def kl(with_record):
        found = central_limit(fdp.FromProbabilities([0.6, 0.4, 0.0], with_record))
        return found.kl

    compiled = eqx.filter_jit(kl)
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"log mass -0\.916"):
        compiled(jnp.asarray([0.3, 0.3, 0.4]))
    # A third output of no chance under both changes nothing.
    truth = 0.6 * math.log(0.6 / 0.7) + 0.4 * math.log(0.4 / 0.3)
    found = compiled(jnp.asarray([0.7, 0.3, 0.0]))
    assert float(found) == pytest.approx(truth, rel=1e-12)


def test_tails_that_are_left_out_are_no_infinite_losses():
    for run in (fdp.DiscreteGaussian(2.0), fdp.PoissonMechanism(1e6, 1e3)):
        assert float(central_limit(run).mu) > 0.4


MANY = LevyTriplet(
    0.5, jumps=0.1 * np.arange(1, 9), rates=0.1 * np.arange(8, 0, -1), num_steps=2.0
)


@pytest.mark.parametrize("triplet", [TRIPLET, MANY, LevyTriplet(0.3)])
def test_a_triplet_is_its_own_limit(triplet):
    limit, time = jump_limit(triplet), float(triplet.num_steps)
    np.testing.assert_allclose(
        limit.gaussian_variance, time * triplet.gaussian_variance, rtol=1e-14
    )
    np.testing.assert_allclose(limit.jumps, triplet.jumps, rtol=1e-14)
    np.testing.assert_allclose(limit.rates, time * triplet.rates, rtol=1e-14)


def test_limit_of_the_other_direction():
    limit = jump_limit(TRIPLET.add)
    np.testing.assert_allclose(limit.jumps, [-0.8, 0.5], rtol=1e-14)
    rates = [0.7 * math.exp(0.8), 0.3 * math.exp(-0.5)]
    np.testing.assert_allclose(limit.rates, rates, rtol=1e-14)


def test_infinitely_many_jumps_have_no_limit_of_finitely_many():
    with pytest.raises(ValueError, match="got a SubordinatedGaussianLoss"):
        jump_limit(SubordinatedGaussian(2.0, 0.5))


# ------------------------------------------------------------- smooth in the index


def _inverted(moment, epsilon, order=1.5):
    """delta by the inversion formula on a vertical line, by another quadrature."""

    def value(t):
        w = order + 1j * t
        return (moment(w) * np.exp(-(w - 1) * epsilon) / (w * (w - 1))).real

    return integrate.quad(value, 0, 300, epsabs=1e-13, limit=1000)[0] / np.pi


@pytest.mark.parametrize("index", [0.0, 0.4])
def test_derivative_in_the_index(index):
    shape, scale, epsilon = 2.0, 0.5, 1.0
    logs = lambda w: np.log(1 - 0.5 * scale * w * (w - 1))

    def slope(w):
        # Of exp(shape (1 - z^i) / i) in i, and its limit at 0.
        if index == 0:
            return np.exp(-shape * logs(w)) * -0.5 * shape * logs(w) ** 2
        power = np.exp(index * logs(w))
        inner = -(logs(w) * power) / index - (1 - power) / index**2
        return np.exp(shape * (1 - power) / index) * shape * inner

    def delta(i):
        member = SubordinatedGaussian(shape, scale, i)
        return member.delta(epsilon=epsilon, bound=Bound.ESTIMATE)

    found = float(jax.grad(delta)(index))
    assert found == pytest.approx(_inverted(slope, epsilon), rel=1e-8)


# ----------------------------------------------------------------- without float64


def test_triplets_inside_of_float32_programs():
    made = lambda v: LevyTriplet(v, jumps=[0.8, -0.5], rates=[0.7, 0.3])
    jumps = 0.7 * (math.exp(0.8) - 1.8) + 0.3 * (math.exp(-0.5) - 0.5)
    back = 0.7 * (math.exp(0.8) * -0.2 + 1) + 0.3 * (1 - 1.5 * math.exp(-0.5))
    with jax.enable_x64(False):
        both = lambda v: (made(v) + made(0.5)).repeat(2.0).kl()
        exchanged = lambda v: made(v).exchanged().kl()
        found = [
            jitted(both)(0.5),
            jax.vmap(both)(jnp.asarray([0.5]))[0],
            jax.grad(both)(0.5),
            jitted(exchanged)(0.5),
            jax.grad(exchanged)(0.5),
        ]
    truth = [1 + 4 * jumps, 1 + 4 * jumps, 1.0, 0.25 + back, 0.5]
    np.testing.assert_allclose(found, truth, rtol=1e-6)


# ------------------------------------------------------------- overflow and messages


def test_jumps_whose_factor_overflows():
    assert not LevyTriplet(jumps=[800.0], rates=[1e-300]).is_symmetric()
    rate = float(mp.mpf("1e-300") * mp.exp(800))
    large = LevyTriplet(jumps=[800.0, -800.0], rates=[1e-300, rate])
    assert large.is_symmetric()
    assert float(large.exchanged().rates[0]) == pytest.approx(rate, rel=1e-12)
    with pytest.raises(ValueError, match=r"below e\^700, got 1.0 at 800.0"):
        LevyTriplet(jumps=[800.0], rates=[1.0])


def test_small_jumps_that_reach_far():
    # The Bayes errors of any two losses differ by at most 1/2.
    assert small_jump_error(fourth_moment=1e-6, reach=2000.0) == 0.5
    assert small_jump_error(fourth_moment=0.0, reach=2000.0) == 0.0


def test_numbers_that_are_none():
    with pytest.raises(ValueError, match="jumps must be numbers"):
        LevyTriplet(jumps=["a"], rates=[1.0])
    with pytest.raises(ValueError, match="rates must be numbers"):
        LevyTriplet(jumps=[1.0], rates=["a"])
    with pytest.raises(ValueError, match="tolerance must be"):
        LevyTriplet(1.0).is_symmetric(tolerance=math.nan)
    found = SubordinatedGaussian(2.0, 0.5).levy_density([-1.0, 1.0])
    root = math.sqrt(0.25 + 4)
    truth = [2 * math.exp(0.5 - root), 2 * math.exp(-0.5 - root)]
    np.testing.assert_allclose(found, truth, rtol=1e-14)


def test_any_number_of_jumps_is_on_the_grid():
    # A schedule of Poisson losses of which there may be half of one.
    with jax.enable_x64(True):
        loss = LevyTriplet(jumps=SIZES, rates=RATES).loss()
        term: Any = loss.terms[0]
        half = dataclasses.replace(term, counts=0.5 * term.counts)
        halved = dataclasses.replace(loss, terms=(half,), method=Method("grid"))
        found = Directed(halved, np.ones(1))._bounds_of("delta", jnp.asarray(0.5))
        want = LevyTriplet(jumps=SIZES, rates=0.5 * RATES).remove.bounds(epsilon=0.5)
    assert found.lower <= want.upper
    assert want.lower <= found.upper
    np.testing.assert_allclose(found.upper, want.upper, rtol=1e-4)
