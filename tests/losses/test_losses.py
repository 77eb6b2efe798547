"""Every privacy loss against quadrature and sums that know nothing of the package."""

from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from programs import jitted

from fdp_jax.losses import (
    GaussianLoss,
    LaplaceLoss,
    LogisticLoss,
    SubsampledGaussianLoss,
    SymmetrizedGaussianLoss,
    TwoPointLoss,
)
from fdp_jax.losses._analytic import FREQUENCY_BLOCK
from fdp_jax.losses._normal_nodes import NODES, directed

mp.mp.dps = 40
f64 = jnp.float64
POINTS = [
    (1.0, 0.01, 3.0),
    (0.5, 0.1, 1.7),
    (5.0, 1e-4, 40.0),
    (2.0, 0.3, -6.0),
    (0.8, 1.0, 2.5),
]


def _subsampled(s, q):
    return SubsampledGaussianLoss(jnp.asarray(s, f64), jnp.asarray(q, f64))


@jitted
def _log_mgf(loss, order, frequency):
    plan = loss.prepare(loss.locate(order), frequency, jnp.asarray(-36.0))
    return loss.log_mgf(plan)


@jitted
def _characteristic(loss, order, start, step):
    last = start + step * FREQUENCY_BLOCK
    plan = loss.prepare(loss.locate(order), last, jnp.asarray(-36.0))
    return loss.center(plan), loss.log_characteristic(plan, start, step)


@jitted
def _plan(loss, order, last):
    return loss.prepare(loss.locate(order), last, jnp.asarray(-36.0))


@jitted
def _moments(loss, orders):
    return loss.moments(orders)


@jitted
def _log_envelope(loss, order, frequency):
    return loss.log_envelope(loss.locate(order), frequency)


def _complex(real, imag) -> Any:
    return mp.mpf(float(real)) + mp.mpf(float(imag)) * mp.j


def _quad(function, ends) -> Any:
    return mp.quad(function, ends)


# -- the subsampled Gaussian -------------------------------------------------------


def _binomial_log_mgf(s, q, order):
    """E_P[(dQ/dP)^w] for whole w >= 0 (Mironov, Talwar, Zhang 2019, Section 3.3)."""
    s, q = mp.mpf(s), mp.mpf(q)
    terms = (
        mp.binomial(order, k)
        * (1 - q) ** (order - k)
        * q**k
        * mp.exp(k * (k - 1) / (2 * s**2))
        for k in range(order + 1)
    )
    return mp.log(mp.fsum(terms))


@pytest.mark.parametrize("order", [1, 2, 3, 8, 50])
@pytest.mark.parametrize(("s", "q"), [(1.0, 0.01), (0.4, 0.2), (10.0, 1e-5), (3.0, 1)])
def test_log_mgf_is_the_binomial_sum_within_its_bound(s, q, order):
    value, error = _log_mgf(_subsampled(s, q), f64(order), f64(1.0))
    truth = _binomial_log_mgf(s, q, order)
    assert abs(mp.mpf(float(value)) - truth) <= float(error)
    assert float(error) <= 1e-12 * (1 + abs(float(truth)))


def test_tiny_log_mgf_keeps_its_digits():
    # Up to 1e8 steps multiply it.
    value, error = _log_mgf(_subsampled(10.0, 1e-6), f64(2.0), f64(1.0))
    truth = _binomial_log_mgf(10.0, 1e-6, 2)
    assert float(truth) == pytest.approx(1.005e-14, rel=1e-3)
    assert abs(mp.mpf(float(value)) - truth) <= float(error) < 4e-19


def _loss_and_weight(s, q, order):
    s, q, order = mp.mpf(s), mp.mpf(q), mp.mpf(order)
    loss = lambda x: mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * s**2)))
    weight = lambda x: mp.npdf(x, 0, s) * mp.exp(order * loss(x))
    ends = [-14 * s - abs(order), -4 * s, 0, 4 * s, abs(order) / 2, abs(order)]
    ends = sorted({*ends, 14 * s + abs(order)})
    return loss, weight, ends


