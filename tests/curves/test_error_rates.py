"""Error rates of single tests: both ends are true, and close wherever delta is."""

import jax
import mpmath
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.mechanisms import resolve


def _gaussian_rates(noise, steps, alpha):
    """Phi(Phi^-1(1 - alpha) - mu) and its complement, with 40 digits."""
    with mpmath.workdps(40):
        alpha = mpmath.mpf(alpha)
        shift = mpmath.sqrt(steps) / mpmath.mpf(noise)
        small = alpha < 0.5
        tail = alpha if small else 1 - alpha
        guess = mpmath.sqrt(max(-2 * mpmath.log(2 * tail), mpmath.mpf("1e-6")))
        log_tail = lambda z: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2)
        quantile = mpmath.findroot(lambda z: log_tail(z) - mpmath.log(tail), guess)
        quantile = quantile if small else -quantile
        place = (shift - quantile) / mpmath.sqrt(2)
        return mpmath.erfc(place) / 2, mpmath.erfc(-place) / 2


def _full_run(noise, steps):
    """Gaussian noise, by the engine of subsampled runs."""
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=1.0, num_steps=steps)


def _ask(noise, steps, alpha):
    """Both error rates of a Gaussian run, which plain calls ask of one program."""
    view = _full_run(noise, steps).remove.using("contour")
    return view.bounds(alpha=alpha), view.bounds(fpr=alpha)


def _check(found, truth, *, tight=True):
    slack = mpmath.mpf(1e-14)
    assert 0 <= found.lower <= found.upper <= 1
    assert mpmath.mpf(float(found.lower)) <= truth * (1 + slack)
    assert mpmath.mpf(float(found.upper)) >= truth * (1 - slack)
    if tight:
        assert int(found.status) == fdp.Status.TIGHT


@pytest.mark.parametrize(
    ("noise", "steps", "alpha"),
    [
        (1.0, 1000.0, 1e-300),
        (1.0, 1000.0, 1e-10),
        (1.0, 1000.0, 0.1),
        (1.0, 1000.0, 0.999),
        (20.0, 1000.0, 1e-12),
        (20.0, 1000.0, 0.4),
        (20.0, 1000.0, 0.97),
        (5.0, 10000.0, 0.5),
        (1000.0, 100.0, 1e-200),
        (1000.0, 100.0, 0.3),
    ],
)
def test_rates_of_a_gaussian_run(noise, steps, alpha):
    beta, tpr = _ask(noise, steps, alpha)
    truths = _gaussian_rates(noise, steps, alpha)
    _check(beta, truths[0])
    _check(tpr, truths[1])


def test_rates_that_underflow():
    beta, tpr = _ask(0.1, 1e4, 0.3)
    assert beta.lower == 0
    assert 0 < beta.upper < 4e-307
    assert int(beta.status) == fdp.Status.TIGHT
    assert tpr.lower >= 1 - 1e-15
    assert int(tpr.status) == fdp.Status.TIGHT


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "alpha"),
    [
        (0.867, 0.00643, 46441.0, 0.675),
        (24.627, 0.40586751759475853, 407705.0, 2.8e-10),
        (1.0, 0.5, 1000.0, 1e-50),
        (1.4264867921752942, 1.509234344167477e-05, 462200.0, 0.4651733664606914),
        (4.373131719863649, 0.0023353934904345396, 79945.0, 6.9e-157),
        (0.8030563681602813, 0.00029054283887606505, 243299.0, 0.49071957119646836),
        (45.22828353572088, 4.8379292469686096e-05, 876098.0, 0.010162677752341191),
        (0.37562436067527993, 0.04357228415666534, 2437.0, 0.12024018702880468),
    ],
)
def test_rates_of_long_runs_are_tight(both, noise, rate, steps, alpha):
    for found in both(noise, rate, steps, alpha):
        assert int(found.status) == fdp.Status.TIGHT
        assert 0 <= found.lower <= found.upper <= 1
        assert found.lower <= found.estimate <= found.upper


@pytest.mark.parametrize(
    ("noise", "rate", "alpha"),
    [
        (33.9868, 0.019968, 4.8366e-25),
        (29.25, 0.03779, 7.104e-34),
        (7.577, 4.011e-5, 6.927e-6),
    ],
)
def test_power_of_one_step_at_a_tiny_false_positive_rate(both, noise, rate, alpha):
    """Thresholds lie close together, and the first guess is far from the right one."""
    _, found = both(noise, rate, 1.0, alpha)
    with mpmath.workdps(40):
        log_tail = lambda z: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2)
        target = mpmath.log(mpmath.mpf(alpha))
        place = mpmath.findroot(
            lambda z: log_tail(z) - target, mpmath.sqrt(-2 * target)
        )
        moved = mpmath.erfc((place - 1 / mpmath.mpf(noise)) / mpmath.sqrt(2)) / 2
        truth = (1 - mpmath.mpf(rate)) * mpmath.mpf(alpha) + rate * moved
        _check(found, truth)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "alpha"),
    [
        (29.58, 8.396e-5, 19.0, 6.792e-27),
        (5.451, 1.772e-5, 12.0, 2.13e-30),
        (20.59, 1.719e-4, 2.0, 0.2434),
        (11.12, 2.577e-5, 75.0, 0.454),
    ],
)
def test_rates_of_runs_without_much_loss_are_tight(both, noise, rate, steps, alpha):
    for found in both(noise, rate, steps, alpha):
        assert int(found.status) == fdp.Status.TIGHT


