"""Mechanisms through the public API: closed forms, identities, edges and bad input."""

import math
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from dp_accounting import dp_event
from reference import checks, exact
from scipy import stats

import fdp_jax as fdp
from fdp_jax import Bound, Status

INF = math.inf
CLOSED = 1e-12


def _entries(*prefixes):
    """Entries of checks.json whose id starts with one of the prefixes."""
    topics = {p.split(".")[1] for p in prefixes}
    found = [e for e in checks(*topics) if e["id"].startswith(prefixes)]
    assert found
    return [pytest.param(e, id=e["id"]) for e in found]


def _agree(bounds, entry, rtol=CLOSED, width=1e-6):
    """The estimate has the printed digits, and a narrow bracket contains the truth."""
    truth = mp.mpf(entry["value_str"])
    truncated = abs(truth) * max(rtol, 10.0 ** (1 - entry["digits"]))
    lower, estimate, upper = map(exact, (bounds.lower, bounds.estimate, bounds.upper))
    assert abs(estimate - truth) <= truncated
    assert lower - truncated <= truth <= upper + truncated
    assert lower <= estimate <= upper
    # A probability near 0 may come from one near 1, whose rounding is absolute.
    if truth:
        assert upper - lower <= width * abs(truth) + 1e-15


# ----------------------------------------------------------------------- closed forms


def _gaussian(entry):
    return fdp.Gaussian(1 / entry["params"]["mu"])


def _laplace(entry):
    return fdp.Laplace(1 / entry["params"]["mu"])


def _approx_dp(entry):
    p = entry["params"]
    epsilon, delta = (p.get(n + "0", p.get(n)) for n in ("eps", "delta"))
    return fdp.ApproxDP(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("entry", _entries("01.gdp_delta"))
def test_gaussian_delta(entry):
    _agree(_gaussian(entry).bounds(epsilon=entry["params"]["eps"]), entry)


@pytest.mark.parametrize("entry", _entries("01.gdp_logdelta"))
def test_gaussian_log_delta(entry):
    values = [
        _gaussian(entry).log_delta(epsilon=entry["params"]["eps"], bound=b)
        for b in (Bound.OPTIMISTIC, Bound.ESTIMATE, Bound.PESSIMISTIC)
    ]
    _agree(fdp.Bounds(*values, status=None), entry)  # pyright: ignore


@pytest.mark.parametrize("entry", _entries("01.gdp_eps"))
def test_gaussian_epsilon(entry):
    _agree(_gaussian(entry).bounds(delta=entry["params"]["delta"]), entry)


@pytest.mark.parametrize(
    "entry",
    _entries("01.gdp_f.mu", "01.laplace_f", "01.epsdelta_f"),
)
def test_trade_off_function(entry):
    make = {"gdp_f": _gaussian, "laplace_f": _laplace, "epsdelta_f": _approx_dp}
    kind, alpha = entry["id"].split(".")[1], entry["params"]["alpha"]
    bounds = make[kind](entry).bounds(alpha=alpha)
    # alpha itself was rounded, and 1 - alpha with it.
    rtol = max(CLOSED, 2.0**-53 / (1 - alpha))
    # Point masses make kinks, next to which the optimistic end is loose.
    _agree(bounds, entry, rtol, width=1e-6 if kind == "gdp_f" else 1e-2)


@pytest.mark.parametrize("entry", _entries("01.gdp_f.one_minus"))
def test_power_at_a_small_false_positive_rate(entry):
    _agree(_gaussian(entry).bounds(fpr=entry["params"]["alpha"]), entry)


@pytest.mark.parametrize("entry", _entries("01.gdp_fixed", "01.laplace_fixed"))
def test_fixed_point(entry):
    make = _gaussian if "gdp" in entry["id"] else _laplace
    _agree(make(entry).bounds(alpha=float(entry["value_str"])), entry, 1e-11)


@pytest.mark.parametrize("entry", _entries("01.laplace_delta"))
def test_laplace_delta(entry):
    _agree(_laplace(entry).bounds(epsilon=entry["params"]["eps"]), entry)


@pytest.mark.parametrize("entry", _entries("01.epsdelta_delta"))
def test_approx_dp_delta(entry):
    _agree(_approx_dp(entry).bounds(epsilon=entry["params"]["eps"]), entry)


@pytest.mark.parametrize("entry", _entries("01.bayes.G1", "01.bayes.Lap1"))
def test_bayes_error(entry):
    make = _gaussian if "G1" in entry["id"] else _laplace
    _agree(make(entry).bounds(prior=entry["params"]["pi"]), entry)


@pytest.mark.parametrize("entry", _entries("01.tv.G1", "01.tv.Lap1"))
def test_advantage(entry):
    make = _gaussian if "G1" in entry["id"] else _laplace
    truth = float(entry["value_str"])
    assert float(make(entry).advantage()) == pytest.approx(truth, rel=CLOSED)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("index", range(5))
def test_one_subsampled_step_in_each_direction(direction, index):
    found = [e for e in checks("sgm_delta") if e["id"].split(".")[2] == direction]
    entry = found[index]
    p = entry["params"]
    step = fdp.PoissonSubsampled(fdp.Gaussian(p["sigma"]), sampling_prob=p["p"])
    _agree(getattr(step, direction).bounds(epsilon=p["eps"]), entry)


def _one_step(entry):
    p = entry["params"]
    return fdp.PoissonSubsampled(fdp.Gaussian(p["sigma"]), sampling_prob=p["p"])


@pytest.mark.parametrize("entry", _entries("01.sgm_sym"))
def test_trade_off_function_of_a_subsampled_step(entry):
    # The symmetrization is the guarantee of both directions.
    _agree(_one_step(entry).bounds(alpha=entry["params"]["alpha"]), entry)


def test_trade_off_function_of_a_subsampled_step_in_one_direction():
    for entry in checks("sgm_fp"):
        _agree(_one_step(entry).remove.bounds(alpha=entry["params"]["alpha"]), entry)


def test_a_single_step_of_dpsgd_is_a_subsampled_gaussian():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=1)
    step = fdp.PoissonSubsampled(fdp.Gaussian(1.0), sampling_prob=0.1)
    assert run.remove.delta(epsilon=0.5) == step.remove.delta(epsilon=0.5)


