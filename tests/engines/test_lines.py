"""Lines of the contour engine against closed forms and numbers with 30 digits.

All share three programs: a stack of two terms in one direction, of which one may add
nothing.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted

from fdp_jax.engines._line_mesh import (
    RIGHT,
    SHIFTS,
    UNIT,
    capped,
    chernoff_mesh,
    prepared,
)
from fdp_jax.engines._line_queries import line_at, see, solve
from fdp_jax.engines._line_slopes import log_value
from fdp_jax.engines._lines import line_of
from fdp_jax.losses import (
    ComposedLoss,
    Method,
    SubsampledGaussianLoss,
    kept_slip,
    log_kept,
)
from fdp_jax.losses._normal_mixtures import RATE

_DATA = pathlib.Path(__file__).parent.parent / "data" / "dpsgd_truth.json"
_TRUTHS = [
    x for x in json.loads(_DATA.read_text())["entries"] if x["kind"] in ("eps", "delta")
]


def _loss(noises, rates, counts):
    steps = tuple(map(SubsampledGaussianLoss, noises, rates))
    method = Method("contour", split=False)  # the smaller program
    return ComposedLoss(steps, tuple(counts), method=method)


@jitted
def _profile(numbers, sign, epsilon):
    stack = prepared(_loss(*numbers), sign)
    line = line_at(stack, epsilon)
    found = see(line, jnp.stack([epsilon, epsilon + 0.1 / (1 + jnp.abs(line.shift))]))
    return found, line.shift, chernoff_mesh(stack).upper


@jitted
def _epsilon(numbers, sign, log_delta, slack):
    stack = capped(prepared(_loss(*numbers), sign), log_delta)
    line = line_of(stack, log_delta, inverse=True)
    return solve(line, log_delta, slack)


@jitted
def _slopes(numbers, sign, epsilon):
    known = jax.lax.stop_gradient(numbers)
    line = line_at(prepared(_loss(*known), sign), epsilon)

    def value(numbers, epsilon):
        return log_value(_loss(*numbers), epsilon[None], line)[0]

    return jax.grad(value, (0, 1))(numbers, epsilon), line.shift


def _run(noise, rate, count, other=(1.0, 0.5, 0.0)):
    rows = zip((noise, rate, count), other, strict=True)
    return tuple(jnp.asarray(row, float) for row in rows)


def _gaussian(mu, epsilon):
    """Delta and 1 - delta of a Gaussian."""
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    one = mp.ncdf(mu / 2 - epsilon / mu)
    other = mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
    return one - other, mp.ncdf(-mu / 2 + epsilon / mu) + other


def test_brackets_hold_the_truth_and_are_tight_where_many_take_part():
    tight = 0
    for x in _TRUTHS:
        sign = 1.0 if x["direction"] == "remove" else -1.0
        numbers, truth = _run(x["sigma"], x["q"], x["N"]), mp.mpf(x["value"])
        if x["kind"] == "eps":
            log_delta = float(mp.log(mp.mpf(x["delta"])))
            found = _epsilon(numbers, sign, log_delta, jnp.zeros(2))
            lower, estimate, upper = map(float, jax.tree.leaves(found))
            width = (upper - lower) / upper
        else:
            seen, shift, _ = _profile(numbers, sign, float(x["eps"]))
            lower, upper = float(seen.log_lower[0]), float(seen.log_upper[0])
            estimate, width = float(seen.log_value[0]), upper - lower
            truth = mp.log(truth if shift > 0 else 1 - truth)
        assert lower <= truth <= upper, x["id"]
        assert lower <= estimate <= upper or not width < 1e-6
        tight += width < 1e-9
    assert tight >= 67


# Noise, count and threshold: of delta and of 1 - delta.
_GAUSSIANS = [(2.0, 3.0, 0.5), (0.3, 2.0, 30.0), (0.1, 1.0, 20.0), (1e6, 480.0, 1e-4)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("noise", "count", "epsilon"), [*_GAUSSIANS, (1.7, 60.5, 9.0)])
def test_gaussians_with_all_their_powers(noise, count, epsilon, sign):
    with mp.workdps(60):
        exact = _gaussian(mp.sqrt(mp.mpf(count)) / noise, epsilon)
        logs = [float(mp.log(x)) for x in exact]
    numbers = _run(noise, 1.0, count)
    seen, shift, uppers = _profile(numbers, sign, epsilon)
    truth = logs[0] if shift > 0 else logs[1]
    # The less of both is known in all its digits.
    assert truth == min(logs) or min(logs) > -1.5
    assert seen.log_lower[0] <= truth <= seen.log_upper[0]
    assert seen.log_upper[0] - seen.log_lower[0] < 1e-9
    np.testing.assert_allclose(seen.log_value[0], truth, atol=1e-10)
    # The mesh: M(c) = exp(c (1 + c) / (2 s^2)).
    powers = count * SHIFTS * (1 + SHIFTS) / (2 * noise**2)
    assert np.all(uppers >= powers - 1e-12 * np.abs(powers))
    few = (RIGHT) & (SHIFTS < 20)
    np.testing.assert_allclose(uppers[few], powers[few], rtol=1e-3, atol=1e-3)


@jitted
def _kept(numbers, log_value, places):
    stack = capped(prepared(_loss(*numbers), jnp.ones(())), log_value)
    frame = jax.tree.map(lambda x: x[0], stack.frames)
    t = frame.top + places
    return frame.top, frame.cut, t, log_kept(frame, t), kept_slip(frame, t)


def test_what_a_cap_keeps_is_known_up_to_its_rounding():
    noise, rate, places = 2.0, 0.1, np.linspace(-6, 17, 200)
    top, cut, t, logs, units = map(
        np.asarray, _kept(_run(noise, rate, 3.0), -20.0, places)
    )
    with mp.workdps(40):
        exact = [
            mp.log(mp.ncdf(RATE * (mp.mpf(float(top)) - mp.mpf(float(x))))) for x in t
        ]
        errors = [
            float(abs(x - mp.mpf(float(y)))) for x, y in zip(exact, logs, strict=True)
        ]
        # And the laws lose no more of their mass than is said.
        width = mp.sqrt(1 + mp.mpf(RATE) ** -2)
        lost = [mp.ncdf((x - mp.mpf(float(top))) / width) for x in (0, 1 / noise)]
        assert 0 < (1 - rate) * lost[0] + rate * lost[1] < float(cut)
    assert np.all(np.array(errors) <= UNIT * units)


def test_terms_add_and_slack_is_allowed_for():
    numbers = _run(2.0, 1.0, 3.0, (5.0, 1.0, 2.0))
    mu = np.sqrt(3 / 4 + 2 / 25)
    with mp.workdps(40):
        delta = _gaussian(mu, 2.0)[0]
        log_delta = float(mp.log(delta))
    for sign in (1.0, -1.0):
        found = _epsilon(numbers, sign, log_delta, jnp.zeros(2))
        assert found.lower <= 2 <= found.upper
        assert found.upper - found.lower < 1e-9
        looser = _epsilon(numbers, sign, log_delta, jnp.asarray([1e-4, 2e-4]))
        with mp.workdps(40):
            for end, slack in ((looser.lower, 1e-4), (looser.upper, -2e-4)):
                moved = float(mp.log(_gaussian(mu, float(end))[0])) - log_delta
                assert 0 <= (moved - slack) * np.sign(slack) < 1.1e-6


@pytest.mark.parametrize(("epsilon", "noise"), [(1.0, 2.0), (9.0, 0.25)])
def test_slopes_are_those_of_the_closed_form(epsilon, noise):
    numbers = _run(noise, 1.0, 3.0, (5.0, 1.0, 2.0))
    (slopes, by_epsilon), shift = _slopes(numbers, 1.0, epsilon)
    part = 0 if shift > 0 else 1

    def value(s, n, t, m, e):
        return mp.log(_gaussian(mp.sqrt(n / s**2 + m / t**2), e)[part])

    with mp.workdps(40):
        at = [mp.mpf(x) for x in (noise, 3, 5, 2, epsilon)]
        exact = [
            float(mp.diff(value, at, tuple(int(i == j) for j in range(5))))
            for i in range(5)
        ]
    found = [slopes[0][0], slopes[2][0], slopes[0][1], slopes[2][1], by_epsilon]
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    # In the rate, at its end: the other law is one of no weight.
    assert np.all(np.isfinite(slopes[1]))
