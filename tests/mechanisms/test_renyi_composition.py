"""What is known by Rényi divergences alone, with mechanisms: closed forms."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import exact

import fdp_jax as fdp
from fdp_jax import targets

DELTA = 1e-6
EXPONENTIAL = fdp.ExponentialMechanism(0.5)
BOX = fdp.compose(fdp.ZCDP(0.1), fdp.Gaussian(3.0))
SUM = fdp.ZCDP(0.1 + 1 / 18)
"""Gaussian noise of multiplier s is 1 / (2 s^2)-zCDP, and no less (Bun, Steinke)."""


def _log_delta_of(divergence, epsilon, orders):
    """Proposition 12 of Canonne, Kamath and Steinke over a dense list of orders."""
    found = []
    for t in orders:
        h = mp.mpf(t) - 1
        gap = h * mp.log(h / (1 + h)) - mp.log(1 + h)
        found.append(h * (divergence(mp.mpf(t)) - epsilon) + gap)
    return min(found)


def test_gaussian_noise_adds_its_rho():
    for delta in (1e-12, 1e-6, 1e-2):
        found, truth = (exact(x.epsilon(delta=delta)) for x in (BOX, SUM))
        assert truth * (1 - mp.mpf("1e-12")) <= found <= truth * (1 + mp.mpf("1e-8"))
    for epsilon in (-0.5, 0.5, 2.0, 8.0):
        found, truth = (exact(x.log_delta(epsilon=epsilon)) for x in (BOX, SUM))
        assert truth - mp.mpf("1e-11") <= found <= truth + mp.mpf("1e-7") * abs(truth)
    for alpha in (1e-5, 0.1, 0.7):
        found, truth = (exact(x.beta(alpha=alpha)) for x in (BOX, SUM))
        assert truth * (1 - mp.mpf("1e-6")) <= found <= truth * (1 + mp.mpf("1e-9"))
    orders = jnp.array([0.5, 1.0, 2.0, 30.0])
    np.testing.assert_allclose(
        BOX.divergence(orders)[1:], SUM.divergence(orders)[1:], rtol=1e-8
    )
    found = exact(BOX.repeat(3).epsilon(delta=DELTA))
    truth = exact(SUM.repeat(3).epsilon(delta=DELTA))
    assert truth * (1 - mp.mpf("1e-12")) <= found <= truth * (1 + mp.mpf("1e-8"))
    assert int(BOX.bounds(delta=DELTA).status) == fdp.Status.LOOSE


def test_laplace_noise_adds_its_divergences():
    """Mironov's closed form of Laplace noise, at a thousand orders by mpmath."""
    scale, rho = mp.mpf(3), mp.mpf("0.1")

    def divergence(t):
        first = t / (2 * t - 1) * mp.exp((t - 1) / scale)
        second = (t - 1) / (2 * t - 1) * mp.exp(-t / scale)
        return rho * t + mp.log(first + second) / (t - 1)

    orders = 1 + np.exp(np.linspace(-1.0, 5.0, 1000))
    box = fdp.compose(fdp.ZCDP(0.1), fdp.Laplace(3.0))
    for epsilon in (1.0, 2.4):
        truth = _log_delta_of(divergence, mp.mpf(epsilon), orders)
        found = exact(box.log_delta(epsilon=epsilon))
        assert truth - mp.mpf("1e-4") <= found <= truth + mp.mpf("1e-8") * abs(truth)
    # Of pure privacy alone, eps = 1 / 3, follows eps^2 / 2 (Bun and Steinke).
    assert box.epsilon(delta=DELTA) < fdp.ZCDP(0.1 + 1 / 18).epsilon(delta=DELTA)


def test_exponential_mechanism_is_no_worse_than_its_zcdp():
    """A range of epsilon is epsilon^2 / 8 (Cesar and Rogers 2021), and pure epsilon."""
    box = fdp.compose(fdp.ZCDP(0.1), EXPONENTIAL)
    assert box.epsilon(delta=DELTA) <= fdp.ZCDP(0.1 + 0.5**2 / 8).epsilon(delta=DELTA)
    # Nothing can be better than what the part alone attains.
    assert box.epsilon(delta=DELTA) > fdp.ZCDP(0.1).epsilon(delta=DELTA)


@pytest.mark.parametrize("lost", [1e-9, 1e-7, 9e-7])
def test_approximate_zcdp(lost):
    """(rho, d)-zCDP: delta = d + (1 - d) delta', and the same of the power."""
    part = fdp.ApproxDP(epsilon=0.0, delta=lost)
    box, rest = fdp.compose(part, fdp.ZCDP(0.1)), fdp.ZCDP(0.1)
    left = (DELTA - lost) / (1 - lost)
    found, truth = box.epsilon(delta=DELTA), rest.epsilon(delta=left)
    assert float(truth) * (1 - 1e-12) <= float(found) <= float(truth) * (1 + 1e-8)
    assert box.epsilon(delta=lost / 2) == math.inf
    found = float(box.delta(epsilon=1.5))
    truth = lost + (1 - lost) * float(rest.delta(epsilon=1.5))
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-7)
    found = float(box.beta(alpha=0.1))
    truth = (1 - lost) * float(rest.beta(alpha=0.1 / (1 - lost)))
    assert truth * (1 - 1e-6) <= found <= truth * (1 + 1e-9)
    np.testing.assert_allclose(box.beta(alpha=0.0), 1 - lost, rtol=1e-14)


def test_outputs_that_tell_do_so_at_every_threshold():
    both = fdp.compose(fdp.ZCDP(0.1), fdp.ApproxDP(epsilon=0.5, delta=0.1))
    found = both.delta(epsilon=np.array([50.0, np.inf]))
    np.testing.assert_allclose(found, 0.1, rtol=1e-12)
    assert np.all(found >= 0.1)