@pytest.mark.parametrize("entry", _entries("01.compose.rr2"))
def test_randomized_response_twice(entry):
    twice = fdp.RandomizedResponse(1.0).repeat(2)
    _agree(twice.bounds(epsilon=entry["params"]["eps"]), entry)


@pytest.mark.parametrize("entry", _entries("01.compose.LapLap"))
def test_laplace_twice(entry):
    bounds = _laplace(entry).repeat(2).bounds(epsilon=entry["params"]["eps"])
    _agree(bounds, entry, rtol=1e-8)  # the grid engine's accuracy


@pytest.mark.parametrize("entry", _entries("01.compose.LapG"))
def test_laplace_and_gaussian(entry):
    both = fdp.compose(fdp.Laplace(1.0), fdp.Gaussian(1.0))
    _agree(both.bounds(epsilon=entry["params"]["eps"]), entry)


# ------------------------------------------------------------------------- identities

RUN = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.02, num_steps=250)


def _delta(mechanism, epsilon=0.7):
    return float(mechanism.delta(epsilon=epsilon, bound=Bound.ESTIMATE))


def test_repeating_a_run_multiplies_its_steps():
    longer = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.02, num_steps=750)
    assert _delta(RUN.repeat(3)) == pytest.approx(_delta(longer), rel=1e-11)


def test_order_of_composition_is_irrelevant():
    parts = fdp.Laplace(1.0), fdp.Gaussian(1.5)
    forward, backward = fdp.compose(*parts), fdp.compose(*parts[::-1])
    assert _delta(forward) == pytest.approx(_delta(backward), rel=1e-12)


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 3.0, 12.0])
def test_gaussians_compose_by_their_squares(epsilon):
    both = fdp.compose(fdp.Gaussian(1.5), fdp.Gaussian(0.8))
    one = fdp.Gaussian((1.5**-2 + 0.8**-2) ** -0.5)
    assert _delta(both, epsilon) == pytest.approx(_delta(one, epsilon), rel=1e-11)


