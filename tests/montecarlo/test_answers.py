"""Answers by samples, against answers that are proved, and what they say of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted
from scipy import stats

import fdp_jax as fdp
from fdp_jax._internal._compilation import compiled_at_once

MINSEP = fdp.sampling.MinSeparation
KEY = jax.random.key(20)
FEW = {"num_samples": 1 << 14, "failure_prob": 1e-4}


def dealt(steps, batches, **options):
    scheme = fdp.sampling.RandomAllocation(batches, same_every_epoch=True)
    return fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=steps, **options)


def separated(prob, b, steps, noise=1.0):
    scheme = MINSEP(prob, min_separation=b)
    return fdp.DPSGD(noise_multiplier=noise, sampling=scheme, num_steps=steps)


PAIRS = {
    "b = 1 is Poisson": (
        separated(0.2, 1, 8),
        fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.2, num_steps=8),
    ),
    "p = 1 is one batch of b": (separated(1.0, 4, 12), dealt(12, 4)),
    "Poisson": (
        fdp.DPSGD(noise_multiplier=1.5, sampling_prob=0.3, num_steps=6),
        fdp.DPSGD(noise_multiplier=1.5, sampling_prob=0.3, num_steps=6),
    ),
    "one batch of b": (dealt(20, 10), dealt(20, 10)),
    "epochs anew": (
        fdp.DPSGD(
            noise_multiplier=1.0,
            sampling=fdp.sampling.RandomAllocation(4),
            num_steps=8,
        ),
        fdp.DPSGD(
            noise_multiplier=1.0,
            sampling=fdp.sampling.RandomAllocation(4),
            num_steps=8,
        ),
    ),
    "bands and groups": (
        fdp.MatrixMechanism(
            1.5,
            [1.0, 0.5],
            num_steps=12,
            sampling=fdp.sampling.CyclicPoisson(0.3, num_groups=3),
        ),
        fdp.MatrixMechanism(
            1.5,
            [1.0, 0.5],
            num_steps=12,
            sampling=fdp.sampling.CyclicPoisson(0.3, num_groups=3),
        ),
    ),
    "p = 1, b = n is one release of unknown place": (
        separated(1.0, 1, 1, 2.0),
        fdp.Gaussian(2.0),
    ),
}


@pytest.mark.parametrize(
    ("direction", "name"),
    [
        *(("remove", name) for name in PAIRS if name != "epochs anew"),
        pytest.param("add", "Poisson", marks=pytest.mark.slow),
        pytest.param("add", "epochs anew", marks=pytest.mark.slow),
    ],
)
def test_limits_hold_what_is_proved(name, direction):
    run, known = PAIRS[name]
    found = getattr(fdp.monte_carlo(run, KEY, **FEW), direction)
    known = getattr(known, direction)
    epsilons = np.array([-0.5, 0.3, 1.0])
    got, truth = found.bounds(epsilon=epsilons), known.bounds(epsilon=epsilons)
    assert np.all(got.lower <= truth.upper)
    assert np.all(truth.lower <= got.upper)
    assert np.all(got.upper - got.lower < 0.1)
    got, truth = found.bounds(delta=0.05), known.bounds(delta=0.05)
    assert got.lower <= truth.upper
    assert truth.lower <= got.upper
    assert got.upper - got.lower < 0.5


def test_tiny_deltas_are_certified_by_few_samples():
    # The exact engine has an absolute floor near 1e-15 for these.
    run = dealt(20, 20)
    found = fdp.monte_carlo(run, KEY, num_samples=1 << 17)
    truth = run.remove.bounds(delta=1e-10)
    got = found.remove.bounds(delta=1e-10)
    assert got.lower <= truth.lower
    assert truth.upper <= got.upper
    assert got.upper < 1.12 * truth.upper
    at = float(truth.upper)
    got, truth = found.remove.bounds(epsilon=at), run.remove.bounds(epsilon=at)
    assert got.lower <= truth.upper
    assert truth.lower <= got.upper
    assert got.upper < 10 * truth.upper < 2e-9


def test_statements_fail_as_seldom_as_they_say():
    run, level, keys = dealt(5, 5), 0.3, 120
    truth = run.bounds(epsilon=0.5), run.bounds(delta=0.02)
    failed = np.zeros(2)
    for i in range(keys):
        found = fdp.monte_carlo(
            run, jax.random.key(i), num_samples=1000, failure_prob=level
        )
        for j, question in enumerate(({"epsilon": 0.5}, {"delta": 0.02})):
            with compiled_at_once():
                got = found.bounds(**question)
            inside = got.lower <= truth[j].upper and truth[j].lower <= got.upper
            failed[j] += not inside
    assert np.all(failed <= stats.binom.ppf(0.999, keys, level))


def test_widths_shrink_with_the_root_of_the_samples():
    run = separated(0.4, 3, 9)
    widths = []
    for size in (1 << 12, 1 << 16):
        got = fdp.monte_carlo(run, KEY, num_samples=size).remove.bounds(epsilon=0.3)
        widths.append(got.upper - got.lower)
    assert 3.0 < widths[0] / widths[1] < 6.0


def test_answers_are_functions_of_the_key():
    run = separated(0.4, 3, 9)
    made = lambda key: fdp.monte_carlo(run, key, **FEW).remove
    ask = lambda key: np.asarray(made(key).epsilon(delta=0.01))
    assert ask(KEY) == ask(KEY) == ask(jax.random.key_data(KEY))
    assert ask(KEY) != ask(jax.random.key(21))
    assert ask(jax.random.key(3, impl="rbg")) != ask(jax.random.key(3))


def test_float32_programs_get_ends_rounded_outward():
    run = separated(0.4, 3, 9)
    precise = fdp.monte_carlo(run, KEY, **FEW).bounds(epsilon=0.3)
    with jax.enable_x64(False):
        coarse = fdp.monte_carlo(run, KEY, **FEW).bounds(epsilon=0.3)
        assert coarse.upper.dtype == np.float32
        tiny = fdp.monte_carlo(run, KEY, **FEW).add.delta(epsilon=60.0)
    # 0.3 itself is rounded in float32 programs.
    assert coarse.lower <= precise.lower + 1e-7
    assert tiny > 0
    np.testing.assert_allclose(coarse.upper, precise.upper, rtol=1e-5)


def test_programs_take_traced_noise_and_are_traced_once():
    traces = []

    @jitted
    def upper(noise, key):
        traces.append(1)
        run = separated(0.4, 3, 9, noise)
        return fdp.monte_carlo(run, key, **FEW).add.delta(epsilon=0.3)

    plain = fdp.monte_carlo(separated(0.4, 3, 9, 1.5), KEY, **FEW).add
    plain = plain.delta(epsilon=0.3)
    assert np.isclose(upper(1.5, KEY), plain, rtol=1e-9)
    assert upper(3.0, KEY) < upper(1.5, KEY)
    assert len(traces) == 1
    many = jax.vmap(lambda noise: upper(noise, KEY))(jnp.array([1.5, 3.0]))
    np.testing.assert_allclose(many, [upper(1.5, KEY), upper(3.0, KEY)], rtol=1e-9)


def test_samples_beyond_whole_chunks_count():
    run = separated(0.4, 3, 9)
    options = {"num_samples": 3000, "failure_prob": 1e-3}
    got = fdp.monte_carlo(run, KEY, chunk_size=700, **options).bounds(epsilon=0.3)
    other = fdp.monte_carlo(run, KEY, chunk_size=3000, **options).bounds(epsilon=0.3)
    assert got.num_samples == 3000
    assert got.lower < other.upper
    assert other.lower < got.upper


def test_both_directions_are_the_larger_one():
    run = separated(0.4, 3, 9)
    found = fdp.monte_carlo(run, KEY, **FEW)
    both, remove = found.bounds(epsilon=0.3), found.remove.bounds(epsilon=0.3)
    assert both.upper >= remove.upper  # half the probability for each direction
    assert both.estimate >= remove.estimate


def test_extreme_numbers():
    ask = lambda run: fdp.monte_carlo(run, KEY, **FEW)
    none = ask(separated(0.0, 3, 6)).bounds(epsilon=0.1)
    assert none.lower == none.estimate == 0
    assert none.upper < 2e-3
    silent = ask(separated(0.5, 3, 6, np.inf))
    assert silent.epsilon(delta=0.1) < 0.02
    loud = ask(separated(0.5, 3, 6, 0.05))
    assert loud.bounds(epsilon=0.5).upper > 0.8
    assert loud.bounds(delta=1e-3).upper > 100
    assert ask(separated(0.5, 3, 6)).epsilon(delta=1.0) == -np.inf


def test_the_smallest_deltas_too():
    # One batch of four, three times over: delta(epsilon) is nearly the Gaussian's at
    # epsilon + log 4, since no two of the four likelihood ratios are large at once.
    got = fdp.monte_carlo(dealt(12, 4), KEY, num_samples=2000).remove
    got = got.bounds(delta=1e-150)
    truth = fdp.Gaussian(1 / np.sqrt(3)).epsilon(delta=1e-150) - np.log(4)
    assert got.lower < truth < got.upper < truth + 0.2


def test_too_few_samples_give_what_is_proved_without_any():
    run = separated(0.5, 2, 12)
    got = fdp.monte_carlo(run, KEY, num_samples=1000).remove.bounds(delta=1e-12)
    every = fdp.monte_carlo(run, jax.random.key(1), num_samples=1000).remove
    assert got.upper == every.epsilon(delta=1e-12)  # whatever the samples are
    # No more than if the six participations at most were known.
    assert got.lower < got.upper < fdp.Gaussian(1 / np.sqrt(6)).epsilon(delta=1e-13)


def test_what_is_printed_says_how_sure_it_is():
    found = fdp.monte_carlo(separated(0.4, 3, 9), KEY, **FEW)
    words = "holds with probability 1 - 0.0001 over the key"
    assert words in repr(found)
    assert words in found.statement
    assert words in repr(found.bounds(epsilon=0.3))
    assert not isinstance(found, fdp.AbstractGuarantee)
    assert not isinstance(found.bounds(epsilon=0.3), fdp.Bounds)


def test_queries_without_a_proof_refuse():
    for run in (
        separated(0.4, 3, 9),
        fdp.MatrixMechanism(
            1.0, [1.0, 0.5], num_steps=8, sampling=MINSEP(0.4, min_separation=2)
        ),
        fdp.MatrixMechanism(
            1.0, [1.0, 0.5], num_steps=8, sampling=fdp.sampling.Poisson(0.4)
        ),
        fdp.MatrixMechanism(
            1.0,
            [1.0, 0.5, 0.2],
            num_steps=8,
            sampling=fdp.sampling.CyclicPoisson(0.4, num_groups=2),
        ),
    ):
        for ask in (
            lambda run: run.epsilon(delta=1e-5),
            lambda run: run.delta(epsilon=1.0),
            lambda run: run.beta(alpha=0.1),
            lambda run: run.bounds(delta=1e-5),
            lambda run: fdp.compose(run, fdp.Gaussian(1.0)).epsilon(delta=1e-5),
            lambda run: run.curve(),
        ):
            with pytest.raises(ValueError, match=r"ask fdp_jax\.monte_carlo"):
                ask(run)


NEGATIVE = fdp.MatrixMechanism(
    1.0, [1.0, -0.5], num_steps=8, sampling=MINSEP(0.4, min_separation=2)
)
WRONG = {
    "num_samples": (lambda: separated(0.4, 3, 9), {"num_samples": 10}, ValueError),
    "failure_prob": (lambda: separated(0.4, 3, 9), {"failure_prob": 0.0}, ValueError),
    "chunk_size": (lambda: separated(0.4, 3, 9), {"chunk_size": 0}, ValueError),
    "key": (lambda: separated(0.4, 3, 9), {"key": 3}, TypeError),
    "strategy must be at least 0": (lambda: NEGATIVE, {}, ValueError),
    "mechanism": (lambda: fdp.Gaussian(1.0), {}, TypeError),
    "mechanism must be a DPSGD": (
        lambda: fdp.MatrixMechanism(1.0, [1.0], num_steps=8),
        {},
        TypeError,
    ),
    "noise_multiplier of DPSGD": (
        lambda: fdp.DPSGD(sampling=MINSEP(0.4, min_separation=3), num_steps=4),
        {},
        ValueError,
    ),
    "prob of MinSeparation": (
        lambda: separated(None, 3, 4),
        {},
        ValueError,
    ),
    "num_steps must be a known whole": (
        lambda: fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=1.5),
        {},
        ValueError,
    ),
    "sampling must be MinSeparation": (
        lambda: fdp.DPSGD(
            noise_multiplier=1.0,
            sampling=fdp.sampling.UserLevel(0.1),
            num_steps=4,
        ),
        {},
        TypeError,
    ),
    "num_participations": (
        lambda: fdp.DPSGD(
            noise_multiplier=1.0,
            sampling=fdp.sampling.RandomAllocation(4, num_participations=2),
            num_steps=4,
        ),
        {},
        ValueError,
    ),
    "strategy must have fewer bands": (
        lambda: fdp.MatrixMechanism(
            1.0, np.ones(64), sampling=fdp.sampling.Poisson(0.4)
        ),
        {},
        ValueError,
    ),
    r"at most num_batches \+ 1": (
        lambda: fdp.MatrixMechanism(
            1.0, np.ones(16), sampling=fdp.sampling.RandomAllocation(4)
        ),
        {},
        ValueError,
    ),
    "group 1": (
        lambda: fdp.MatrixMechanism(
            1.0,
            np.diag([1.0, 2.0, 1.0, 2.0]),
            sampling=fdp.sampling.CyclicPoisson(0.4, num_groups=2),
        ),
        {},
        ValueError,
    ),
    "relation must be": (
        lambda: fdp.DPSGD(
            noise_multiplier=1.0, sampling_prob=0.1, num_steps=4, relation="replace_one"
        ),
        {},
        ValueError,
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_inputs_are_named(words):
    make, options, kind = WRONG[words]
    options = {"key": KEY, **options}
    with pytest.raises(kind, match=words):
        fdp.monte_carlo(make(), options.pop("key"), **options)


def test_wrong_questions_are_named():
    found = fdp.monte_carlo(separated(0.4, 3, 9), KEY, **FEW)
    for question, words in (
        ({"epsilon": np.inf}, "epsilon must be a finite number"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\]"),
        ({}, "epsilon or delta"),
        ({"epsilon": 1.0, "delta": 0.1}, "epsilon or delta"),
    ):
        with pytest.raises(ValueError, match=words):
            found.bounds(**question)
    with pytest.raises(ValueError, match="min_separation"):
        MINSEP(0.4, min_separation=0)
    with pytest.raises(ValueError, match="warm_start"):
        MINSEP(0.4, min_separation=2, warm_start=1)  # pyright: ignore
    with pytest.raises(ValueError, match="prob must be in"):
        MINSEP(1.4, min_separation=2)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        fdp.DPSGD(
            noise_multiplier=1.0,
            sampling=MINSEP(0.4, min_separation=2),
            num_steps=3,
            relation="replace_one",
        )


def test_traced_negative_entries_are_refused_too():
    @eqx.filter_jit
    def ask(column):
        scheme = MINSEP(0.4, min_separation=2)
        run = fdp.MatrixMechanism(1.0, column, num_steps=6, sampling=scheme)
        return fdp.monte_carlo(run, KEY, **FEW).remove.delta(epsilon=0.3)

    assert 0 < ask(jnp.array([1.0, 0.5])) < 1
    with pytest.raises(eqx.EquinoxRuntimeError, match="strategy must be at least 0"):
        ask(jnp.array([1.0, -0.5]))
