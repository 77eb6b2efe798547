"""Ratios of normal mixtures against integrals with 30 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from fdp_jax.losses import (
    LOST,
    NormalMixtures,
    bend,
    densities,
    envelope,
    law_error,
    rough_logs,
    rule,
    rule_error,
)

_COUNT = 512
_UNIT = 2.0**-53
# Noise, centers, weights without and with the record.
PAIRS = {
    "rare": (1.0, [0, 1], [1, 0], [1 - 1e-9, 1e-9]),
    "subsampled": (0.6, [0, 1], [1, 0], [0.99, 0.01]),
    "mostly there": (0.8, [0, 1], [1, 0], [0.3, 0.7]),
    "plain": (2.0, [0, 1], [1, 0], [0, 1]),
    "replaced": (1.0, [-1, 0, 1], [0.01, 0.99, 0], [0, 0.99, 0.01]),
    "group": (
        1.0,
        [0, 1, 2, 3],
        [1, 0, 0, 0],
        [0.857375, 0.135375, 0.007125, 0.000125],
    ),
    "mixture": (0.8, [0, 0.3, 0.7, 1], [1, 0, 0, 0], [0.4, 0.3, 0.2, 0.1]),
    "hidden": (20.0, [0, 1], [1, 0], [0.999, 0.001]),
}
_POINTS = [(0.5, 0.0), (0.5, 3.0), (0.5, 40.0), (19.0, 0.0), (19.0, 5.0), (-0.4, 2.0)]


def _pair(name, sign):
    noise, centers, p, q = (np.asarray(x, float) for x in PAIRS[name])
    pair = NormalMixtures(jnp.asarray(centers / noise), jnp.asarray([p, q]))
    return pair.directed(jnp.asarray(sign))


def _exact(pair):
    """Both log densities with many digits; the heaviest weight is what others leave."""
    centers = [mp.mpf(float(d)) for d in pair.centers]
    laws = []
    for weights in np.asarray(pair.weights):
        exact = [mp.mpf(float(w)) for w in weights]
        heavy = int(np.argmax(weights))
        exact[heavy] = 1 - sum(exact) + exact[heavy]
        laws.append(exact)

    def logs(t):
        terms = [mp.exp(d * t - d * d / 2) for d in centers]
        return [
            mp.log(sum(w * x for w, x in zip(law, terms, strict=True))) for law in laws
        ]

    return logs


@jax.jit
def _sums(pair, shift, frequency):
    """M(c + iy) / M(c), log M(c), the error bound over M(c), the envelope of M."""
    frame = pair.frame()
    low, step = rule(frame, shift, _COUNT)
    t = low + step * np.arange(float(_COUNT))
    logs, shares, _ = densities(frame, t)
    g = (1 + shift) * logs[1] - shift * logs[0] - 0.5 * t * t
    p = jnp.exp(g - jnp.max(g))
    turn = frequency * (logs[1] - logs[0])
    value = jnp.stack([p @ jnp.cos(turn), p @ jnp.sin(turn)]) / jnp.sum(p)
    log_m = jnp.max(g) + jnp.log(jnp.sum(p) * step / np.sqrt(2 * np.pi))
    error = rule_error(frame, shift, step, frequency)
    error = error + rule_error(frame, shift, step, 0.0) + 2 * LOST * bend(frame, shift)
    moduli, angles, extra = envelope(frame, shift, step, shares, jnp.asarray(200.0))
    most = p @ jnp.exp(moduli - frequency * angles) / jnp.sum(p) + extra
    return value, log_m, error, most, law_error(step), (low, step)


@jax.jit
def _logs(pair, t):
    frame = pair.frame()
    return densities(frame, t), rough_logs(frame, t[None])[:, 0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", PAIRS)
def test_log_densities_are_as_good_as_they_say(name, sign):
    pair = _pair(name, sign)
    t = np.array([-40.0, -9.0, -3.0, -0.5, 0.0, 0.7, 2.5, 11.0, 60.0, 900.0])
    found, rough = _logs(pair, jnp.asarray(t))
    with mp.workdps(50):
        logs = _exact(pair)
        for i, x in enumerate(t):
            for law, exact in enumerate(logs(mp.mpf(x))):
                off = abs(float(mp.mpf(float(found.logs[law, i])) - exact))
                assert off <= _UNIT * float(found.slips[law, i]) + 1e-300
                # The loss of a rare record keeps its digits.
                assert off <= 1e-13 * max(abs(float(exact)), 1e-300) * (1 + abs(x))
                size = 1 + abs(float(exact)) + x * x
                assert abs(float(rough[law, i]) - float(exact)) < 1e-14 * size


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", PAIRS)
def test_sums_over_nodes_are_integrals_within_their_error(name, sign):
    pair = _pair(name, sign)
    tight = 0
    with mp.workdps(30):
        logs = _exact(pair)
        for shift, frequency in _POINTS:
            found = _sums(pair, shift, frequency)
            value, log_m, error, most, flat, (low, step) = found
            c, y = mp.mpf(shift), mp.mpf(frequency)

            def integrand(t, y):
                log_p, log_q = logs(t)
                z = mp.mpc(c, y)
                return mp.exp((1 + z) * log_q - z * log_p - t * t / 2)

            ends = float(low) - 3, float(low + 511 * step) + 3
            cuts = mp.linspace(*ends, 2 + int(ends[1] - ends[0]))
            norm = mp.sqrt(2 * mp.pi)
            real = mp.quad(lambda t: integrand(t, 0).real, cuts) / norm
            whole = mp.quad(lambda t: integrand(t, y), cuts) / norm / real
            off = abs(mp.mpc(*map(float, value)) - whole)
            rounding = 1e-13 * (1 + frequency)
            assert off <= float(error) * 1.01 + rounding
            assert abs(float(log_m) - float(mp.log(real))) <= float(error) + 1e-12
            assert abs(whole) <= float(most) * (1 + 1e-12)
            assert flat < 1e-15
            tight += float(error) < 1e-9
    assert tight >= 4


def test_components_of_next_to_no_weight_are_left_out_and_counted():
    weights = jnp.asarray([[1.0, 0.0, 0.0], [1 - 1e-3, 1e-3, 1e-250]])
    pair = NormalMixtures(jnp.arange(3.0), weights)
    assert float(pair.log_lost()) >= np.log(1e-250)
    frame = pair.frame()
    assert float(frame.high[1]) == 1.0
    assert float(_pair("group", 1.0).log_lost()) == -np.inf
