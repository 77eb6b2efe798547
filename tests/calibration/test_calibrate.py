"""Calibration: solutions meet the target just so, and are differentiable."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted
from reference import checks
from scipy import stats

import fdp_jax as fdp
from fdp_jax import Status
from fdp_jax.calibration import _solved
from fdp_jax.calibration._search import solve
from fdp_jax.calibration._targets import Margin
from fdp_jax.calibration.unknowns import find_unknown
from fdp_jax.engines import Interval

VALUES = {"noise_multiplier": 1.0, "sampling_prob": 0.01, "num_steps": 1000.0}
LEAKS = {"noise_multiplier": -1, "sampling_prob": 1, "num_steps": 1}
APPROX_DP = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-5)


def _open(name):
    return fdp.DPSGD(**{k: v for k, v in VALUES.items() if k != name})


def _meets(run) -> bool:
    """Whether the certified guarantee meets the target, by the public query."""
    return bool(run.epsilon(delta=APPROX_DP.delta) <= APPROX_DP.epsilon)


@functools.cache
def _calibrated(name):
    return fdp.calibrate(_open(name), APPROX_DP, solve_for=name)


# Other targets: test_targets.py.
@pytest.mark.parametrize("name", LEAKS)
def test_solution_just_meets_the_target(name):
    found = _calibrated(name)
    assert int(found.status) == Status.TIGHT
    assert getattr(found.mechanism, name) == found.value
    assert _meets(found.mechanism)
    risky = float(found.value) * (1 + 1e-3 * LEAKS[name])
    assert not _meets(fdp.DPSGD(**(VALUES | {name: risky})))


def test_solution_is_the_boundary_to_many_digits():
    run = _calibrated("noise_multiplier").mechanism
    assert float(run.epsilon(delta=1e-5)) == pytest.approx(2.0, rel=1e-8)


def test_solution_says_what_it_guarantees():
    text = _calibrated("noise_multiplier").guarantee
    assert "(2, 1e-05)-DP" in text
    assert "add or remove one" in text
    assert "noise_multiplier = " in text
    assert text.endswith(
        "certified upper bound (tight): "
        "DPSGD(sampling_prob=0.01, num_steps=1000), Poisson sampling"
    )


@pytest.mark.parametrize(
    ("mechanism", "solve_for", "words"),
    [
        (fdp.Laplace(2.0), "noise_multiplier", ": Laplace()"),
        (
            fdp.DPSGD(
                noise_multiplier=2.0,
                sampling=fdp.sampling.FixedSize(batch_size=2, dataset_size=9),
                num_steps=3,
                relation="replace_one",
            ),
            "noise_multiplier",
            "replace one, noise_multiplier = 2, certified upper bound (loose): DPSGD("
            "num_steps=3, sampling=sampling.FixedSize(batch_size=2, dataset_size=9)), "
            "fixed-size batches without replacement",
        ),
        (
            fdp.compose(fdp.Laplace(2.0), fdp.Gaussian(3.0)),
            "parts.0.noise_multiplier",
            ": Composition(parts=(Laplace(noise_multiplier=2), "
            "Gaussian(noise_multiplier=3)), num_steps=(1, 1))",
        ),
        (fdp.ZCDP(2.0), "rho", "DP, rho = 2, certified upper bound (loose): ZCDP()"),
        # A group's mechanism is not the one that was asked about.
        (fdp.Laplace(1.0), "size", "size = 2, certified upper bound (loose)"),
    ],
)
def test_guarantee_names_mechanism_sampling_and_status(mechanism, solve_for, words):
    found = dataclasses.replace(
        _calibrated("noise_multiplier"),
        value=jnp.asarray(2.0),
        mechanism=mechanism,
        status=jnp.asarray(int(Status.LOOSE)),
        solve_for=solve_for,
    )
    assert found.guarantee.startswith("(2, 1e-05)-DP, ")
    assert found.guarantee.endswith(words)
    assert "\n" not in found.guarantee


def test_guarantee_of_a_pair_that_only_dominates():
    mechanism = fdp.PartitionSelection(1.0, threshold=9.0, max_partitions=1)
    found = dataclasses.replace(_calibrated("noise_multiplier"), mechanism=mechanism)
    assert "certified upper bound (of a pair that dominates)" in found.guarantee


def test_what_says_nothing_is_not_printed():
    found = _calibrated("noise_multiplier")
    names = ["value", "mechanism", "target", "status", "solve_for"]
    assert [name for name, _ in found._shown(None).entries] == names
    said = dataclasses.replace(
        found, binding={"alpha": jnp.asarray(0.1)}, at_end=jnp.asarray(True)
    )
    assert "binding={'alpha': 0.1}" in repr(said)
    assert "at_end=True" in repr(said)


def test_value_of_the_unknown_is_ignored():
    run = fdp.DPSGD(**(VALUES | {"noise_multiplier": 7.0}))
    again = fdp.calibrate(run, APPROX_DP, solve_for="noise_multiplier")
    expected = float(_calibrated("noise_multiplier").value)
    assert float(again.value) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("entry", checks("gdp_sigma"), ids=lambda e: e["id"])
def test_gaussian_noise_agrees_with_truth(entry):
    p = entry["params"]
    target = fdp.targets.ApproxDP(epsilon=p["eps"], delta=p["delta"])
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    assert float(found.value) == pytest.approx(float(entry["value_str"]), rel=1e-9)
    assert found.mechanism.epsilon(delta=p["delta"]) <= p["eps"]


# ------------------------------------------------------------------------ derivatives


def _solve(name, epsilon, log_delta, sigma, q, steps):
    """The solution as a function of the target and all parameters."""
    values = {"noise_multiplier": sigma, "sampling_prob": q, "num_steps": steps}
    mechanism = fdp.DPSGD(**(values | {name: None}))
    target = fdp.targets.ApproxDP(epsilon=epsilon, delta=jnp.exp(log_delta))
    return fdp.calibrate(mechanism, target, solve_for=name).value


_value_and_gradient = jitted(
    jax.value_and_grad(_solve, argnums=(1, 2, 3, 4, 5)), static_argnums=0
)
POINT = np.array([2.0, math.log(1e-5), 1.0, 0.01, 1000.0])
NAMES = ["epsilon", "log_delta", *VALUES]


def _difference(function, index, step):
    """Richardson extrapolation of central differences, in relative steps."""

    def central(step):
        ends = []
        for sign in (1, -1):
            moved = POINT.copy()
            moved[index] *= 1 + sign * step
            ends.append(function(moved))
        return (ends[0] - ends[1]) / (2 * step * POINT[index])

    return (4 * central(step / 2) - central(step)) / 3


# Slow: test_targets.py has the slopes of the noise multiplier, by known numbers, and
# test_unknowns.py has a second derivative.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sampling_prob", "num_steps"])
def test_gradient_agrees_with_differences(name):
    value = lambda point: float(_value_and_gradient(name, *point)[0])
    slopes = map(float, _value_and_gradient(name, *POINT)[1])
    for index, slope in enumerate(slopes):
        if NAMES[index] == name:  # the value that is replaced has no influence
            assert slope == 0
        else:
            assert slope == pytest.approx(_difference(value, index, 1e-3), rel=1e-5)


@pytest.mark.slow
def test_derivatives_are_those_of_the_solution_that_is_given():
    # The first engine alone would ask for noise of 2.03, with a slope of -0.15.
    scheme = fdp.sampling.FixedSize(prob=0.2)
    few = fdp.DPSGD(sampling=scheme, num_steps=4, relation="replace_one")

    def noise(epsilon):
        target = fdp.targets.ApproxDP(epsilon=epsilon, delta=0.1548)
        return fdp.calibrate(few, target, solve_for="noise_multiplier").value

    def leaked(noise, epsilon):
        run = dataclasses.replace(few, noise_multiplier=noise)
        return float(run.delta(epsilon=epsilon, bound="estimate"))

    at, step = float(noise(0.7)), 1e-3
    by_noise = leaked(at + step, 0.7) - leaked(at - step, 0.7)
    by_epsilon = leaked(at, 0.7 + step) - leaked(at, 0.7 - step)
    slope = jax.value_and_grad(noise)
    for value, found in (slope(0.7), jax.vmap(slope)(np.full(1, 0.7))):
        np.testing.assert_allclose(value, at, rtol=1e-6)
        np.testing.assert_allclose(found, -by_epsilon / by_noise, rtol=1e-5)


@pytest.mark.slow
def test_second_derivative_agrees_with_differences_of_the_first():
    name = "noise_multiplier"
    slope = lambda point: float(_value_and_gradient(name, *point)[1][0])

    @jitted
    def along(point, way):
        grad = jax.grad(lambda x: _solve(name, *x))
        return jax.jvp(grad, (point,), (way,))[1][0]

    for index in (0, 3):
        way = np.eye(5)[index]
        found = float(along(POINT, way))
        assert found == pytest.approx(_difference(slope, index, 1e-3), rel=1e-3)


@pytest.mark.slow
def test_vmap_agrees_with_a_loop():
    epsilons = jnp.asarray([0.3, 1.0, 4.0, 10.0])

    def noise(epsilon):
        target = fdp.targets.ApproxDP(epsilon=epsilon, delta=1e-5)
        solved = fdp.calibrate(
            _open("noise_multiplier"), target, solve_for="noise_multiplier"
        )
        return solved.value, solved.mechanism.epsilon(delta=1e-5)

    values, reached = jax.vmap(noise)(epsilons)
    assert np.all(reached <= epsilons)
    for epsilon, value in zip(epsilons, values, strict=True):
        target = fdp.targets.ApproxDP(epsilon=float(epsilon), delta=1e-5)
        alone = fdp.calibrate(
            _open("noise_multiplier"), target, solve_for="noise_multiplier"
        )
        assert float(value) == pytest.approx(float(alone.value), rel=1e-10)


# ------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["epsilon", "sensitivity", ""])
def test_unknown_parameter_is_refused_with_those_allowed(name):
    with pytest.raises(ValueError, match="solve_for must be one of") as raised:
        fdp.calibrate(fdp.DPSGD(**VALUES), APPROX_DP, solve_for=name)
    for allowed in VALUES:
        assert allowed in str(raised.value)


def test_noise_that_tells_who_took_part_is_found_by_its_closed_form(monkeypatch):
    """Delta is a mean over the number k of steps with the record, each a Gaussian's."""
    steps, prob, epsilon = 1000, 0.01, 1e4

    def delta(noise):
        k = np.arange(1, steps + 1)
        mu, rest = np.sqrt(k) / noise, (steps - k) * np.log1p(-prob) + k * np.log(prob)
        left = (epsilon - rest) / mu
        tails = [stats.norm.logcdf(sign * mu / 2 - left) for sign in (1, -1)]
        each = np.exp(tails[0]) - np.exp(epsilon - rest + tails[1])
        return float(stats.binom.pmf(k, steps, prob) @ each)

    asked, solved = [], _solved._solve
    count = lambda *args, **options: asked.append(options) or solved(*args, **options)
    monkeypatch.setattr(_solved, "_solve", count)
    run = fdp.DPSGD(sampling_prob=prob, num_steps=steps)
    target = fdp.targets.ApproxDP(epsilon=epsilon, delta=1e-5)
    found = fdp.calibrate(run, target, solve_for="noise_multiplier")
    noise = float(found.value)
    assert delta(noise * (1 - 1e-6)) > 1e-5 >= delta(noise) * (1 - 1e-9)
    assert [x["method"].split for x in asked] == [False, True]


