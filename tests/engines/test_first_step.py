"""A traced number of steps that is one: derivatives against closed forms."""

import jax
import numpy as np
import pytest
from mpmath import diff, erfc, exp, findroot, log, mp, mpf, sqrt
from programs import jitted

import fdp_jax as fdp

# noise_multiplier, sampling_prob, delta: where one and many steps overlap.
_POINTS = (
    (1.0, 0.1, 1e-5),
    (0.5, 1e-4, 1e-8),
    (1.0, 0.1, 1e-40),
    (5.0, 0.5, 1e-3),
    (2.0, 1.0, 1e-6),
)


def _upper(x):
    return erfc(x / sqrt(2)) / 2


def _log_delta(sigma, q, epsilon):
    """delta = q delta_G(t) with e^t = 1 + (e^epsilon - 1) / q, without the record."""
    t = log(1 + (exp(epsilon) - 1) / q)
    a, b = sigma * t - 1 / (2 * sigma), sigma * t + 1 / (2 * sigma)
    return log(q * (_upper(a) - exp(t) * _upper(b)))


def _epsilon(sigma, q, delta, start):
    return findroot(lambda e: _log_delta(sigma, q, e) - log(delta), start)


@pytest.fixture(scope="module")
def answers():
    """Epsilon and its derivatives at all points, by one program."""

    def epsilon(x):
        run = fdp.DPSGD(noise_multiplier=x[0], sampling_prob=x[1], num_steps=x[2])
        return run.remove.epsilon(delta=x[3], bound="estimate")

    with jax.enable_x64(True):
        ask = jitted(jax.value_and_grad(epsilon))
        points = [np.array([s, q, 1.0, d]) for s, q, d in _POINTS]
        return [jax.tree.map(np.asarray, ask(x)) for x in points]


@pytest.mark.parametrize("index", range(len(_POINTS)))
def test_every_derivative_is_handed_on_once(answers, index):
    with mp.workdps(60):
        sigma, q, delta = (mpf(x) for x in _POINTS[index])
        value, (in_sigma, _, _, in_delta) = answers[index]
        start = _epsilon(sigma, q, delta, mpf(float(value)))
        np.testing.assert_allclose(value, float(start), rtol=1e-9)
        by_sigma = diff(lambda s: _epsilon(s, q, delta, start), sigma)
        by_epsilon = diff(lambda e: _log_delta(sigma, q, e), start)
        np.testing.assert_allclose(in_sigma, float(by_sigma), rtol=1e-7)
        np.testing.assert_allclose(in_delta, float(1 / delta / by_epsilon), rtol=1e-7)


def test_more_steps_than_one_of_the_whole_data(answers):
    """With every record in each step, n steps are one of noise sigma / sqrt(n)."""
    with mp.workdps(40):
        sigma, q, delta = (mpf(x) for x in _POINTS[-1])
        steps = lambda n: _epsilon(sigma / sqrt(n), q, delta, mpf("2.2"))
        np.testing.assert_allclose(answers[-1][1][2], float(diff(steps, 1)), rtol=1e-7)


def _by_steps(sigma, q, steps, epsilon, step):
    """The integral of M^N log M e^(-z eps) / (z (1 + z)) / (2 pi i), d delta / d N."""
    x = np.linspace(-12, 16, 4001) * sigma
    loss = np.log1p(q * np.expm1((x - 0.5) / sigma**2))
    density = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    slopes = []
    for c in (1.0, 3.0):
        z = c + 1j * np.arange(0, 400 / q / np.sqrt(sigma), step)
        powers = np.array([np.exp((1 + w) * loss) @ density for w in z])
        powers = powers * (x[1] - x[0])
        log = np.log(np.abs(powers)) + 1j * np.unwrap(np.angle(powers))
        terms = (np.exp(steps * log) * log * np.exp(-z * epsilon) / (z * (1 + z))).real
        slopes.append(step / np.pi * (terms.sum() - terms[0] / 2))
    np.testing.assert_allclose(*slopes, rtol=1e-8)
    return slopes[0]


def test_more_steps_than_one(answers):
    sigma, q, _ = _POINTS[3]
    epsilon, (_, _, by_steps, by_delta) = answers[3]
    truth = -by_delta * _by_steps(sigma, q, 1, epsilon, 0.25 / sigma)
    np.testing.assert_allclose(by_steps, truth, rtol=1e-6)


@pytest.mark.parametrize(
    ("sigma", "q", "delta", "method", "step"),
    [(3.0, 0.2, 1e-5, "contour", 0.25), (1.5, 0.3, 1e-3, "contour", 0.25)],
)
def test_more_steps_than_two(sigma, q, delta, method, step):
    """Angles go on over whole turns, though whole powers do not need them."""

    def epsilon(steps, delta):
        run = fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=steps)
        return run.using(method).remove.epsilon(delta=delta, bound="estimate")

    with jax.enable_x64(True):
        value, slopes = jax.value_and_grad(epsilon, (0, 1))(2.0, delta)
    truth = -slopes[1] * _by_steps(sigma, q, 2, float(value), step)
    np.testing.assert_allclose(slopes[0], truth, rtol=1e-6)


def test_bounds_next_to_the_largest_loss_of_an_added_record():
    """One step "add": no record that takes part leaves more than log(1 - q)."""
    sigma, q, delta = 0.27267673743578813, 0.9999436901328473, 1.4e-9
    run = fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=1)
    with jax.enable_x64(True), mp.workdps(40):
        found = run.using("contour").add.bounds(delta=delta)
        sigma, q = mpf(sigma), mpf(q)

        def miss(epsilon):
            x = sigma**2 * log((exp(-epsilon) - 1 + q) / q) + mpf(1) / 2
            below, included = _upper(-x / sigma), _upper((1 - x) / sigma)
            return below - exp(epsilon) * ((1 - q) * below + q * included) - delta

        most = -log(1 - q)
        truth = findroot(
            miss, (most - mpf(10) ** -6, most - mpf(10) ** -15), "anderson"
        )
        assert float(found.lower) <= truth <= float(found.upper)
        assert found.upper - found.lower < 1e-8
