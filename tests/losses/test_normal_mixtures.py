"""Ratios of normal mixtures against integrals with 30 digits."""

import itertools
import math

import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from scipy.special import log_ndtr

from fdp_jax.losses import (
    LOST,
    NormalMixtures,
    bend,
    densities,
    envelope,
    law_error,
    log_kept,
    rule_error,
    turned_error,
)
from fdp_jax.losses._normal_mixtures import RATE, rough_logs
from fdp_jax.losses._normal_rules import late_start, rule

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
_CAPS = [-np.inf, -30.0]
"""Log of what a cap leaves out of a release."""


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


@jitted
def _sums(pair, shift, frequency, log_cut):
    """M(c + iy) / M(c), log M(c), the error bound over M(c), the envelope of M."""
    frame = pair.frame().capped(log_cut)
    low, step = rule(frame, shift, _COUNT)
    t = low + step * np.arange(float(_COUNT))
    logs, shares, _ = densities(frame, t)
    kept = log_kept(frame, t)
    g = (1 + shift) * logs[1] - shift * logs[0] - 0.5 * t * t + kept
    p = jnp.exp(g - jnp.max(g))
    turn = frequency * (logs[1] - logs[0])
    value = jnp.stack([p @ jnp.cos(turn), p @ jnp.sin(turn)]) / jnp.sum(p)
    log_m = jnp.max(g) + jnp.log(jnp.sum(p) * step / np.sqrt(2 * np.pi))
    strip = rule_error(frame, shift, step, 0.0) + 2 * LOST * bend(frame, shift)
    error = rule_error(frame, shift, step, frequency) + strip
    share = p / jnp.sum(p)
    turned = turned_error(frame, shift, t, share, shares, frequency[None])[0] + strip
    count, lost = jnp.asarray(200.0), -jnp.expm1(kept)
    moduli, angles, extra = envelope(frame, shift, step, shares, lost, count)
    most = share @ jnp.exp(moduli - frequency * angles) + extra
    errors = jnp.stack([error, turned])
    return value, log_m, errors, most, law_error(frame, step), (low, step, frame.top)


@jitted
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


_GAUSS = np.polynomial.legendre.leggauss(40)


def _integral(pair, shift, frequency, ends, top):
    """Log M(c) and M(c + iy) / M(c), by Gauss rules on panels, with more digits."""
    edges = np.arange(np.floor(ends[0]) - 3, ends[1] + 4, 0.25).astype(np.longdouble)
    x, w = (part.astype(np.longdouble) for part in _GAUSS)
    t = (edges[:-1, None] + 0.125 * (1 + x)).ravel()
    w = np.tile(0.125 * w, edges.size - 1)
    d = np.asarray(pair.centers).astype(np.longdouble)[:, None]
    powers = d * t - d * d / 2
    with np.errstate(divide="ignore"):
        weights = np.asarray(pair.weights).astype(np.longdouble)
        tops = [np.where(x[:, None] > 0, powers, -np.inf).max(axis=0) for x in weights]
        log_p, log_q = (
            top + np.log(x @ np.exp(powers - top))
            for x, top in zip(weights, tops, strict=True)
        )
    g = (1 + shift) * log_q - shift * log_p - t * t / 2
    g = g + log_ndtr((RATE * (top - t)).astype(float))
    p = w * np.exp(g - g.max())
    turn = np.longdouble(frequency) * (log_q - log_p)
    log_m = g.max() + np.log(p.sum() / np.sqrt(2 * np.longdouble(np.pi)))
    parts = [p @ np.cos(turn) / p.sum(), p @ np.sin(turn) / p.sum()]
    return float(log_m), np.array(parts, float)