@pytest.mark.slow
def test_an_engine_that_is_named_is_the_only_one_asked():
    """And says what it is worth: contours are of little use for two unlike steps."""
    steps = (
        fdp.DPSGD(noise_multiplier=s, sampling_prob=1e-3, num_steps=1)
        for s in (1.0, 0.6)
    )
    family = fdp.compose(*steps)
    target = fdp.targets.ApproxDP(epsilon=3.0, delta=1e-5)
    ask = functools.partial(
        fdp.calibrate,
        target=target,
        solve_for=lambda run: run.parts[0].noise_multiplier,
        within=(0.3, 20.0),
    )
    found, loose = ask(family), ask(family.using("contour"))
    assert int(found.status) == Status.TIGHT
    assert int(loose.status) == Status.LOOSE
    assert loose.value > 1.1 * found.value
    assert loose.mechanism.bounds(delta=1e-5).upper <= 3.0


def test_a_range_that_meets_the_target_throughout_is_named():
    target = fdp.targets.ApproxDP(epsilon=8.0, delta=1e-2)
    ask = functools.partial(
        fdp.calibrate, fdp.Gaussian(), target, solve_for="noise_multiplier"
    )
    found = ask(within=(2.0, 10.0))
    assert bool(found.at_end)
    assert float(found.value) == pytest.approx(2.0, rel=1e-9)
    assert "the end of the range searched" in found.guarantee
    assert not bool(ask().at_end)