@pytest.mark.parametrize("prob", [1.0, 1 - 1e-13])
@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.7, 3.0])
def test_dpsgd_on_the_whole_data_is_gaussian(epsilon, prob):
    run = fdp.DPSGD(noise_multiplier=20.0, sampling_prob=prob, num_steps=100)
    one = fdp.Gaussian(2.0)
    assert _delta(run, epsilon) == pytest.approx(_delta(one, epsilon), rel=1e-10)


@pytest.mark.parametrize("relation", list(fdp.NeighboringRelation))
@pytest.mark.parametrize("noise", [1e-6, 1e6])
def test_dpsgd_on_the_whole_data_has_a_closed_form_at_every_noise(noise, relation):
    run = fdp.DPSGD(
        noise_multiplier=noise, sampling_prob=1.0, num_steps=10, relation=relation
    )
    mu = 10**0.5 / noise * (2 if relation.name == "REPLACE_ONE" else 1)
    found = run.bounds(epsilon=0.0)
    assert found.status == Status.TIGHT
    assert found.estimate == pytest.approx(math.erf(mu / 8**0.5), rel=1e-12)
    if noise < 1:
        # The other term of delta is below 1e-9 of e^(mu^2 / 2).
        expected = mu**2 / 2 - mu * stats.norm.ppf(1e-5)
        assert run.epsilon(delta=1e-5) == pytest.approx(expected, rel=1e-12)


def test_composing_with_nothing_changes_nothing():
    alone = fdp.compose(fdp.Gaussian(1.5), fdp.Gaussian(INF))
    assert _delta(alone) == pytest.approx(_delta(fdp.Gaussian(1.5)), rel=1e-12)


@pytest.mark.parametrize("x64", [False, True])
def test_no_leak_is_no_negative_zero(x64):
    with jax.enable_x64(x64):
        found = fdp.Gaussian(INF).bounds(epsilon=1.0)
    ends = np.stack([found.lower, found.estimate, found.upper])
    assert not np.any(ends)
    assert not np.any(np.signbit(ends))


# ------------------------------------------------------------------------------ edges


def _dpsgd(noise=1.0, prob=0.01, steps=1000.0):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


def _schedule(noises, probs, steps):
    arrays = map(jnp.asarray, (noises, probs, steps))
    return fdp.Schedule(lambda s, q, n: _dpsgd(s, q, n), *arrays)


NOTHING = {
    "no sampling": _dpsgd(prob=0.0),
    "no steps": _dpsgd(steps=0.0),
    "infinite noise": _dpsgd(noise=INF),
    "schedule": _schedule([1.0, 1.0, INF], [0.0, 0.1, 0.1], [5.0, 0.0, 5.0]),
    "Gaussian": fdp.Gaussian(INF),
    "Laplace": fdp.Laplace(INF),
    "ApproxDP": fdp.ApproxDP(epsilon=0.0, delta=0.0),
}
SILENT = pytest.mark.parametrize("name", NOTHING)


@SILENT
@pytest.mark.parametrize("epsilon", [-INF, -2.0, 0.0, 2.0, INF])
def test_delta_of_no_release(name, epsilon):
    bounds = NOTHING[name].bounds(epsilon=epsilon)
    expected = max(0.0, -math.expm1(epsilon))
    for value in (bounds.lower, bounds.estimate, bounds.upper):
        assert float(value) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    "name",
    [
        *("Gaussian", "Laplace", "ApproxDP", "schedule"),
    ],
)
def test_error_rates_of_no_release(name):
    for alpha in (0.0, 0.2, 0.7, 1.0):
        bounds = NOTHING[name].bounds(alpha=alpha)
        for value in (bounds.lower, bounds.estimate, bounds.upper):
            assert float(value) == pytest.approx(1 - alpha, abs=2e-12)


