"""Whatever number of a mechanism is left open can be solved for."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats
from scipy.special import ndtr

import fdp_jax as fdp
from fdp_jax import Status, targets
from fdp_jax.calibration.unknowns import find_unknown

TARGET = targets.ApproxDP(epsilon=1.0, delta=1e-5)
TWO = fdp.compose(fdp.Gaussian(2.0).repeat(3), fdp.Gaussian(5.0))


def _sigma(epsilon=1.0):
    """The noise of one Gaussian release, which any composition can be held against."""
    target = targets.ApproxDP(epsilon=epsilon, delta=1e-5)
    return float(
        fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier").value
    )


@pytest.mark.parametrize(
    "name",
    ["parts.1.noise_multiplier", "parts[1].noise_multiplier", lambda m: m.parts[1]],
    ids=["dotted", "brackets", "selector"],
)
def test_one_of_several(name):
    weak = fdp.compose(fdp.Gaussian(12.0).repeat(3), fdp.Gaussian(5.0))
    found = fdp.calibrate(weak, TARGET, solve_for=name)
    # 1 / sigma^2 = 3 / 144 + 1 / x^2.
    expected = (1 / _sigma() ** 2 - 3 / 144) ** -0.5
    value = float(found.mechanism.parts[1].noise_multiplier)
    assert value == pytest.approx(expected, rel=1e-9)
    assert found.mechanism.epsilon(delta=1e-5) <= 1.0


def test_a_common_factor_of_several():
    where = lambda m: [m.parts[0].parts[0].noise_multiplier, m.parts[1]]
    found = fdp.calibrate(TWO, TARGET, solve_for=where)
    expected = _sigma() * (3 / 4 + 1 / 25) ** 0.5
    assert float(found.value) == pytest.approx(expected, rel=1e-9)
    assert float(found.mechanism.parts[1].noise_multiplier) == 5.0 * found.value


def test_a_common_factor_of_a_schedule():
    noise = np.linspace(1.0, 3.0, 50)
    found = fdp.calibrate(
        fdp.Schedule(fdp.Gaussian, noise), TARGET, solve_for="noise_multiplier"
    )
    expected = _sigma() * np.sqrt(np.sum(noise**-2.0))
    assert float(found.value) == pytest.approx(expected, rel=1e-9)


def test_direction_is_found_by_evaluation():
    """`shifts` of a user's name: nothing is known of it, but that it changes delta."""
    lap = fdp.calibrate(
        fdp.Laplace(),
        targets.Advantage(0.2),
        solve_for=lambda m: m.noise_multiplier,
        within=(0.5, 50.0),
    )
    assert float(lap.value) == pytest.approx(-0.5 / np.log(0.8), rel=1e-9)
    pure = fdp.calibrate(
        fdp.RandomizedResponse(1.0), targets.Advantage(0.2), solve_for="epsilon0"
    )
    assert float(pure.value) == pytest.approx(np.log(1.2 / 0.8), rel=1e-9)
    assert pure.leaks == 1


def test_whole_steps_are_the_last_ones_that_fit():
    found = fdp.calibrate(
        fdp.Gaussian(20.0).repeat(1), TARGET, solve_for="num_steps", whole=True
    )
    count = float(found.value)
    assert count == np.floor((20.0 / _sigma()) ** 2)
    assert fdp.Gaussian(20.0).repeat(count).epsilon(delta=1e-5) <= 1.0
    assert fdp.Gaussian(20.0).repeat(count + 1).epsilon(delta=1e-5) > 1.0


def test_whole_steps_in_programs_of_float32():
    run = lambda n: fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=n)
    target = targets.ApproxDP(epsilon=3.0, delta=1e-5)
    with jax.enable_x64(False):
        found = fdp.calibrate(run(None), target, solve_for="num_steps", whole=True)
    count = float(found.value)
    last, following = (run(n).epsilon(delta=1e-5) for n in (count, count + 1))
    assert count == round(count)
    assert last <= 3.0 < following