def test_listed_orders_answer_at_themselves():
    box = fdp.compose(fdp.RenyiDP([1.5, 4.0], [0.7, 1.0]), fdp.Gaussian(3.0))
    both = fdp.RenyiDP([1.5, 4.0], [0.7 + 1.5 / 18, 1.0 + 4 / 18])
    found, truth = (float(x.epsilon(delta=DELTA)) for x in (box, both))
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-8)


def test_never_below_a_mechanism_of_that_zcdp():
    """Gaussian noise has the zCDP of the box: its composition is a truth below."""
    box = fdp.compose(fdp.ZCDP(0.1), EXPONENTIAL)
    truth = fdp.compose(fdp.Gaussian(0.2**-0.5), EXPONENTIAL)
    for epsilon in (0.0, 1.0, 2.0):
        assert box.delta(epsilon=epsilon) > truth.bounds(epsilon=epsilon).lower


def _ask(rho, noise):
    box = fdp.compose(fdp.ZCDP(rho), fdp.Gaussian(noise))
    return box.epsilon(delta=DELTA)


def test_transformations_and_float32():
    direct = lambda r, s: fdp.ZCDP(r + 0.5 / s**2).epsilon(delta=DELTA)
    found = jitted(jax.value_and_grad(_ask, argnums=(0, 1)))(0.1, 3.0)
    truth = jax.value_and_grad(direct, argnums=(0, 1))(0.1, 3.0)
    for one, other in zip(*map(jax.tree.leaves, (found, truth)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)
    rhos = jnp.array([0.05, 0.1])
    mapped = jax.vmap(lambda r: _ask(r, 3.0))(rhos)
    np.testing.assert_allclose(mapped[1], found[0], rtol=1e-12)
    with jax.enable_x64(False):
        single = jitted(_ask)(jnp.float32(0.125), jnp.float32(2.0))
    assert single.dtype == jnp.float32
    truth = exact(direct(0.125, 2.0))
    assert truth <= exact(single) <= truth * (1 + mp.mpf("3e-7"))


def test_an_account_is_composed_and_the_route_is_named():
    box = fdp.compose(fdp.Accountant().step(fdp.Gaussian(3.0)), fdp.ZCDP(0.1))
    for query in ({"delta": 1e-5}, {"epsilon": 1.0}, {"alpha": 0.1}, {"fpr": 0.1}):
        found, other = box.bounds(**query), BOX.bounds(**query)
        assert found.method == other.method == "renyi"
        assert float(found.upper) == pytest.approx(float(other.upper), rel=1e-9)
        assert float(found.lower) == pytest.approx(float(other.lower), rel=1e-9)


def test_calibration_of_rho():
    """The root is known: epsilon(rho) = 1 at delta = 1e-6, by bisection in mpmath."""
    target = targets.ApproxDP(epsilon=1.0, delta=DELTA)

    def log_delta(rho):
        slope = lambda s: rho * (1 + 2 * mp.e**s) - 1 - mp.log1p(mp.e**-s)
        s = mp.findroot(slope, (-5, 8), solver="anderson", tol=1e-30)
        return _log_delta_of(lambda t: rho * t, 1, [1 + mp.e**s])

    with mp.workdps(30):
        truth = mp.findroot(
            lambda rho: log_delta(rho) - mp.log(DELTA), (0.02, 0.03), solver="anderson"
        )
    found = fdp.calibrate(fdp.ZCDP(None), target, solve_for="rho")
    assert truth * (1 - mp.mpf("1e-9")) <= exact(found.value) <= truth
    assert found.mechanism.epsilon(delta=DELTA) <= 1 + 1e-11
    assert "rho = 0.0243" in found.guarantee
    open_noise = fdp.compose(fdp.ZCDP(0.01), fdp.Gaussian(None))
    noise = fdp.calibrate(open_noise, target, solve_for="noise_multiplier").value
    least = mp.sqrt(0.5 / (truth - mp.mpf("0.01")))
    assert least <= exact(noise) <= least * (1 + mp.mpf("1e-7"))
    solve = lambda e: (
        fdp.calibrate(
            fdp.ZCDP(None), targets.ApproxDP(epsilon=e, delta=DELTA), solve_for="rho"
        ).value
    )
    slope = jax.grad(lambda r: fdp.ZCDP(r).epsilon(delta=DELTA))(float(truth))
    np.testing.assert_allclose(jitted(jax.grad(solve))(1.0), 1 / slope, rtol=1e-7)
    mapped = jax.vmap(solve)(jnp.array([0.5, 1.0]))
    np.testing.assert_allclose(mapped[1], found.value, rtol=1e-12)


def test_refusals():
    target = targets.ApproxDP(epsilon=1.0, delta=DELTA)
    with pytest.raises(TypeError, match=r"calibrated to ApproxDP.*got MuGDP"):
        fdp.calibrate(fdp.ZCDP(None), targets.MuGDP(1.0), solve_for="rho")
    box = fdp.compose(fdp.ZCDP(None), fdp.Gaussian(1.0))
    with pytest.raises(fdp.UnreachableTarget, match="no rho"):
        fdp.calibrate(box, target, solve_for="rho")
    with pytest.raises(ValueError, match="rho of ZCDP is not set"):
        fdp.ZCDP(None).epsilon(delta=DELTA)
    with pytest.raises(ValueError, match="rho of ZCDP is not set"):
        fdp.compose(fdp.ZCDP(None), fdp.ZCDP(0.1))
    with pytest.raises(TypeError, match="every part of compose"):
        fdp.compose(fdp.ZCDP(0.1), 3.0)