# As what fills up an array: no step, no sampling, no end of noise; far from others.
IDLE = [(3.0, 0.4, 0.0), (3.0, 0.0, 7.0), (INF, 0.4, 7.0), (0.01, 0.4, 0.0)]
BUSY = [1.0, 0.8], [0.01, 0.02], [100.0, 50.0]


def _padded(idle):
    return [jnp.asarray([*x, y]) for x, y in zip(BUSY, idle, strict=True)]


def test_steps_of_a_schedule_that_release_nothing():
    same = fdp.compose(*(_dpsgd(*part) for part in zip(*BUSY, strict=True)))
    expected = float(same.epsilon(delta=1e-5))
    for idle in IDLE:
        found = _schedule(*_padded(idle)).epsilon(delta=1e-5)
        assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_slopes_of_a_schedule_that_releases_nothing():
    ask = jax.jit(
        jax.value_and_grad(lambda *x: _schedule(*x).epsilon(delta=1e-5), (0, 1, 2))
    )
    nothing = ask(jnp.ones(3), jnp.zeros(3), jnp.ones(3))
    assert float(nothing[0]) == pytest.approx(math.log1p(-1e-5), rel=1e-12)
    for _, slopes in (nothing, *(ask(*_padded(idle)) for idle in IDLE)):
        assert all(np.isfinite(slope).all() for slope in slopes)


RELEASES = {
    "DPSGD": _dpsgd(),
    "Gaussian": fdp.Gaussian(1.0),
    "Laplace": fdp.Laplace(1.0),
    "ApproxDP": fdp.ApproxDP(epsilon=1.0, delta=0.05),
}
EACH = pytest.mark.parametrize("name", RELEASES)


@EACH
def test_delta_at_infinite_thresholds(name):
    release = RELEASES[name]
    least = 0.05 if name == "ApproxDP" else 0.0
    for bound in Bound:
        assert float(release.delta(epsilon=-INF, bound=bound)) == 1.0
        found = float(release.delta(epsilon=INF, bound=bound))
        assert found == pytest.approx(least, rel=1e-12)


@EACH
def test_epsilon_at_delta_zero_and_one(name):
    release = RELEASES[name]
    ends = {"Laplace": 1.0, "RandomizedResponse": 1.0}
    for bound in Bound:
        assert float(release.epsilon(delta=1.0, bound=bound)) == -INF
        found = float(release.epsilon(delta=0.0, bound=bound))
        assert found == pytest.approx(ends.get(name, INF), rel=1e-9)


@EACH
def test_error_rates_at_the_ends(name):
    release = RELEASES[name]
    start = 0.95 if name == "ApproxDP" else 1.0
    for bound in Bound:
        first = float(release.beta(alpha=0.0, bound=bound))
        assert first == pytest.approx(start, rel=1e-12)
        assert float(release.beta(alpha=1.0, bound=bound)) == 0.0


@EACH
def test_bayes_error_at_the_ends(name):
    for bound in Bound:
        assert float(RELEASES[name].bayes_error(prior=0.0, bound=bound)) == 0.0
        assert float(RELEASES[name].bayes_error(prior=1.0, bound=bound)) == 0.0


# -------------------------------------------------------------------------- bad input

NAN = math.nan


BAD_TRACED = [
    (lambda x: fdp.Gaussian(x).noise_multiplier, 0.0, "noise_multiplier"),
    (lambda x: _dpsgd(prob=x).sampling_prob, 1.5, "sampling_prob"),
    (lambda x: _dpsgd(steps=x).num_steps, -1.0, "num_steps"),
    (lambda x: fdp.Gaussian(1.0).epsilon(delta=x), 1.5, "delta"),
    (lambda x: fdp.Gaussian(1.0).delta(epsilon=x), NAN, "epsilon"),
    (
        lambda x: jax.tree.leaves(fdp.RandomizedResponse(1.0).repeat(x)),
        2.5,
        "num_steps",
    ),
]


