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


def test_more_steps_than_one(answers):
    """d delta / d N is the integral of M log M e^(-z eps) / (z (1 + z)) / (2 pi i)."""
    sigma, q, _ = _POINTS[3]
    epsilon, (_, _, by_steps, by_delta) = answers[3]
    x = np.linspace(-12, 16, 4001) * sigma
    loss = np.log1p(q * np.expm1((x - 0.5) / sigma**2))
    density = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    slopes = []
    for c in (1.0, 3.0):
        z = c + 1j * np.arange(0, 400 / q / np.sqrt(sigma), 0.25 / sigma)
        powers = np.array([np.exp((1 + w) * loss) @ density for w in z])
        powers = powers * (x[1] - x[0])
        log = np.log(np.abs(powers)) + 1j * np.unwrap(np.angle(powers))
        terms = (powers * log * np.exp(-z * epsilon) / (z * (1 + z))).real
        step = z[1].imag - z[0].imag
        slopes.append(step / np.pi * (terms.sum() - terms[0] / 2))
    np.testing.assert_allclose(*slopes, rtol=1e-9)
    np.testing.assert_allclose(by_steps, -by_delta * slopes[0], rtol=1e-6)