@pytest.mark.parametrize(("s", "q", "order"), POINTS)
@pytest.mark.parametrize("tau", [0.5, 3.0, 20.0])
def test_characteristic_function_agrees_with_quadrature(s, q, order, tau):
    step = tau / 5
    center, block = _characteristic(_subsampled(s, q), f64(order), f64(0.0), f64(step))
    loss, weight, ends = _loss_and_weight(s, q, order)
    center = mp.mpf(float(center))
    with mp.workdps(25):
        turned = lambda x: weight(x) * mp.expj(5 * step * (loss(x) - center))
        truth = _quad(turned, ends) / _quad(weight, ends)
    found = mp.exp(_complex(block.real[5], block.imag[5]))
    error = float(block.error[5])
    assert abs(mp.log(found / truth)) <= error + 1e-20
    assert error * abs(truth) <= 1e-11


def _log_transform(s, q, order, taus, center):
    """log E_w[exp(i tau (X - center))] on a fine uniform grid, in plain NumPy."""
    reach = 13 * s + abs(order)
    x = np.linspace(-reach, reach, 20_001)
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s**2)))
    log_weight = -(x**2) / (2 * s**2) + order * loss
    weight = np.exp(log_weight - log_weight.max())
    return np.log(np.exp(1j * np.outer(taus, loss - center)) @ weight / weight.sum())


@jitted
def _characteristic_derivatives(at, plan, step):
    """Second and first derivatives in the parameters: one program for all of them."""

    def value(at):
        block = _subsampled(*at).log_characteristic(plan, f64(0.0), step)
        return block.real, block.imag

    def first(at):
        slopes = jax.jacfwd(value)(at)
        return slopes, slopes

    return jax.jacfwd(first, has_aux=True)(at)


@pytest.mark.parametrize(
    ("s", "q", "order"), [(1.0, 0.01, 3.0), (0.6, 0.2, -1.5), (4.0, 1e-3, 40.0)]
)
def test_derivatives_of_the_characteristic_function(s, q, order):
    step = 0.02 * s
    taus = step * np.arange(FREQUENCY_BLOCK)
    at = jnp.asarray([s, q], f64)
    loss = _subsampled(s, q)
    plan = _plan(loss, f64(order), f64(taus[-1]))
    center = float(loss.center(plan))

    truth = lambda s, q: _log_transform(s, q, order, taus, center)
    (real2, imag2), (real, imag) = _characteristic_derivatives(at, plan, f64(step))
    for k, h in enumerate(1e-4 * np.asarray([s, q])):
        side = h * np.eye(2)[k]
        high, low = truth(*(at + side)), truth(*(at - side))
        slope = np.asarray(real[:, k] + 1j * imag[:, k])
        scale = np.abs(slope).max()
        wrong = np.abs(slope - (high - low) / (2 * h)).max()
        assert wrong <= 1e-7 * scale + 1e-15 / h
        bend = np.asarray(real2[:, k, k] + 1j * imag2[:, k, k])
        scale = np.abs(bend).max()
        second = (high + low - 2 * truth(*at)) / h**2
        assert np.abs(bend - second).max() <= 1e-5 * scale + 4e-15 / h**2


def _transform_on(plan, s, q, taus, refined):
    """Sums over the nodes of a plan, or over some times as many, in plain NumPy."""
    nodes = plan.nodes
    h, c = float(nodes.step) / refined, float(nodes.shift)
    t = float(nodes.low) + h * np.arange(int(nodes.blocks) * NODES * refined)
    # The exchanged pair has the loss -X of the output -t.
    sign = float(nodes.sign)
    loss = np.log1p(q * np.expm1((2 * sign * t - 1 / s) / (2 * s)))
    log_p = -(t**2) / 2 + np.where(sign > 0, 0.0, loss)
    log_weight = log_p + (1 + c) * sign * loss - float(nodes.peak)
    return h * np.exp(1j * np.outer(taus, sign * loss)) @ np.exp(log_weight)