@pytest.mark.parametrize(("call", "value", "name"), BAD_TRACED)
def test_bad_input_is_named_under_jit(call, value, name):
    # Plain `jax.jit` wraps the sentence of `EquinoxRuntimeError` in one of its own.
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{name} must be"):
        jax.block_until_ready(jax.jit(call)(jnp.asarray(value)))
    with pytest.raises(eqx.EquinoxRuntimeError, match=f"{name} must be"):
        jax.block_until_ready(eqx.filter_jit(call)(jnp.asarray(value)))


@pytest.mark.parametrize("query", [{}, {"mu": 1.0}, {"delta": 0.1, "epsilon": 1.0}])
def test_bounds_takes_one_known_query(query):
    with pytest.raises(TypeError, match="bounds takes exactly one of"):
        RUN.bounds(**query)


def test_compose_takes_mechanisms_only():
    with pytest.raises(TypeError, match="every part of compose must be a mechanism"):
        fdp.compose(fdp.Gaussian(1.0), 2.0)  # pyright: ignore


def test_what_stands_for_a_guarantee_is_named():
    curve = fdp.Gaussian(1.0).curve(num_points=8)
    for refused in (
        lambda: fdp.compose(RUN, curve),
        lambda: fdp.RevealedMixture([RUN, fdp.ZCDP(0.1)], probs=[0.5, 0.5]),
    ):
        with pytest.raises(TypeError, match=r"fdp_jax\.tradeoff\.dominating_pair"):
            refused()


def test_only_a_single_release_can_be_subsampled():
    with pytest.raises(TypeError, match="single release, got Composition"):
        fdp.PoissonSubsampled(fdp.Laplace(1.0).repeat(2), 0.1)


def test_a_pair_for_replacement_cannot_be_subsampled():
    noise = fdp.Gaussian(1.0, relation=fdp.NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match=r"relation must be .*, got REPLACE_ONE"):
        fdp.PoissonSubsampled(noise, 0.1)


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        (fdp.DPSGD(sampling_prob=0.1, num_steps=10), "noise_multiplier"),
        (fdp.DPSGD(noise_multiplier=1.0, num_steps=10), "sampling_prob"),
        (fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1), "num_steps"),
        (fdp.Gaussian(), "noise_multiplier"),
        (fdp.PoissonSubsampled(fdp.Gaussian(), 0.1), "noise_multiplier"),
        (fdp.compose(fdp.Gaussian(1.0), fdp.Gaussian()), "noise_multiplier"),
        (fdp.Gaussian().repeat(3), "noise_multiplier"),
    ],
)
def test_open_parameters_cannot_be_queried(mechanism, name):
    with pytest.raises(ValueError, match=f"{name} of .* is not set"):
        mechanism.epsilon(delta=1e-5)
    with pytest.raises(ValueError, match=f"{name} of .* is not set"):
        mechanism.curve()


# ----------------------------------- arrays of JAX that a traced program encloses

NUMBERS = {x: jnp.asarray(x) for x in (0.0, 0.01, 0.3, 0.5, 1.0, 2.0, 3.0)}
VECTORS = {x: jnp.asarray(x) for x in ((0.5,), (1.0,), (2.0,), (1.0, 2.0), (0.1, 0.2))}
ENCLOSING = {
    "DPSGD": lambda x, v: fdp.DPSGD(
        noise_multiplier=x[1.0], sampling_prob=x[0.01], num_steps=x[3.0]
    ),
    "subsampled once": lambda x, v: fdp.PoissonSubsampled(
        fdp.Laplace(x[1.0]), x[0.5]
    ).repeat(x[1.0]),
    "composition": lambda x, v: fdp.compose(
        fdp.Gaussian(x[1.0]), fdp.ApproxDP(epsilon=x[1.0], delta=x[0.0]).repeat(x[3.0])
    ),
    "jumps": lambda x, v: fdp.LevyTriplet(x[0.0], jumps=v[(0.5,)], rates=v[(0.5,)]),
    "one count": lambda x, v: fdp.RandomRepeat(
        fdp.Gaussian(x[3.0]), num_steps=v[(2.0,)], probs=v[(1.0,)], tail_prob=x[0.0]
    ),
    "schedule": lambda x, v: fdp.Schedule(
        lambda s, q: fdp.PoissonSubsampled(fdp.Gaussian(s), q),
        v[(1.0, 2.0)],
        v[(0.1, 0.2)],
    ),
    "schedule of a function": lambda x, v: fdp.Schedule(
        lambda s: fdp.PoissonSubsampled(fdp.Gaussian(jnp.exp(s)), 0.1), v[(1.0, 2.0)]
    ),
    "group": lambda x, v: fdp.limits.group_guarantee(
        fdp.tradeoff.Laplace(x[1.0]), x[2.0]
    ),
}