@pytest.fixture(scope="module")
def both():
    """Both error rates in both directions, by contours alone."""

    def one(noise, rate, steps, alpha):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=rate, num_steps=steps)
        # Without splitting, in the program of all runs with Poisson batches.
        return resolve(run).first._error_rate_bounds(alpha)

    return one


def _jumps_beta(variance, jump, rate, alpha):
    """Of Poisson jumps beside a little Gaussian noise: sums over their number."""
    with mpmath.workdps(30):
        variance, jump, rate = (mpmath.mpf(x) for x in (variance, jump, rate))
        other = rate * mpmath.exp(jump)
        deviation = mpmath.sqrt(variance)

        def below(threshold, rate, mean):
            start = mean - (other - rate_p)
            return mpmath.fsum(
                mpmath.exp(-rate)
                * rate**k
                / mpmath.factorial(k)
                * mpmath.ncdf((threshold - start - k * jump) / deviation)
                for k in range(60)
            )

        rate_p = rate
        error = lambda t: 1 - below(t, rate_p, -variance / 2) - mpmath.mpf(alpha)
        low, high = mpmath.mpf(-3), mpmath.mpf(5)
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if error(middle) > 0 else (low, middle)
        return below(low, other, variance / 2)


def test_small_noise_beside_jumps():
    """Almost a kink, far from where the saddle point looks for the threshold."""
    view = fdp.LevyTriplet(3e-5, jumps=[0.865], rates=[0.8]).remove.using("contour")
    _check(view.bounds(alpha=0.05), _jumps_beta(3e-5, 0.865, 0.8, 0.05))


@pytest.mark.slow
def test_both_directions_are_no_worse_than_one():
    run = fdp.DPSGD(
        noise_multiplier=0.1616079, sampling_prob=0.037330976119641306, num_steps=31.0
    )
    alpha = 0.19691951662178162
    both, *single = (x.bounds(alpha=alpha) for x in (run, run.remove, run.add))
    # Both error rates with no hit at all bound what a step can tell.
    assert both.lower >= 0.115166
    assert both.lower <= min(float(x.upper) for x in single)
    for found in (both, *single):
        assert found.lower <= found.estimate <= found.upper
        assert found.lower > 0


@pytest.mark.slow
def test_error_rates_ask_the_grid_where_contours_are_loose():
    # Two kinds of steps: their law is not split.
    steps = [
        fdp.DPSGD(noise_multiplier=s, sampling_prob=0.27, num_steps=1.0)
        for s in (0.376, 0.4)
    ]
    run = fdp.compose(*steps).remove
    alone, found = resolve(run).first.bounds(alpha=0.6), run.bounds(alpha=0.6)
    assert alone.method == "contour"
    assert int(alone.status) != fdp.Status.TIGHT
    assert int(found.status) == fdp.Status.TIGHT
    assert found.method == "contour, grid"


@pytest.mark.parametrize("name", ["alpha", "fpr", "delta", "prior"])
def test_subnormal_rates_are_refused(name):
    mechanism = fdp.Gaussian(0.01)
    message = f"{name} must be 0 or at least 2.2250738585072014e-308"
    with pytest.raises(ValueError, match=message):
        mechanism.bounds(**{name: 5e-324})
    with pytest.raises(ValueError, match=message):
        mechanism.bounds(**{name: np.asarray([0.5, 1e-310])})
    assert np.isfinite(mechanism.bounds(**{name: 2.3e-308}).status)


def test_a_law_that_is_split_is_that_of_its_direction():
    """f of one direction is the inverse of the other's, at negative thresholds too."""
    run = fdp.DPSGD(noise_multiplier=0.7, sampling_prob=1e-4, num_steps=1000)
    beta = run.add.bounds(alpha=0.9)
    back = run.remove.bounds(alpha=beta.estimate)
    assert beta.status == back.status == fdp.Status.TIGHT
    assert float(back.estimate) == pytest.approx(0.9, rel=1e-9)


def test_traced_subnormal_rates_are_refused():
    ask = jax.jit(lambda alpha: fdp.Gaussian(1.0).beta(alpha=alpha))
    assert 0.99 < ask(2.3e-308) < 1
    assert ask(0.0) == 1
    with pytest.raises(Exception, match="alpha must be in"):
        jax.block_until_ready(ask(1e-310))


def test_subnormal_numbers_of_float32_programs():
    with jax.enable_x64(False):
        mechanism = fdp.Gaussian(1.0)
        assert 0 <= mechanism.beta(alpha=1e-40) <= 1
        single = jax.numpy.asarray(np.float32(1e-40))
        with pytest.raises(ValueError, match="the least normal float32"):
            mechanism.beta(alpha=single)
