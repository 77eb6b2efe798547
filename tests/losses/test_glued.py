"""The pair of fixed-size batches against quadrature and against the grid."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax.curves import Status, Subject
from fdp_jax.losses import (
    ComposedLoss,
    Method,
    SymmetrizedGaussianLoss,
)
from fdp_jax.losses._analytic import FREQUENCY_BLOCK

f64 = jnp.float64
PAIRS = [
    (0.5, 0.01, 3.0, 20.0),
    (0.25, 0.1, 4.0, 3.0),
    (2.0, 0.01, 30.0, 100.0),
    (0.35, 0.9, 0.4, 6.0),
    (1.0, 1e-4, 8.0, 500.0),
    (0.5, 1.0, 2.0, 4.0),
    (4.0, 0.3, -1.5, 40.0),
    (0.15, 0.02, 2.0, 3.0),
]


def _loss(noise, prob):
    return SymmetrizedGaussianLoss(jnp.asarray(noise, f64), jnp.asarray(prob, f64))


def _composed(noise, prob, steps, method):
    return ComposedLoss(
        (_loss(noise, prob),), (jnp.asarray(steps, f64),), method=Method(method)
    )


def _complex(real, imag) -> Any:
    return mp.mpf(float(real)) + mp.mpf(float(imag)) * mp.j


def _transform(noise, prob, order: Any) -> Any:
    """T(w) by adaptive quadrature."""
    r, q = 1 / (2 * mp.mpf(noise)), mp.mpf(prob)

    def density(t):
        loss = mp.log(1 - q + q * mp.exp(2 * r * t))
        both = mp.expm1(order * loss) * mp.expm1((1 - order) * loss)
        return mp.npdf(r + t) * both

    power = max(mp.re(order), 1 - mp.re(order))
    mode = 2 * r * power - r
    near = [mode + x for x in (-12, -8, -5, -3, -1, 0, 1, 3, 5, 8, 12)]
    ends = {
        mp.mpf(x) for x in (0, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 11, 15, *near) if x >= 0
    }
    integral: Any = mp.quad(density, sorted(ends), method="gauss-legendre")
    return 1 - integral


@jitted
def _evaluated(loss, order, last):
    step = last / (FREQUENCY_BLOCK - 1)
    located = loss.locate(order)
    plan = loss.prepare(located, last, jnp.asarray(-45.0))
    at = step * jnp.arange(FREQUENCY_BLOCK)
    envelopes = jax.vmap(lambda tau: loss.log_envelope(located, tau))(at[1:])
    found = loss.log_characteristic(plan, jnp.zeros_like(step), step)
    return loss.log_mgf(plan), found, envelopes


@pytest.mark.parametrize(("noise", "prob", "order", "last"), PAIRS)
def test_transform_against_quadrature(noise, prob, order, last):
    loss = _loss(noise, prob)
    (value, error), found, envelopes = _evaluated(
        loss, jnp.asarray(order), jnp.asarray(last)
    )
    with mp.workdps(30):
        base = _transform(noise, prob, mp.mpf(order))
        assert abs(float(value) - float(mp.log(base))) <= float(error)
        assert float(error) < 3e-13 * max(1, abs(float(value)))
        for k in (5, 63):
            tau = mp.mpf(float(last / (FREQUENCY_BLOCK - 1) * k))
            phi = _transform(noise, prob, _complex(order, tau)) / base
            mine = mp.exp(_complex(found.real[k], found.imag[k]))
            if float(found.error[k]) < 0.5:
                assert abs(mine - phi) <= 1.1 * float(found.error[k]) * abs(phi) + 1e-25
    # Bounds of all moduli beyond.
    envelopes, real = np.asarray(envelopes), np.asarray(found.real)[1:]
    sure = np.asarray(found.error)[1:] < 1e-6
    assert np.all(real[sure] <= envelopes[sure] + 1e-6)
    assert np.all(np.diff(envelopes) <= 1e-12)


_moments = jitted(lambda loss, orders: loss.moments(orders))
_rough_moments = jitted(lambda loss, order: loss.rough_moments(order))


def test_moments_are_upper_bounds():
    for noise, prob, order, _ in PAIRS:
        loss = _loss(noise, prob)
        value, mean, variance = _moments(loss, jnp.asarray([order, 1 - order]))
        with mp.workdps(30):
            truth = float(mp.log(_transform(noise, prob, mp.mpf(order))))
        assert truth <= float(value[0]) <= truth + 1e-12 * max(abs(truth), 1e-3)
        # Symmetry.
        np.testing.assert_allclose(value[0], value[1], rtol=1e-12)
        np.testing.assert_allclose(mean[0], -mean[1], rtol=1e-9)
        # Every other order is looked at.
        _, *rough = _rough_moments(loss, jnp.asarray([order, 0.0, 1 - order]))
        rough = np.asarray(rough)[:, ::2]
        np.testing.assert_allclose(rough, (value, mean, variance), rtol=0.02)


def test_mean_loss_with_the_record():
    # By an integral whose integrand has a double zero where the rule begins.
    for noise, prob in ((0.15, 0.05), (0.5, 0.01), (2.0, 0.01)):
        r, q = 1 / (2 * mp.mpf(noise)), mp.mpf(prob)
        loss = lambda t, r=r, q=q: mp.log1p(q * mp.expm1(2 * r * t))
        density = lambda t, r=r, loss=loss: mp.npdf(r + t) * mp.expm1(loss(t)) * loss(t)
        truth: Any = mp.quad(density, [0, 0.1, 0.5, 1, 2, 3, 5, 8, 12, 20])
        found = fdp.divergences.kl(_run(2 * noise, prob, 20))
        np.testing.assert_allclose(found, 20 * float(truth), rtol=1e-6)
        _, mean, _ = _moments(_loss(noise, prob), jnp.ones(1))
        np.testing.assert_allclose(mean[0], float(truth), rtol=1e-12)


@pytest.mark.parametrize(("noise", "prob"), [(0.5, 0.01), (2.0, 1e-6), (0.1, 0.3)])
def test_moments_of_high_order(noise, prob):
    # There only outputs count of which the record was sampled: T is that of the mixture
    # but for e^-1000, and nearly q^w that of the noise.
    orders = np.array([3e3, 1e5, 1e8])
    value, _, _ = _moments(_loss(noise, prob), jnp.asarray(orders))
    gain = orders * (orders - 1) / (2 * noise**2)
    lower = gain + orders * np.log(prob)
    upper = lower + np.log1p(np.exp(-orders / noise**2) / prob) * orders
    assert np.all(value >= lower * (1 - 1e-14))
    assert np.all(value <= gain * (1 + 1e-14))
    np.testing.assert_allclose(value[:2], upper[:2], rtol=1e-9)


def test_moments_that_no_rule_resolves():
    value, slope = jitted(
        jax.value_and_grad(
            lambda noise: jnp.sum(
                SymmetrizedGaussianLoss(noise, f64(0.01)).moments(f64([1e11, -1e14]))[0]
            )
        )
    )(f64(0.5))
    truth = 2 * (1e11 * (1e11 - 1) + 1e14 * (1e14 + 1))
    np.testing.assert_allclose(value, truth, rtol=1e-13)
    np.testing.assert_allclose(slope, -4 * truth, rtol=1e-13)


def test_concentration_is_that_of_the_noise():
    # rho = 1 / (2 s^2) a step, s = 1/2: replacing moves a sum by two clipping norms.
    found = fdp.divergences.zcdp(_run(1.0))
    np.testing.assert_allclose(found, 2000.0, rtol=1e-6)
    with jax.enable_x64(True):
        slope = jax.grad(lambda noise: fdp.divergences.zcdp(_run(noise)))(1.0)
    np.testing.assert_allclose(slope, -4000.0, rtol=1e-6)


@functools.partial(jitted, static_argnames="method")
def _bounds(noise, prob, steps, delta, method):
    composed = _composed(noise, prob, steps, method)
    return Subject(composed, "both").bounds(delta=delta)


@pytest.mark.slow
def test_overlaps_the_grid():
    rng = np.random.default_rng(7)
    tight = 0
    for _ in range(24):
        noise, prob = np.exp(rng.uniform(-1.4, 1.6)), 10 ** rng.uniform(-4, 0)
        steps, delta = np.round(10 ** rng.uniform(0.3, 3.7)), 10 ** rng.uniform(-11, -1)
        found = _bounds(noise, prob, steps, delta, "contour")
        grid = _bounds(noise, prob, steps, delta, "grid")
        assert found.lower <= grid.upper
        assert grid.lower <= found.upper
        if found.upper - found.lower < 1e-8 * found.upper:
            tight += 1
            assert grid.lower <= found.estimate <= grid.upper
    assert tight >= 12


def test_of_all_records_it_is_gaussian():
    rng = np.random.default_rng(3)
    for _ in range(8):
        noise, steps = (
            np.exp(rng.uniform(-1.6, 1.6)),
            np.round(10 ** rng.uniform(1.3, 4)),
        )
        delta = 10 ** rng.uniform(-12, -1)
        found = _bounds(noise, 1.0, steps, delta, "contour")
        with mp.workdps(40):
            mu = mp.sqrt(int(steps)) / mp.mpf(noise)
            lower, upper = (
                mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)
                for e in (mp.mpf(float(found.lower)), mp.mpf(float(found.upper)))
            )
        assert upper <= delta <= lower
        assert found.upper - found.lower < 1e-9 * found.upper


@pytest.mark.parametrize(
    ("noise", "prob", "steps", "delta", "shift", "step"),
    [
        (0.5, 0.01, 1000, 1e-5, 0.77, 0.05),
        (1.0, 0.2, 60, 1e-8, 1.5, 0.1),
        (3.0, 0.03, 500, 1e-3, 15.0, 1.0),
    ],
)
def test_against_a_contour_integral(noise, prob, steps, delta, shift, step):
    found = _bounds(noise, prob, steps, delta, "contour")
    ends = float(found.lower), float(found.upper)
    lower, upper = _deltas((noise, prob, steps), ends, shift, step)
    assert upper <= delta * (1 + 1e-12)
    assert lower >= delta * (1 - 1e-12)
    assert found.upper - found.lower < 1e-11 * found.upper


def _deltas(run, epsilons, shift, step):
    """delta by the trapezoid rule, along a line and for all of its points.

    In extended precision, on nodes and to frequencies that leave 1e-17 or so.
    """
    real, (noise, prob, steps) = np.longdouble, run
    pi = real("3.14159265358979323846264338327950288")
    r, spacing = 1 / (2 * real(noise)), real(1) / 32
    v = np.arange(-18, 24, spacing, dtype=real)
    t = np.log1p(np.exp(v))
    weight = np.exp(-((r + t) ** 2) / 2) / np.sqrt(2 * pi)
    weight = weight / (1 + np.exp(-v)) * spacing
    loss = np.log1p(real(prob) * np.expm1(2 * r * t))
    tau = real(step) * np.arange(384, dtype=real)
    w = (1 + real(shift) + 1j * tau)[:, None]
    growth = -np.sum(weight * np.expm1(w * loss) * np.expm1((1 - w) * loss), axis=1)
    power, z = np.exp(steps * np.log1p(growth)), w[:, 0] - 1
    assert np.abs(power[-1]) < 1e-17 * np.abs(power[0])
    share = np.where(tau == 0, 0.5, 1) * real(step) / pi
    kernels = [np.exp(-z * real(epsilon)) / (z * (1 + z)) for epsilon in epsilons]
    return [np.sum(share * (power * kernel).real) for kernel in kernels]


def _run(noise, prob=0.01, steps=1000):
    return fdp.DPSGD(
        noise_multiplier=noise,
        sampling=fdp.sampling.FixedSize(prob=prob),
        num_steps=steps,
        relation="replace_one",
    )


def _epsilon(noise, prob):
    return _run(noise, prob).epsilon(delta=1e-5)


def test_gradients_are_slopes():
    with jax.enable_x64(True):
        found = jax.grad(_epsilon, (0, 1))(1.1, 0.01)
        for k, step in ((0, 1e-4), (1, 1e-6)):
            move = np.eye(2)[k] * step
            high, low = (_epsilon(*(np.array([1.1, 0.01]) + s * move)) for s in (1, -1))
            slope = (float(high) - float(low)) / (2 * step)
            np.testing.assert_allclose(found[k], slope, rtol=1e-6)


def test_batches():
    noises = jnp.asarray([1.0, 2.0, 5.0])
    found = jax.vmap(lambda s: _epsilon(s, 0.01))(noises)
    each = [float(_epsilon(float(s), 0.01)) for s in noises]
    np.testing.assert_allclose(found, each, rtol=1e-6)


@pytest.mark.slow
def test_few_steps_are_asked_of_the_grid():
    found = _run(1.0, steps=5).bounds(delta=1e-5)
    assert found.method == "contour, grid"
    inside = jitted(lambda noise: _run(noise, steps=5).epsilon(delta=1e-5))(1.0)
    np.testing.assert_allclose(inside, found.estimate, rtol=1e-5)
    many = _run(1.0).bounds(delta=1e-5)
    assert many.method == "contour"
    assert many.status == Status.LOOSE  # the ends are of two pairs