@pytest.mark.parametrize("name", ENCLOSING)
def test_arrays_that_a_traced_program_encloses(name):
    """They are constants, though JAX traces whatever is computed from them."""
    make = ENCLOSING[name]
    query = lambda epsilon: make(NUMBERS, VECTORS).delta(epsilon=epsilon)
    assert jax.eval_shape(query, 0.5).shape == ()


def test_noise_of_an_array_that_a_traced_program_encloses():
    draw = lambda x: fdp.canonical_noise(fdp.tradeoff.Gaussian(NUMBERS[1.0])).sf(x)
    assert jax.eval_shape(draw, 0.5).shape == ()


def test_probabilities_of_a_float32_program():
    """A softmax has the sum 1 to its own rounding only; queries divide by the sum."""
    logits = np.random.default_rng(5).normal(size=(2, 40)).astype(np.float32)
    with jax.enable_x64(False):
        p, q = jax.nn.softmax(jnp.asarray(logits), axis=1)
        found = fdp.FromProbabilities(p, q).remove.delta(epsilon=0.5)
        with pytest.raises(ValueError, match="without_record must be probabilities"):
            fdp.FromProbabilities(p * (1 + 1e-5), q)
    exact = np.exp(logits.astype(np.float64))
    p, q = exact / exact.sum(axis=1, keepdims=True)
    truth = np.sum(np.maximum(q - np.exp(0.5) * p, 0))
    assert float(found) == pytest.approx(truth, rel=1e-5)


def _any(made: Any) -> Any:
    """Of a type that the checker does not ask about."""
    return made


MADE = {
    "group": (
        lambda a, b: _any(fdp.Gaussian(a).group(3)).noise_multiplier,
        lambda a, b: a / 3,
    ),
    "group of scores": (
        lambda a, b: _any(fdp.ReportNoisyMax(a).group(3)).noise_multiplier,
        lambda a, b: a / 3,
    ),
    "group of counts": (
        lambda a, b: (
            _any(fdp.PoissonMechanism(1.0, 2.0, sensitivity=a).group(3)).sensitivity
        ),
        lambda a, b: a * 3,
    ),
    "sensitivity": (
        lambda a, b: (
            fdp.Laplace.for_sensitivity(
                fdp.Sensitivity(a, norm="l1", relation="zero_out"), scale=b
            ).noise_multiplier
        ),
        lambda a, b: b / a,
    ),
    "family": (
        lambda a, b: fdp.tradeoff.Gaussian(a).as_mechanism().noise_multiplier,
        lambda a, b: 1 / a,
    ),
    "distance": (
        lambda a, b: _any(fdp.limits.group_guarantee(fdp.tradeoff.Laplace(a), b)).mu,
        lambda a, b: a * b,
    ),
    "pure": (
        lambda a, b: _any(fdp.limits.group_guarantee(fdp.PureDP(a), b)).epsilon0,
        lambda a, b: a * b,
    ),
    "composition": (
        lambda a, b: _any(fdp.limits.group_guarantee(fdp.Gaussian(a).repeat(4), 3)).mu,
        lambda a, b: 6 / a,
    ),
    "response": (
        lambda a, b: (
            _any(
                fdp.interop.from_dp_event(
                    dp_event.RandomizedResponseDpEvent(a, 5), relation="zero_out"
                )
            ).epsilon0
        ),
        lambda a, b: Fraction(float(mp.log1p(5 * (1 - mp.mpf(float(a))) / float(a)))),
    ),
    "rho": (
        lambda a, b: _any(fdp.compose(fdp.ZCDP(a), fdp.ZCDP(b))).rho,
        lambda a, b: a + b,
    ),
    "rhos": (lambda a, b: fdp.ZCDP(a).repeat(3).rho, lambda a, b: a * 3),
    "above": (
        lambda a, b: fdp.AboveThreshold(a, query_ratio=b).epsilon0,
        lambda a, b: (1 + 2 / b) / a,
    ),
    "share": (
        lambda a, b: (
            fdp.sampling.FixedSize(
                batch_size=jnp.int32(3), dataset_size=jnp.round(10 * a)
            ).prob
        ),
        lambda a, b: Fraction(3, 7),
    ),
}
"""Numbers that are made of two others before anything is asked, and the truths."""