@pytest.mark.slow
def test_few_steps_are_calibrated_as_tightly_as_they_are_known():
    family = fdp.DPSGD(sampling_prob=0.009708872181136153, num_steps=10)
    target = fdp.targets.ApproxDP(epsilon=15.0, delta=1e-5)
    found = fdp.calibrate(family, target, solve_for="noise_multiplier")
    reached = found.mechanism.bounds(epsilon=15.0)
    assert 0.9999e-5 < float(reached.upper) <= 1e-5
    assert int(found.status) == int(reached.status)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-7), (2.7, 6e-5), (0.6, 2e-9)])
def test_a_small_delta_is_used_up_where_the_loss_is_bounded(epsilon, delta):
    """Next to the parameter at which delta is 0, whose logarithm has no slope."""
    target = fdp.targets.ApproxDP(epsilon=epsilon, delta=delta)
    exact = {
        "PureDP": math.log((math.exp(epsilon) + delta) / (1 - delta)),
        "Laplace": 1 / (epsilon - 2 * math.log1p(-delta)),
    }
    for found, truth in (
        (fdp.calibrate(fdp.PureDP(None), target, solve_for="epsilon0"), "PureDP"),
        (fdp.calibrate(fdp.Laplace(), target, solve_for="noise_multiplier"), "Laplace"),
    ):
        np.testing.assert_allclose(found.value, exact[truth], rtol=1e-11)
        private = float(found.leaks) * (float(found.value) - exact[truth])
        assert private <= 1e-15
        assert found.status == Status.TIGHT