def test_batches_of_numpy_numbers_in_programs_of_float32():
    epsilons = np.array([0.5, 1.0])

    def noise(epsilon):
        target = targets.ApproxDP(epsilon=epsilon, delta=1e-5)
        return fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier").value

    expected = [_sigma(x) for x in epsilons]
    with jax.enable_x64(False):
        assert jax.vmap(noise)(epsilons) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_mechanisms_without_fractions_get_whole_steps():
    found = fdp.calibrate(fdp.Laplace(30.0).repeat(1), TARGET, solve_for="num_steps")
    count = float(found.value)
    assert count == round(count)
    assert fdp.Laplace(30.0).repeat(count).epsilon(delta=1e-5) <= 1.0
    assert fdp.Laplace(30.0).repeat(count + 1).epsilon(delta=1e-5) > 1.0


def test_the_largest_group():
    found = fdp.calibrate(fdp.Gaussian(20.0), TARGET, solve_for="size")
    assert float(found.value) == np.floor(20.0 / _sigma())


def test_a_failed_cell_is_nan_with_a_status():
    """Composed with what alone exceeds the target for one of three configurations."""

    def factor(spent):
        both = fdp.compose(fdp.Gaussian(spent), fdp.Gaussian())
        found = fdp.calibrate(both, TARGET, solve_for="parts.1.noise_multiplier")
        return found.value, found.status

    values, status = jax.vmap(factor)(jnp.asarray([20.0, 1.0, 30.0]))
    np.testing.assert_array_equal(np.isnan(values), [False, True, False])
    assert list(status) == [Status.TIGHT, Status.VACUOUS, Status.TIGHT]


def test_unreachable_targets_say_what_can_be_reached():
    with pytest.raises(fdp.UnreachableTarget, match=r"delta\(1\) is .*, .*"):
        fdp.calibrate(
            fdp.compose(fdp.Gaussian(1.0), fdp.Gaussian()),
            TARGET,
            solve_for="parts.1.noise_multiplier",
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noise_multiplier", "ambiguous for Composition: name one of parts.0"),
        ("noise", "solve_for must be one of"),
        (lambda m: m.relation, "must select numeric parameters"),
    ],
)
def test_unclear_unknowns(name, message):
    with pytest.raises(ValueError, match=message):
        fdp.calibrate(TWO, TARGET, solve_for=name)


def test_only_mechanisms_are_calibrated():
    with pytest.raises(TypeError, match="must be a whole mechanism, got"):
        fdp.calibrate(TWO.remove, TARGET, solve_for="noise_multiplier")


def test_a_range_must_be_one():
    with pytest.raises(ValueError, match="within must be"):
        fdp.calibrate(
            fdp.Gaussian(), TARGET, solve_for="noise_multiplier", within=(2.0, 1.0)
        )
    with pytest.raises(ValueError, match=r"hold a whole number .* got \(0.2, 0.8\)"):
        find_unknown(fdp.Laplace(1.0).repeat(2), "num_steps", within=(0.2, 0.8))


# ------------------------------------------------------------------------- derivatives


@pytest.mark.slow
def test_second_derivative_of_a_factor():
    """Of two Gaussians, where the factor has a closed form."""

    def factor(a):
        both = fdp.compose(fdp.Gaussian(a), fdp.Gaussian(2.0))
        where = lambda m: [m.parts[0], m.parts[1]]
        return fdp.calibrate(both, TARGET, solve_for=where).value

    sigma = _sigma()
    known = lambda a: sigma * jnp.sqrt(a**-2 + 0.25)
    twice = lambda f: jax.grad(jax.grad(f))
    found = float(jax.jit(twice(factor))(1.5))
    assert found == pytest.approx(float(twice(known)(1.5)), rel=1e-7)


def test_factors_leave_no_room_for_rounding_in_float32():
    with jax.enable_x64(False):
        noise = np.linspace(1.0, 3.0, 50).astype(np.float32)
        schedule = fdp.Schedule(fdp.Gaussian, noise)
        found = fdp.calibrate(schedule, TARGET, solve_for="noise_multiplier")
        scaled = np.asarray(found.mechanism.steps.noise_multiplier)
    assert scaled.dtype == np.float32
    exact = fdp.Schedule(fdp.Gaussian, scaled.astype(np.float64))
    assert 1 - 1e-5 < exact.epsilon(delta=1e-5) <= 1.0