@pytest.mark.parametrize("of", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", MADE)
def test_numbers_made_in_float32_programs(name, of):
    """They would be rounded to float32, half of them to what leaks less."""
    made, truth = MADE[name]
    with jax.enable_x64(False):
        a, b = jnp.float32(0.7), jnp.float32(1.3)
        (found,) = jax.tree.leaves(of(made)(a, b))
    wanted = truth(*(Fraction(float(x)) for x in (a, b)))
    assert abs(Fraction(float(found)) / wanted - 1) < 1e-15


# ------------------------------------------------------------------- two given laws


def test_vectors_that_are_next_to_equal():
    """The sum over the binomial's outcomes, of two vectors that differ by 1e-14."""
    p, q = (0.375, 0.625), (0.375 - 2.0**-46, 0.625 + 2.0**-46)
    n, truth = 1000, mp.mpf(0)
    with mp.workdps(60):
        for k in range(n + 1):
            one, other = (mp.mpf(x[0]) ** k * mp.mpf(x[1]) ** (n - k) for x in (p, q))
            truth += mp.binomial(n, k) * max(other - one, 0)
        pair = fdp.FromProbabilities(p, q).repeat(n)
        assert mp.mpf(float(pair.remove.delta(epsilon=0.0))) >= truth
        found = pair.remove.delta(epsilon=0.0, bound=fdp.Bound.ESTIMATE)
        assert abs(mp.mpf(float(found)) / truth - 1) < 1e-2


def test_outputs_that_are_never_shared():
    pair = fdp.FromProbabilities([1.0, 0.0], [0.0, 1.0])
    assert float(pair.beta(alpha=0.1)) == 0
    assert float(pair.tpr(fpr=0.1)) == 1
    assert float(pair.delta(epsilon=3.0)) == 1


@pytest.mark.parametrize("shift", [-1.0, -1e-3, -1e-8])
def test_losses_that_decrease_are_refused(shift):
    normal = jax.scipy.stats.norm.logpdf
    pair = fdp.FromLogDensities(
        lambda x, u: normal(x),
        lambda x, u: normal(x, u),
        support=(-39.0, 39.0),
        params=shift,
        log_beyond=-700.0,
    )
    with pytest.raises(RuntimeError, match=r"must increase over.*a fall by \d"):
        pair.delta(epsilon=0.0)


def test_densities_are_functions():
    with pytest.raises(TypeError, match="log_density_with must be a function"):
        fdp.FromLogDensities(
            lambda x, u: x,
            3.0,  # pyright: ignore[reportArgumentType]
            support=(0.0, 1.0),
            log_beyond=-700.0,
        )


def test_directions_of_a_chosen_engine():
    run = fdp.FromProbabilities([0.6, 0.4], [0.3, 0.7]).using("closed_form")
    direct = run.mechanism.remove.using("closed_form")
    assert run.remove == direct
    assert run.add.direction == "add"
    assert not hasattr(run.remove, "add")


def test_trade_off_functions_compose_as_their_mechanisms():
    both = fdp.compose(fdp.tradeoff.Gaussian(0.6), fdp.Gaussian(1 / 0.8))
    found = float(both.delta(epsilon=0.5))
    truth = float(fdp.Gaussian(1.0).delta(epsilon=0.5))
    assert found == pytest.approx(truth, rel=1e-10)
    with pytest.raises(TypeError, match="must be a whole mechanism"):
        fdp.compose(fdp.tradeoff.Poisson(1.0, 2.0), fdp.Gaussian(1.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: fdp.Gaussian(1e-308),
        lambda: fdp.Gaussian(jnp.float32(1e-38)),
        lambda: fdp.Laplace(5e-324),
        lambda: fdp.MixtureOfGaussians(5e-324, probs=[0.5, 0.5], shifts=[0.0, 1.0]),
        lambda: fdp.DPSGD(noise_multiplier=1e-308, sampling_prob=0.5, num_steps=10),
        lambda: fdp.MatrixMechanism.tree(5e-324, num_steps=4),
    ],
)
def test_numbers_that_programs_take_for_zero_are_refused(make):
    with pytest.raises(ValueError, match="below the least normal one are 0"):
        make()


def test_least_noise_is_no_privacy():
    found = fdp.Gaussian(2.3e-308).bounds(delta=1e-5)
    assert np.isposinf(found.upper)
    assert found.status == fdp.Status.VACUOUS


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("name", ["noise_multiplier", "sampling_prob", "num_steps"])
def test_what_is_no_number_is_never_private(name, relation):
    # As where checks are off in programs that are exported.
    known = {"noise_multiplier": 1.0, "sampling_prob": 0.5, "num_steps": 3.0}
    known = jax.tree.map(jnp.asarray, known | {name: jnp.nan})
    runs: list[Any] = [
        fdp.DPSGD.unchecked(**known, relation=fdp.NeighboringRelation(relation))
    ]
    if name == "noise_multiplier":
        runs.append(fdp.Gaussian.unchecked(noise_multiplier=known[name]))
        assert not runs[-1].bounds(alpha=0.1).lower > 0
    with jax.enable_x64(True):
        for run in runs:
            epsilon, delta = run.bounds(delta=1e-5), run.bounds(epsilon=1.0)
            if name == "sampling_prob":  # At most that of all records, whatever it is.
                assert epsilon.upper > 8.38
            else:
                assert np.isposinf(epsilon.upper)
                assert delta.upper == 1.0
            assert Status.TIGHT not in (epsilon.status, delta.status)


def test_many_parts_of_a_kind_are_one_schedule():
    rates, noise = (0.01, 0.02, 0.03), (1.0, 1.1, 1.2)
    step = lambda q, s: fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=1)
    parts = [step(q, s) for q, s in zip(rates, noise, strict=True)]
    mixed = fdp.compose(*parts, fdp.Laplace(9.0), fdp.Gaussian(5.0), fdp.Gaussian(6.0))
    with jax.enable_x64(True):
        loss = mixed.loss()
        gathered = loss.gathered()
        kinds = sorted(type(term).__name__ for term in gathered.terms)
        assert kinds == ["GaussianLoss", "GaussianLoss", "LaplaceLoss", "ScheduleLoss"]
        assert len(loss.terms) == 6
        # Two are left alone, and so are numbers of steps that are not known.
        assert len(fdp.compose(*parts[:2]).loss().gathered().terms) == 2
        traced = jax.eval_shape(
            lambda n: fdp.compose(*(x.repeat(n) for x in parts)).loss().gathered(), 2.0
        )
        assert len(traced.terms) == 3
        whole = fdp.compose(*parts).bounds(delta=1e-5)
        schedule = fdp.Schedule(step, np.asarray(rates), np.asarray(noise))
        same = schedule.bounds(delta=1e-5)
    assert whole.status == same.status == Status.TIGHT
    np.testing.assert_allclose(whole.upper, same.upper, rtol=1e-6)