def test_quadrature_error_stays_below_its_bound():
    """At loose tolerances, where it is far above rounding."""
    random = np.random.default_rng(1)

    @jitted
    def prepare(one, order, last, tolerance):
        plan = one.prepare(one.locate(order), last, tolerance)
        taus = jnp.linspace(0.0, last, 9)
        pair = directed(one, plan.nodes.sign)
        return plan, taus, jax.vmap(lambda t: plan.nodes.missed(pair, t))(taus)

    shares = []
    for _ in range(120):
        s, q = np.exp(random.uniform(-1.5, 2.0)), np.exp(random.uniform(-8.0, -0.1))
        order = random.uniform(-2.0, 6.0) * max(s, 1)
        last = 40 * s**2 * np.exp(random.uniform(0, 4))
        tolerance = random.uniform(-9, -5)
        one = _subsampled(s, q)
        plan, taus, bounds = prepare(one, *map(f64, (order, last, tolerance)))
        if int(plan.nodes.blocks) > 120 or not bounds[-1] < 0.5:
            continue
        fine = _transform_on(plan, s, q, np.asarray(taus), 4)
        error = np.abs(_transform_on(plan, s, q, np.asarray(taus), 1) - fine)
        rounding = 1e-12
        shares.append((error / abs(fine[0]) - rounding) / np.asarray(bounds))
    assert len(shares) > 40
    assert 0 < np.max(shares) <= 1


def _moduli(s, q, order, taus):
    """|characteristic function| on a fine uniform grid, in plain NumPy."""
    reach = 13 * s + abs(order)
    x = np.linspace(-reach, reach, 20_001)
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s**2)))
    log_weight = -(x**2) / (2 * s**2) + order * loss
    weight = np.exp(log_weight - log_weight.max())
    return np.abs(np.exp(1j * np.outer(taus, loss)) @ weight) / weight.sum()


@settings(max_examples=40, deadline=None)
@given(
    s=st.floats(0.3, 20.0),
    log_q=st.floats(-11.0, 0.0),
    order=st.floats(-10.0, 10.0),
    log_tau=st.floats(-2.0, 3.0),
)
def test_envelope_bounds_the_characteristic_function(s, log_q, order, log_tau):
    q, tau = min(np.exp(log_q), 0.999), np.exp(log_tau) * s
    bound = float(_log_envelope(_subsampled(s, q), f64(order), f64(tau)))
    assert bound <= 0
    later = tau * np.geomspace(1, 8, 12)
    worst = _moduli(s, q, order, later).max()
    assert worst <= np.exp(bound) * (1 + 1e-9) + 1e-12


def test_envelope_is_of_use():
    # It decides how many frequencies are summed: at most twice as many as need be.
    for s, q, tau in [(1.0, 0.01, 1000.0), (2.0, 0.5, 12.0), (0.5, 1e-3, 300.0)]:
        bound = float(_log_envelope(_subsampled(s, q), f64(3.0), f64(tau)))
        assert bound <= np.log(_moduli(s, q, 3.0, [tau / 2])[0])


@pytest.mark.parametrize(("s", "q", "order"), POINTS)
def test_moments_bound_and_steer(s, q, order):
    orders = jnp.asarray([order, 1.3, 0.2], f64)
    value, mean, variance = _moments(_subsampled(s, q), orders)
    loss, weight, ends = _loss_and_weight(s, q, order)
    with mp.workdps(20):
        total = _quad(weight, ends)
        first = _quad(lambda x: loss(x) * weight(x), ends) / total
        square = _quad(lambda x: (loss(x) - first) ** 2 * weight(x), ends) / total
    assert float(value[0]) >= float(mp.log(total)) * (1 - 1e-15)
    assert float(value[0]) == pytest.approx(float(mp.log(total)), rel=1e-9, abs=1e-12)
    assert float(mean[0]) == pytest.approx(float(first), rel=1e-6, abs=1e-10)
    assert float(variance[0]) == pytest.approx(float(square), rel=1e-4)