@pytest.mark.parametrize("known", [0.5, 1e3])
def test_estimates_beyond_their_ends_do_not_mislead_a_search(known):
    """Where nothing is resolved an estimate may be any number, of either sign."""
    unknown = find_unknown(fdp.Gaussian(), "noise_multiplier", within=None, whole=False)

    def margin(value):
        truth = 2 - 3 * jnp.log(value)
        estimate = jnp.where(jnp.abs(truth) < known, truth, -truth)
        return Margin(Interval(truth - 1e-9, estimate, truth + 1e-9))

    found, _ = solve(margin, lambda t: jnp.ones_like(t), unknown, 0)
    assert found.met
    assert float(found.value) == pytest.approx(math.exp(2 / 3), rel=1e-8)


@pytest.mark.parametrize("width", [1e-9, 1e-8, 2e-7, 2e-6])
def test_a_narrow_certificate_is_met_by_the_first_step_from_the_root(width):
    """Each question may take seconds: steps that double would ask seven more."""
    unknown = find_unknown(fdp.Gaussian(), "noise_multiplier", within=None, whole=False)
    asked = []

    def margin(value):
        asked.append(value)
        truth = 2 - jnp.log(value) - 0.1 * jnp.log(value) ** 2
        return Margin(Interval(truth - width, truth, truth + width))

    rough = lambda t: 2.1 - t - 0.1 * t**2
    with jax.enable_x64(True), jax.disable_jit():
        found, _ = solve(margin, rough, unknown, 0)
    assert found.met
    assert len(asked) <= 7
    root = (-1 + math.sqrt(1.8)) / 0.2
    slope = 1 + 0.2 * root
    assert width <= slope * (math.log(found.value) - root) <= 1.02 * width


def test_noise_below_the_certificate_is_not_searched_through():
    """The grid's estimates are no smoother than some thousandths of their bounds."""
    unknown = find_unknown(fdp.Gaussian(), "noise_multiplier", within=None, whole=False)
    asked = []

    def margin(value):
        asked.append(value)
        truth = 2 - 30 * jnp.log(value)
        noisy = truth + 1e-5 * jnp.sin(1e9 * truth)
        return Margin(Interval(truth - 0.02, noisy, truth + 0.02))

    with jax.enable_x64(True), jax.disable_jit():
        found, _ = solve(margin, lambda t: 2.5 - 30 * t, unknown, 0)
    assert found.met
    assert len(asked) <= 12
    assert 0.02 <= 30 * math.log(found.value) - 2 <= 0.06


@pytest.mark.slow
def test_the_grid_is_searched_only_where_less_would_do(monkeypatch):
    """Both are loose for batches cut at a size that is often reached."""
    asked = []

    def counted(*args, method, **options):
        asked.append(method.name)
        return _solve_by(*args, method=method, **options)

    _solve_by = _solved._solve
    monkeypatch.setattr(_solved, "_solve", counted)
    scheme = fdp.sampling.TruncatedPoisson(
        4.08e-5, batch_size=521_000, dataset_size=12_700_000_000
    )
    run = fdp.DPSGD(sampling=scheme, num_steps=100_000)
    target = fdp.targets.ApproxDP(epsilon=2.0, delta=1.1e-10)
    found = fdp.calibrate(run, target, solve_for="noise_multiplier")
    assert set(asked) == {"auto"}
    at = lambda share: dataclasses.replace(
        run, noise_multiplier=float(found.value) * share
    ).delta(epsilon=2.0)
    assert at(1.0) <= target.delta < at(1 - 1e-5)
    solved: Any = found.mechanism
    grid = solved.using("grid")
    assert grid.delta(epsilon=2.0) > target.delta