@pytest.mark.parametrize("log_cut", _CAPS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", PAIRS)
def test_sums_over_nodes_are_integrals_within_their_error(name, sign, log_cut):
    pair, tight = _pair(name, sign), 0
    for shift, frequency in _POINTS:
        found = _sums(pair, shift, frequency, log_cut)
        value, log_m, errors, most, flat, (low, step, top) = found
        ends = float(low), float(low + (_COUNT - 1) * step)
        exact, parts = _integral(pair, shift, frequency, ends, float(top))
        off = np.hypot(*(np.asarray(value) - parts))
        assert np.all(off <= 1.01 * errors + 1e-13 * (1 + frequency))
        assert abs(log_m - exact) <= errors[0] + 1e-12
        assert np.hypot(*parts) <= most * (1 + 1e-12)
        assert flat < 1e-15
        tight += np.min(errors) < 1e-9
    assert tight >= 4


@pytest.mark.parametrize(("sign", "log_cut"), [(1.0, -30.0), (-1, -30), (-1, -np.inf)])
def test_losses_that_turn_slowly_have_small_errors(sign, log_cut):
    """At frequencies of which the fastest losses are not resolved by the nodes.

    Without a cap the tilted law of the direction "remove" consists of these.
    """
    weights = jnp.asarray([[1, 0], [1 - 3e-5, 3e-5]])
    pair = NormalMixtures(jnp.asarray([0, 0.25]), weights).directed(jnp.asarray(sign))
    found = _sums(pair, 1300.0, 3000.0, log_cut)
    value, _, (resolved, turned), most, _, (low, step, top) = found
    assert np.isinf(resolved)
    ends = float(low), float(low + (_COUNT - 1) * step)
    _, parts = _integral(pair, 1300.0, 3000.0, ends, float(top))
    assert np.hypot(*(np.asarray(value) - parts)) <= turned + 1e-12
    assert np.hypot(*parts) <= most
    assert turned < 1e-6


def test_components_of_next_to_no_weight_are_left_out_and_counted():
    weights = jnp.asarray([[1.0, 0.0, 0.0], [1 - 1e-3, 1e-3, 1e-250]])
    pair = NormalMixtures(jnp.arange(3.0), weights)
    assert float(pair.log_lost()) >= np.log(1e-250)
    frame = pair.frame()
    assert float(frame.high[1]) == 1.0
    assert float(_pair("group", 1.0).log_lost()) == -np.inf


@jitted
def _window(pair, shift, log_cut):
    frame = pair.frame().capped(log_cut)
    low, length = rule(frame, shift, 2)
    ends = jnp.maximum(low, late_start(frame, shift)), low + length
    return jnp.stack([low, *ends]), frame.top, frame.curved


@pytest.mark.parametrize("log_cut", [-np.inf, -60.0, -181.0])
@pytest.mark.parametrize("name", ["rare", "subsampled", "replaced", "hidden"])
def test_windows_leave_next_to_nothing_out(name, log_cut):
    """Of the tilted law, by a fine sum; orders up to 10^4 end early and begin late."""
    for sign, shift in itertools.product(
        (1.0, -1.0), (-0.4, 0.7, 2.4, 30.0, 300.0, 1e4)
    ):
        pair = _pair(name, sign)
        (low, start, end), top, curved = _window(pair, shift, log_cut)
        widest = float(np.max(np.abs(pair.centers)))
        reach = 40 + max(abs(low), abs(end), 2 * (1 + abs(shift)) * widest)
        around = np.concatenate(
            [x + np.linspace(-40, 40, 20_001) for x in (low, start, end, 0)]
        )
        t = np.unique(np.concatenate([np.linspace(-reach, reach, 200_001), around]))
        with np.errstate(divide="ignore"):
            weights = np.log(np.asarray(pair.weights))[..., None]
        d = np.asarray(pair.centers)[:, None]
        log_p, log_q = np.logaddexp.reduce(weights + d * (t - d / 2), axis=1)
        g = (1 + shift) * log_q - shift * log_p - t * t / 2
        g = g + (log_ndtr(RATE * (top - t)) if curved > 0 else 0)
        masses = np.logaddexp(g[1:], g[:-1]) + np.log(np.diff(t) / 2)
        outside = (t[1:] <= start) | (t[:-1] >= end)
        lost = np.logaddexp.reduce(masses[outside]) - np.logaddexp.reduce(masses)
        assert lost < np.log(LOST)
        if name == "subsampled" and curved == 0:
            assert end - start < 60


@jitted
def _strip(pair, shift, step, frequency, log_cut):
    frame = pair.frame().capped(log_cut)
    return rule_error(frame, shift, step, frequency), frame.top


@pytest.mark.parametrize(
    ("noise", "prob", "shift", "step", "frequency", "log_cut"),
    [
        (3.38, 0.453, 25165.0, 0.5447, 0.0, -32.3),
        (4.46, 0.0855, 67232.0, 0.4235, 0.8, -33.1),
        (3.22, 0.205, 57777.0, 0.7637, 0.0, -2.2),
        (4.78, 0.156, 18804.0, 0.3938, 0.0, -57.5),
        (3.38, 0.453, 25165.0, 0.5447, 0.0, -np.inf),
        (1.0, 0.01, 3000.0, 0.6, 5.0, -np.inf),
    ],
)
def test_rules_of_large_orders_are_as_good_as_they_say(
    noise, prob, shift, step, frequency, log_cut
):
    """Of the exchanged pair, by rules at several offsets and a fine one."""
    pair = NormalMixtures(
        jnp.asarray([0, -1 / noise]), jnp.asarray([[1 - prob, prob], [1, 0]])
    )
    bound, top = _strip(pair, shift, step, frequency, log_cut)

    def integral(step, offset, y):
        t = (np.arange(-60 / step, 60 / step) + offset) * step
        powers = np.log(prob) - t / noise - 0.5 / noise**2
        log_p = np.logaddexp(np.log1p(-prob), powers)
        # The peak is close to where all is of the first component.
        g = -shift * (log_p - math.log1p(-prob)) - t * t / 2
        g = g + (log_ndtr(RATE * (float(top) - t)) if np.isfinite(log_cut) else 0)
        return step * np.sum(np.exp(g - 1j * y * log_p))

    truth, size = (integral(0.002, 0.0, y) for y in (frequency, 0.0))
    for offset in np.linspace(0, 1, 8, endpoint=False):
        found = integral(step, offset, frequency)
        assert abs(found - truth) <= (bound + 1e-9) * abs(size)