def _gamma_delta(shape, scale, epsilon):
    """Of a Gaussian at a gamma distributed time, by quadrature over that time."""

    def value(t):
        mu = np.sqrt(t)
        gauss = ndtr(mu / 2 - epsilon / mu)
        gauss -= np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        return stats.gamma.pdf(t, shape, scale=scale) * gauss

    return integrate.quad(value, 0, 60 * scale, epsabs=1e-15, limit=500)[0]


@pytest.mark.parametrize("name", ["shape", "scale"])
def test_parameters_of_a_subordinated_gaussian(name):
    """More time is more loss, unlike more noise of the same name."""
    values = {"shape": 2.0, "scale": 0.05, name: None}
    target = targets.ApproxDP(epsilon=1.0, delta=1e-3)
    found = fdp.calibrate(
        fdp.levy.SubordinatedGaussian(**values), target, solve_for=name
    )
    assert found.leaks == 1
    assert found.status == Status.TIGHT
    reached = _gamma_delta(**{**values, name: float(found.value)}, epsilon=1.0)
    assert reached == pytest.approx(1e-3, rel=1e-8)


def test_the_index_of_a_subordinated_gaussian_is_below_one():
    target = targets.ApproxDP(epsilon=1.0, delta=1e-3)
    with pytest.raises(fdp.UnreachableTarget, match=r"no index in \[0, 0.999\]"):
        fdp.calibrate(
            fdp.levy.SubordinatedGaussian(2.0, 0.5), target, solve_for="index"
        )


def test_time_of_jumps_alone():
    """Two Poisson counts, whose closed form leaves no room for a loose certificate."""

    def delta(time):
        counts, low = np.arange(60), 0.1 * time
        p, q = (stats.poisson.pmf(counts, low * np.exp(x)) for x in (0, 0.3))
        return np.sum(np.maximum(q - np.exp(1.0) * p, 0)) - 1e-3

    target = targets.ApproxDP(epsilon=1.0, delta=1e-3)
    family = fdp.LevyTriplet(jumps=[0.3], rates=[0.1])
    found = fdp.calibrate(family, target, solve_for="num_steps")
    root = optimize.brentq(delta, 7.0, 8.0, xtol=1e-12)
    assert float(found.value) == pytest.approx(root, rel=1e-9)


def test_a_factor_of_random_numbers():
    """One and two Gaussians, times a factor that is no whole number."""

    def delta(factor):
        mu = np.sqrt(factor * np.asarray([1, 2])) / 20
        gauss = ndtr(mu / 2 - 1 / mu) - np.exp(1) * ndtr(-mu / 2 - 1 / mu)
        return 0.5 * np.sum(gauss) - 1e-3

    target = targets.ApproxDP(epsilon=1.0, delta=1e-3)
    family = fdp.RandomRepeat(fdp.Gaussian(20.0), num_steps=[1, 2], probs=[0.5, 0.5])
    found = fdp.calibrate(family, target, solve_for="num_steps")
    root = optimize.brentq(delta, 10.0, 200.0, xtol=1e-12)
    assert float(found.value) == pytest.approx(root, rel=1e-7)


@pytest.mark.slow
def test_a_factor_makes_random_numbers_fractional():
    """One and two counts, times a factor that is no whole number."""

    def delta(factor):
        counts, total = np.arange(1000), 0.0
        for n in (1, 2):
            p, q = (stats.poisson.pmf(counts, n * factor * x) for x in (50, 51))
            total += 0.5 * np.sum(np.maximum(q - np.exp(1.0) * p, 0))
        return total - 1e-3

    target = targets.ApproxDP(epsilon=1.0, delta=1e-3)
    count = fdp.PoissonMechanism(50.0, 1.0)
    family = fdp.RandomRepeat(count, num_steps=[1, 2], probs=[0.5, 0.5])
    found = fdp.calibrate(family, target, solve_for="num_steps")
    root = optimize.brentq(delta, 2.0, 8.0, xtol=1e-12)
    assert float(found.value) == pytest.approx(root, rel=1e-7)
