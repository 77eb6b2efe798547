"""The contour engine against truths of 17 and more digits, and its derivatives."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import contour_side, dpsgd_truth, exact, half_unit, tail_truth
from scipy import stats

import fdp_jax as fdp
from fdp_jax import Bound, engines

NAMES = "noise_multiplier", "sampling_prob", "num_steps"
BOUNDS = (Bound.OPTIMISTIC, Bound.ESTIMATE, Bound.PESSIMISTIC)


def _run(entry):
    return fdp.DPSGD(
        noise_multiplier=entry["sigma"], sampling_prob=entry["q"], num_steps=entry["N"]
    )


@functools.cache
def _answers(kind: str) -> dict:
    """(lower, estimate, upper, truth, uncertainty of the truth) by id."""
    found = {}
    for entry in dpsgd_truth(kind):
        side = contour_side(_run(entry), entry["direction"])
        truth, truncated = mp.mpf(entry["value"]), half_unit(entry)
        if kind == "delta":
            epsilon = float(entry["eps"])
            values = [side.log_delta(epsilon=epsilon, bound=b) for b in BOUNDS]
            truth, truncated = mp.log(truth), truncated / truth
        else:
            query = "delta" if kind == "eps" else "alpha"
            bounds = side.bounds(**{query: float(entry[query])})
            values = [bounds.lower, bounds.estimate, bounds.upper]
        found[entry["id"]] = (*map(exact, values), truth, truncated)
    return found


def _deep_enough(kind: str) -> dict:
    """The answers, but for the tails that nobody asks for."""
    entries = {x["id"]: x for x in dpsgd_truth(kind)}
    name = {"eps": "delta", "delta": "value"}.get(kind)
    depth = lambda x: mp.mpf(1) if name is None else mp.mpf(entries[x][name])
    return {x: one for x, one in _answers(kind).items() if depth(x) > 1e-40}


TOLERANCE = {"eps": 1e-9, "delta": 1e-9, "beta": 1e-8}
KINDS = pytest.mark.parametrize("kind", TOLERANCE)


@KINDS
def test_estimates_agree_with_truth(kind):
    off = {}
    for name, (_, estimate, _, truth, _) in _deep_enough(kind).items():
        # A difference of logarithms is a relative one.
        scale = 1 if kind == "delta" else abs(truth)
        if not abs(estimate - truth) <= TOLERANCE[kind] * scale:
            off[name] = estimate, truth
    assert not off


def test_cheap_bound_of_epsilon():
    signs = jnp.asarray([1.0, -1.0])
    bound = lambda m, delta: engines.largest_epsilon(m.loss(), signs, jnp.log(delta))
    truths = [e for e in dpsgd_truth("eps") if e["direction"] == "remove"]
    run = jitted(lambda d, *x: bound(fdp.DPSGD(**dict(zip(NAMES, x, strict=True))), d))
    for entry in truths:
        numbers = (float(entry[key]) for key in ("delta", "sigma", "q", "N"))
        found = run(*numbers)
        assert float(entry["value"]) <= found <= 1.5 * float(entry["value"]) + 0.1
    leaky = fdp.ApproxDP(epsilon=1.0, delta=1e-5)
    assert bound(leaky, 0.9e-5) == np.inf
    assert leaky.epsilon(delta=1.1e-5) <= bound(leaky, 1.1e-5) <= 1
    assert bound(fdp.Gaussian(1.0), 1.0) == 0


@KINDS
def test_brackets_contain_truth(kind):
    assert len(_answers(kind)) > 20
    off = {
        name: (lower, truth, upper)
        for name, (lower, _, upper, truth, truncated) in _answers(kind).items()
        if not lower - truncated <= truth <= upper + truncated
    }
    assert not off


@KINDS
def test_brackets_are_narrow(kind):
    wide = {}
    for name, (lower, _, upper, truth, _) in _deep_enough(kind).items():
        scale = 1 if kind == "delta" else abs(truth)
        if not upper - lower <= 1e-6 * scale:
            wide[name] = lower, upper
    assert not wide


def test_delta_contains_truth_unless_it_underflows():
    for entry in dpsgd_truth("delta"):
        side = contour_side(_run(entry), entry["direction"])
        bounds = side.bounds(epsilon=float(entry["eps"]))
        truth = mp.mpf(entry["value"])
        assert exact(bounds.upper) >= truth * (1 - mp.mpf("1e-20")), entry
        assert exact(bounds.lower) <= truth * (1 + mp.mpf("1e-20")), entry
        if truth > 1e-40:
            assert exact(bounds.upper - bounds.lower) <= 1e-6 * truth, entry


@pytest.mark.parametrize("entry", tail_truth(), ids=lambda e: e["delta"])
def test_tail_down_to_1e_300(entry):
    bounds = _run(entry).remove.bounds(delta=float(entry["delta"]))
    truth = mp.mpf(entry["epsilon"])
    assert exact(bounds.lower) <= truth <= exact(bounds.upper) <= 1.05 * truth
    if float(entry["delta"]) > 1e-200:
        assert abs(exact(bounds.estimate) - truth) <= 1e-9 * truth
        assert exact(bounds.upper - bounds.lower) <= 1e-6 * truth


def test_bounds_bracket_log_delta_where_delta_is_below_any_float():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
    bounds = [float(run.remove.log_delta(epsilon=150.0, bound=b)) for b in BOUNDS]
    assert bounds == sorted(bounds)
    assert bounds[2] < -1000


# ------------------------------------------------------------------------ derivatives


@functools.partial(jitted, static_argnames="direction")
def _value_and_gradient(sigma, q, steps, log_delta, direction):
    """epsilon and its derivatives in sigma, q, N and log delta."""

    def epsilon(sigma, q, steps, log_delta):
        run = fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=steps)
        # Records take part often in all of these.
        side = contour_side(run, direction).using("auto", split=False)
        return side.epsilon(delta=jnp.exp(log_delta), bound=Bound.ESTIMATE)

    return jax.value_and_grad(epsilon, argnums=(0, 1, 2, 3))(sigma, q, steps, log_delta)


def test_slopes_in_noise_agree_with_truth():
    for entry in dpsgd_truth("eps"):
        if float(entry["delta"]) < 1e-40:
            continue
        log_delta = float(mp.log(mp.mpf(entry["delta"])))
        _, slopes = _value_and_gradient(
            entry["sigma"], entry["q"], float(entry["N"]), log_delta, entry["direction"]
        )
        slope = float(entry["deps_dsigma"])
        assert float(slopes[0]) == pytest.approx(slope, rel=1e-8), entry["id"]


# Richardson differences of a contour integral in NumPy: epsilon, then its derivatives
# in sigma, q, N and log delta, with the digits that were printed.
SLOPES = [
    (
        (1.0, 0.01, 1000.0, "1e-5"),
        "1.8282366665",
        ("-3.82261015", "198.19407", "8.82872e-4", "-0.1320030"),
    ),
    (
        (1.0, 0.01, 10000.0, "1e-8"),
        "8.1851229678",
        ("-15.46913041", "915.25027", "4.40491e-4", "-0.2593130"),
    ),
    (
        (2.0, 0.01, 1500.0, "1e-6"),
        "0.8901485096",
        ("-0.55975978", "95.738937", "3.09984e-4", "-0.0488164"),
    ),
]


def _last_digit(text: str) -> float:
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals)


@pytest.mark.parametrize(("point", "value", "slopes"), SLOPES)
def test_gradient_agrees_with_differences_of_another_program(point, value, slopes):
    sigma, q, steps, delta = point
    log_delta = float(mp.log(mp.mpf(delta)))
    epsilon, found = _value_and_gradient(sigma, q, steps, log_delta, "remove")
    assert float(epsilon) == pytest.approx(float(value), abs=_last_digit(value))
    for slope, text in zip(found, slopes, strict=True):
        tolerance = max(1e-6 * abs(float(text)), _last_digit(text))
        assert float(slope) == pytest.approx(float(text), abs=tolerance)


# Of "add": the truths above are, but for those in noise, of "remove".
@pytest.mark.parametrize(
    "point",
    [
        (1.0, 0.01, 1000.0, -11.5),
        (3.0, 0.3, 77.5, -40.0),
    ],
)
@pytest.mark.parametrize("index", range(4), ids=["sigma", "q", "steps", "log_delta"])
def test_gradient_agrees_with_differences_of_the_value(point, index):
    point = np.asarray(point)
    _, slopes = _value_and_gradient(*point, "add")

    def difference(step):
        ends = []
        for sign in (1, -1):
            moved = point.copy()
            moved[index] *= 1 + sign * step
            ends.append(float(_value_and_gradient(*moved, "add")[0]))
        return (ends[0] - ends[1]) / (2 * step * point[index])

    # Richardson extrapolation of central differences.
    step = 1e-3
    expected = (4 * difference(step / 2) - difference(step)) / 3
    assert float(slopes[index]) == pytest.approx(expected, rel=1e-6)


def test_num_steps_may_be_fractional():
    # The analytic continuation in N, by a contour integral.
    run = fdp.DPSGD(noise_multiplier=2.0, sampling_prob=0.01, num_steps=1500.25)
    found = float(run.remove.epsilon(delta=1e-6, bound=Bound.ESTIMATE))
    assert found == pytest.approx(0.8902260027, abs=1e-10)


def test_fractional_steps_have_continuous_angles():
    # Trapezoid rules in numpy, 56,000 nodes and 30,000 frequencies with unwrapped
    # angles, agree to eleven digits on the contours c = 1.5 and c = 2.5.
    run = lambda n: fdp.DPSGD(
        noise_multiplier=0.72, sampling_prob=1371 / 60_000, num_steps=n
    )
    found = run(43.5).remove.bounds(epsilon=3.0)
    assert float(found.lower) <= 1.4754180260e-5 <= float(found.upper)
    assert int(found.status) == fdp.Status.TIGHT
    # Every power in one program, with the slope of the interpolation.
    ask = lambda n: _traced_epsilon(0.72, 1371 / 60_000, n, 1e-5)
    found = [ask(n) for n in (43.0, 43.5, 44.0)]
    low, middle, high = (float(bounds.estimate) for (_, bounds), _ in found)
    assert low < middle < high
    assert float(found[1][1][2]) == pytest.approx(high - low, rel=1e-2)


@jitted
@functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
def _traced_epsilon(noise, prob, steps, delta):
    """Epsilon with its slopes and bounds: one program for all tests of traced steps."""
    run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)
    found = run.bounds(delta=delta)
    return found.pick("pessimistic", upper_is_pessimistic=True), found


@pytest.mark.slow
def test_a_batch_with_and_without_single_steps():
    """Whether any is one decides what is evaluated, for all of them."""
    ask = lambda steps: fdp.DPSGD(
        noise_multiplier=1.0, sampling_prob=0.01, num_steps=steps
    ).using("auto", split=False)
    epsilon = lambda steps: ask(steps).epsilon(delta=1e-5)
    one, batch = jitted(epsilon), jitted(jax.vmap(epsilon))
    for steps in ([1.0, 1000.0, 0.5], [2.0, 1000.0, 1.5]):
        found = batch(jnp.asarray(steps))
        np.testing.assert_allclose(found, [one(x) for x in steps], rtol=1e-11)
        # Plain calls have one release more, of which parts of a step are no worse.
        for upper, number in zip(found, steps, strict=True):
            plain = ask(number).bounds(delta=1e-5)
            assert plain.lower <= upper
            assert plain.upper <= upper * (1 + 1e-11)


@pytest.mark.parametrize(
    ("noise", "prob", "steps", "delta"),
    [
        (1.046, 0.1358, 1.65, 1.6e-6),
        (0.543, 0.0221, 13.3, 7e-7),
        (2.0, 0.01, 0.4, 0.005),
    ],
)
def test_a_part_of_a_step_is_no_worse_than_the_whole(noise, prob, steps, delta):
    run = lambda n: fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=n)
    ends = [run(n).bounds(delta=delta) for n in (np.floor(steps), np.ceil(steps))]
    found = run(steps).bounds(delta=delta)
    assert ends[0].lower <= found.estimate <= found.upper <= ends[1].upper


def test_slope_where_every_record_takes_part():
    # Both directions leak the same there, but "remove" leaks more on the way.  Long
    # derivatives of what is not differentiated may overflow.
    def epsilon(x):
        run = fdp.DPSGD(noise_multiplier=3.0, sampling_prob=5 * x, num_steps=30)
        return run.epsilon(delta=1e-5, bound=Bound.ESTIMATE)

    value, slope = jax.jvp(epsilon, (0.2,), (1.0,))
    step = 1e-5
    left, farther = (float(epsilon(0.2 - k * step)) for k in (1, 2))
    expected = (3 * float(value) - 4 * left + farther) / (2 * step)
    assert float(slope) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_both_directions_are_the_worse_one():
    """Also where one of them is left out."""
    random = np.random.default_rng(3)

    @jitted
    def ask(s, q, n, epsilon):
        run = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n)
        sides = [side.using("contour") for side in (run, run.add, run.remove)]
        at = [side.bounds(epsilon=epsilon) for side in sides]
        return [jnp.stack([b.lower, b.estimate, b.upper]) for b in at]

    left_out = 0
    for _ in range(40):
        s, q = np.exp(random.uniform(-0.7, 2)), np.exp(random.uniform(-7, -0.1))
        n, epsilon = round(np.exp(random.uniform(1, 8))), random.choice([0, 0.1, 1, 4])
        both, add, remove = np.asarray(ask(s, q, n, epsilon))
        worse = np.maximum(add, remove)
        slack = 1e-13 + 2 * (worse[2] - worse[0])
        assert both[0] >= worse[0] - slack
        assert both[1] == pytest.approx(worse[1], abs=slack, rel=1e-13)
        assert both[2] <= worse[2] + slack
        left_out += min(add[2], remove[2]) < 1e-3 * worse[0]
    assert left_out > 10


@pytest.mark.parametrize(("jump", "rate"), [(1e-3, 2.5e5), (1e-3, 1e6), (0.1, 100.0)])
def test_more_jumps_than_the_atoms_hold(jump, rate):
    """Contour integrals leave no counts out, and so pay for none."""
    found = fdp.LevyTriplet(0.5, jumps=[jump], rates=[rate]).remove.bounds(epsilon=1.0)
    mean = rate * np.exp(jump)
    k = np.arange(max(0, mean - 40 * np.sqrt(mean)), mean + 40 * np.sqrt(mean) + 99)
    k = np.floor(k)
    # Given k jumps the loss is normal, with the Gaussian's own profile.
    rest = 1.0 - k * jump + rate * np.expm1(jump)
    s = np.sqrt(0.5)
    own = stats.norm.cdf(s / 2 - rest / s) - np.exp(
        rest + stats.norm.logcdf(-s / 2 - rest / s)
    )
    truth = np.sum(stats.poisson.pmf(k, mean) * own)
    np.testing.assert_allclose([found.lower, found.upper], truth, rtol=1e-8)


@pytest.mark.parametrize(
    "query", ["delta", pytest.param("epsilon", marks=pytest.mark.slow)]
)
def test_parts_of_a_step_are_no_worse_than_the_next_whole_number(query):
    """Inside of a program too, and with numbers in every estimate."""

    @jitted
    def ask(noise, prob, steps, value):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)
        return run.bounds(**{query: value})

    # Rare participation, then less than one step; with about matching thresholds.
    for noise, prob, steps, delta, epsilon in (
        (0.58, 3.1e-3, 10.1, 1e-6, 2.0),
        (8.9, 2.4e-4, 0.7, 3.5e-77, 1.53e-3),
        (4.1, 0.2, 0.85, 1e-9, 0.3),
    ):
        value = {"delta": delta, "epsilon": epsilon}[query]
        ends = steps, float(math.ceil(steps))
        found, whole = (ask(noise, prob, n, value) for n in ends)
        assert int(whole.status) == fdp.Status.TIGHT
        assert float(found.upper) <= float(whole.upper) * (1 + 1e-7)
        assert found.lower <= found.estimate <= found.upper


@pytest.mark.parametrize("asked", [{"delta": 1e-5}, {"alpha": 0.0079}])
def test_parts_of_rare_steps_are_between_whole_numbers(asked):
    """The error rates, too, of which those of more steps are the smaller ones."""
    found, fewer, more = (
        fdp.DPSGD(
            noise_multiplier=0.458, sampling_prob=1.86e-4, num_steps=n
        ).add.bounds(**asked)
        for n in (16.1, 16, 17)
    )
    low, high = (fewer, more) if "delta" in asked else (more, fewer)
    assert int(low.status) == int(high.status) == fdp.Status.TIGHT
    size = 1e-7 * abs(high.upper)
    assert low.lower - size <= found.lower <= found.upper <= high.upper + size


@pytest.mark.parametrize(
    ("noise", "size", "epsilon"),
    [(3.0, 0.4, 0.5), (50.0, 3.0, 2.9), (0.5, 8.0, -4.0), (2.0, 1e-3, 1.2)],
)
def test_a_choice_beside_noise(noise, size, epsilon):
    # delta(eps) is the mean under Q of that of the noise at eps - Y, Y the choice's.
    both = fdp.compose(fdp.Gaussian(noise), fdp.Logistic(1 / size))
    mu, size = 1 / mp.mpf(noise), 1 / mp.mpf(1 / size)
    density = lambda y: mp.exp((y - size) / 2) / (2 * -mp.expm1(-size))

    def of_noise(gap):
        far = gap / mu
        return mp.ncdf(mu / 2 - far) - mp.exp(gap) * mp.ncdf(-mu / 2 - far)

    ends = sorted({-size, size, *(y for y in (epsilon - 9 * mu, epsilon + 9 * mu))})
    ends = [y for y in ends if abs(y) <= size]
    truth: Any = mp.quad(lambda y: density(y) * of_noise(epsilon - y), ends)
    assert engines.route(both.loss()) == "contour"
    bounds = both.bounds(epsilon=epsilon)
    assert exact(bounds.lower) <= truth <= exact(bounds.upper)
    assert exact(bounds.upper) - exact(bounds.lower) < 1e-9 * truth