# -- losses with a formula ---------------------------------------------------------


def _laplace_parts(mu, order):
    """(loss, tilted weight) of the two atoms, and the density between, in mpmath."""
    mu, order = mp.mpf(mu), mp.mpf(order)
    # X = -mu with probability 1/2, mu with e^-mu / 2, else 2 x - mu under Lap(0, 1).
    atoms = [(-mu, mp.exp(-order * mu) / 2), (mu, mp.exp(order * mu - mu) / 2)]
    density = lambda x: mp.exp(-x) / 2 * mp.exp(order * (2 * x - mu))
    return atoms, density


@pytest.mark.parametrize("order", [-2.3, 0.5, 1.0, 4.7])
@pytest.mark.parametrize("scale", [0.5, 2.0, 50.0])
def test_laplace_agrees_with_quadrature(scale, order):
    loss = LaplaceLoss(jnp.asarray(scale, f64))
    value, error = _log_mgf(loss, f64(order), f64(1.0))
    step = 0.4
    center, block = _characteristic(loss, f64(order), f64(0.0), f64(step))
    mu = 1 / mp.mpf(scale)
    atoms, density = _laplace_parts(mu, order)

    def transform(tau):
        inner = _quad(lambda x: density(x) * mp.expj(tau * (2 * x - mu)), [0, mu])
        return inner + mp.fsum(w * mp.expj(tau * x) for x, w in atoms)

    total = transform(0).real
    assert abs(mp.mpf(float(value)) - mp.log(total)) <= float(error)
    for k in (1, 7, 30):
        tau = mp.mpf(k * step)
        truth = transform(tau) / total * mp.expj(-tau * mp.mpf(float(center)))
        found = mp.exp(_complex(block.real[k], block.imag[k]))
        assert abs(mp.log(found / truth)) <= float(block.error[k])


@pytest.mark.parametrize("order", [-2.3, 0.5, 0.5 + 1e-9, 1.0, 40.7])
@pytest.mark.parametrize("mu", [1e-6, 0.02, 1.0, 30.0, 400.0])
def test_logistic_agrees_with_its_definition(mu, order):
    loss = LogisticLoss(jnp.asarray(mu, f64))
    value, error = _log_mgf(loss, f64(order), f64(1.0))
    size, w = mp.mpf(mu), mp.mpf(order)
    density = lambda t: mp.exp(-(t + size) / 2) / (2 * -mp.expm1(-size))
    primitive = lambda z, t: mp.exp(z * t) / z if z else t

    def transform(tau):
        # Of e^((w - 1/2 + i tau) t), up to what no frequency enters.
        z = mp.mpc(w - mp.mpf(0.5), tau)
        return primitive(z, size) - primitive(z, -size)

    total = transform(0).real
    scale = density(0)
    assert abs(mp.mpf(float(value)) - mp.log(scale * total)) <= float(error)
    for step in (0.03 / mu, 0.4, 7.7):
        center, block = _characteristic(loss, f64(order), f64(0.0), f64(step))
        for k in (1, 7, 30, 63):
            tau = k * mp.mpf(step)
            truth = transform(tau) / total * mp.expj(-tau * mp.mpf(float(center)))
            found = mp.exp(_complex(block.real[k], block.imag[k]))
            assert abs(found / truth - 1) <= float(block.error[k])
            envelope = mp.exp(float(_log_envelope(loss, f64(order), f64(tau))))
            beyond = (transform(tau * x) / total for x in (1, 1.01, 2, 9.7))
            assert max(map(abs, beyond)) <= envelope * (1 + 1e-14)


