"""Divergences of convex functions against closed forms."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import fdp_jax as fdp
from fdp_jax import divergences, tradeoff


def _kl(t):
    return t * jnp.log(t)


def _reverse_kl(t):
    return -jnp.log(t)


def _chi_squared(t):
    return (t - 1) ** 2


def _hellinger(t):
    return 1 - jnp.sqrt(t)


def _total_variation(t):
    return 0.5 * jnp.abs(t - 1)


def _two_kinks(t):
    return jnp.maximum(t - 2, 0) + jnp.maximum(0.5 - t, 0)


PHIS = _kl, _reverse_kl, _chi_squared, _hellinger, _total_variation


def _binary(p, q):
    """The five divergences of two probability vectors."""
    p, q = np.array(p), np.array(q)
    ratio = q / p
    return [
        float(np.sum(q * np.log(ratio))),
        float(-np.sum(p * np.log(ratio))),
        float(np.sum(p * (ratio - 1) ** 2)),
        float(1 - np.sum(np.sqrt(p * q))),
        float(np.sum(np.abs(p - q)) / 2),
    ]


def _gaussian(mu):
    half = mu * mu / 2
    advantage = 1 - 2 * norm.cdf(-mu / 2)
    return [half, half, math.expm1(mu * mu), -math.expm1(-mu * mu / 8), advantage]


def _laplace(mu):
    """Two Laplace densities of scale 1 at the distance mu."""
    kl = mu + math.expm1(-mu)
    chi = 2 / 3 * math.exp(mu) + math.exp(-2 * mu) / 3 - 1
    hellinger = 1 - (1 + mu / 2) * math.exp(-mu / 2)
    return [kl, kl, chi, hellinger, -math.expm1(-mu / 2)]


@pytest.mark.parametrize("mu", [1.0, 6.0])
def test_closed_forms(mu):
    keep = 1 / (1 + math.exp(-mu))
    # Each of a mechanism and a function is a program: all functions, of one mechanism.
    for mechanism, truths, asked in (
        (fdp.Gaussian(1 / mu), _gaussian(mu), range(len(PHIS))),
        (fdp.Laplace(1 / mu), _laplace(mu), (2, 4)),
        (fdp.RandomizedResponse(mu), _binary([keep, 1 - keep], [1 - keep, keep]), (3,)),
    ):
        for at in asked:
            found = divergences.f_divergence(mechanism, PHIS[at])
            np.testing.assert_allclose(found, truths[at], rtol=1e-9)


def test_directions_and_infinite_losses():
    p, q = [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]
    pair = fdp.FromProbabilities(p, q)
    there, back = _binary(p, q), _binary(q, p)
    for at, phi in enumerate((_kl, _reverse_kl, _chi_squared)):
        for view, truth in ((pair.remove, there[at]), (pair.add, back[at])):
            found = divergences.f_divergence(view, phi)
            np.testing.assert_allclose(found, truth, rtol=1e-9)
    both = divergences.f_divergence(pair, _chi_squared)
    np.testing.assert_allclose(both, max(there[2], back[2]), rtol=1e-9)
    # Outputs that only one of the two has.
    lost = fdp.FromProbabilities([0.5, 0.3, 0.2], [0.4, 0.6, 0.0]).remove
    assert float(divergences.f_divergence(lost, _reverse_kl)) == math.inf
    assert float(divergences.f_divergence(lost.mechanism.add, _kl)) == math.inf
    truth = 0.4 * math.log(0.8) + 0.6 * math.log(2)
    np.testing.assert_allclose(divergences.f_divergence(lost, _kl), truth, rtol=1e-9)
    truth = 1 - math.sqrt(0.2) - math.sqrt(0.18)
    found = divergences.f_divergence(lost, _hellinger)
    np.testing.assert_allclose(found, truth, rtol=1e-9)


def test_named_kinks():
    p, q = [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]
    pair = fdp.FromProbabilities(p, q).remove
    found = divergences.f_divergence(pair, _two_kinks, kinks=[0.5, 2.0])
    truth = 0.2 * (3 - 2) + 0.5 * (0.5 - 0.2)
    np.testing.assert_allclose(found, truth, rtol=1e-12)
    with pytest.raises(ValueError, match="kinks must name every"):
        divergences.f_divergence(pair, _two_kinks)
    with pytest.raises(ValueError, match="phi must be convex"):
        divergences.f_divergence(pair, jnp.sqrt)
    with pytest.raises(ValueError, match="kinks must be"):
        divergences.f_divergence(pair, _kl, kinks=[-1.0])
    text: Any = "kl"
    with pytest.raises(TypeError, match="phi must be a function"):
        divergences.f_divergence(pair, text)


def test_tradeoff_functions_and_gradients():
    found = divergences.f_divergence(tradeoff.Gaussian(1.0), _chi_squared)
    np.testing.assert_allclose(found, math.expm1(1.0), rtol=1e-9)
    slope = jax.grad(lambda s: divergences.f_divergence(fdp.Gaussian(s), _chi_squared))
    np.testing.assert_allclose(slope(2.0), -2 * 2.0**-3 * math.exp(0.25), rtol=1e-8)


@pytest.mark.parametrize(
    ("noise", "power"), [(0.1732, 5), (0.15275, 4), (0.1291, 3), (0.2, 5), (0.1, 2)]
)
def test_powers_whose_losses_are_far(noise, power):
    # E_P (dQ/dP)^k = e^(k (k - 1) mu^2 / 2): losses around (k - 1/2) mu^2, up to 150.
    want = math.expm1(0.5 * power * (power - 1) / noise**2)
    found = divergences.f_divergence(fdp.Gaussian(noise), lambda t: t**power)
    np.testing.assert_allclose(found, want, rtol=1e-11)


@pytest.mark.parametrize(
    "mechanism",
    [fdp.ApproxDP(epsilon=1.0, delta=1e-5), fdp.RandomizedResponse(300.0)],
)
def test_overflow_is_infinite(mechanism):
    assert np.isposinf(divergences.f_divergence(mechanism, lambda t: t**-2.0))