@pytest.mark.parametrize("order", [-2.3, 0.5, 1.0, 4.7])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (2.0, 1e-3), (30.0, 0.2)])
def test_two_points_agree_with_their_definition(epsilon, delta, order):
    loss = TwoPointLoss.of(jnp.asarray(epsilon, f64), jnp.asarray(delta, f64))
    value, error = _log_mgf(loss, f64(order), f64(1.0))
    center, block = _characteristic(loss, f64(order), f64(0.0), f64(0.1))
    e = mp.mpf(epsilon)
    high = (1 - mp.mpf(delta)) * mp.exp(-e) / (1 + mp.exp(-e))
    low = (1 - mp.mpf(delta)) / (1 + mp.exp(-e))

    def transform(tau):
        z = mp.mpc(order, tau)
        return high * mp.exp(z * e) + low * mp.exp(-z * e)

    total = transform(0).real
    assert abs(mp.mpf(float(value)) - mp.log(total)) <= float(error)
    for k in (1, 9, 40):
        tau = k * mp.mpf(0.1)
        truth = transform(tau) / total * mp.expj(-tau * mp.mpf(float(center)))
        found = mp.exp(_complex(block.real[k], block.imag[k]))
        assert abs(mp.log(found / truth)) <= float(block.error[k])


def test_gaussian_is_the_subsampled_one_without_sampling():
    order, step = f64(2.5), f64(0.3)
    exact = _characteristic(GaussianLoss(f64(1.5)), order, f64(0.0), step)
    found = _characteristic(_subsampled(1.5, 1.0), order, f64(0.0), step)
    assert float(exact[0]) == pytest.approx(2.0 / 1.5**2, rel=1e-15)
    assert float(found[0]) == pytest.approx(float(exact[0]), rel=1e-12)
    drift = np.arange(FREQUENCY_BLOCK) * 0.3 * (float(found[0]) - float(exact[0]))
    np.testing.assert_allclose(found[1].real[:20], exact[1].real[:20], atol=1e-11)
    np.testing.assert_allclose(found[1].imag[:20] + drift[:20], 0, atol=1e-11)


@pytest.mark.parametrize(
    "loss",
    [
        GaussianLoss(f64(2.0)),
        LaplaceLoss(f64(2.0)),
        LogisticLoss(f64(2.0)),
        TwoPointLoss.of(f64(1.0), f64(0.0)),
        _subsampled(1.0, 0.1),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_total_mass_is_one_under_both_laws(loss):
    for order in (0.0, 1.0):
        value, error = _log_mgf(loss, f64(order), f64(1.0))
        assert abs(float(value)) <= float(error) + 1e-300


@pytest.mark.parametrize("count", [256, 576, 1024])
@pytest.mark.parametrize(("s", "q", "order"), [(1.0, 0.01, 3.0), (0.6, 0.2, -1.5)])
@pytest.mark.parametrize("kind", [SubsampledGaussianLoss, SymmetrizedGaussianLoss])
def test_many_frequencies_are_those_of_few(kind, s, q, order, count):
    # Other tables of rotations: each must be within the sum of both error bounds.
    loss, step = kind(f64(s), f64(q)), jnp.asarray(0.05, f64)
    last = step * count
    place = lambda x: x.prepare(
        x.locate(jnp.asarray(order, f64)), last, jnp.asarray(-36.0)
    )
    plan = jitted(place)(loss)
    ask = jitted(lambda p, t: loss.log_characteristic(p, t, step, FREQUENCY_BLOCK))
    all_of = jitted(lambda p, t: loss.log_characteristic(p, t, step, count))
    wide = all_of(plan, 0 * step)
    for start in range(0, count, FREQUENCY_BLOCK):
        narrow = ask(plan, start * step)
        here = slice(start, start + FREQUENCY_BLOCK)
        bound = np.asarray(wide.error[here] + narrow.error)
        assert np.all(np.abs(np.asarray(wide.real[here] - narrow.real)) <= bound)
        turn = np.exp(1j * np.asarray(wide.imag[here] - narrow.imag))
        assert np.all(np.abs(turn - 1) <= bound)
