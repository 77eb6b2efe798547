"""The running accountant: a composition that may be added to inside of programs."""

import copy
import itertools
import json
import math
import os
import pathlib
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted
from scipy import integrate
from scipy.special import ndtr

import fdp_jax as fdp
from fdp_jax import NeighboringRelation

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
TARGET = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-5)


def _step(noise, prob):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=1)


def _run(noise, prob, steps):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


def _numbers(step):
    return [float(x) for x in jax.tree.leaves(step)]


def _same(one, other):
    """Whether two accountants have the same structure and bits."""
    alike = lambda x, y: x.dtype == y.dtype and np.array_equal(x, y)
    return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
        jax.tree.map(alike, one, other)
    )


def test_equal_settings_share_a_row_wherever_they_occur():
    accountant = fdp.Accountant()
    for noise in (1.1, 1.3, 1.1, 1.1, 1.3):
        accountant = accountant.step(_step(noise, 0.01), count=200)
    ((_, first), (_, second)) = accountant.history
    assert (first, second) == (600, 400)
    assert accountant.num_steps == 1000
    expected = fdp.compose(_run(1.1, 0.01, 600), _run(1.3, 0.01, 400))
    found = accountant.bounds(delta=1e-5)
    upper = float(expected.bounds(delta=1e-5).upper)
    assert float(found.upper) == pytest.approx(upper, rel=1e-12)
    # Known to twenty digits where all settings are one (tests/data/dpsgd_truth.json).
    alone = fdp.Accountant().step(_step(1.0, 0.01), 400).step(_step(1.0, 0.01), 600)
    truth = 1.8282366665
    assert float(alone.remove.bounds(delta=1e-5).estimate) == pytest.approx(
        truth, abs=1e-9
    )


def test_every_kind_of_mechanism_and_all_queries():
    # Of discrete and other noise, which has no characteristic function that decays.
    parts = fdp.DiscreteLaplace(2.0), fdp.PureDP(0.2), fdp.DiscreteLaplace(2.0)
    accountant = fdp.Accountant().step(fdp.compose(*parts))
    assert [n for _, n in accountant.history] == [2, 1]
    whole = fdp.compose(fdp.DiscreteLaplace(2.0).repeat(2), fdp.PureDP(0.2))
    for query in ({"delta": 1e-6}, {"epsilon": 0.5}):
        found, expected = accountant.bounds(**query), whole.bounds(**query)
        assert float(found.upper) == pytest.approx(float(expected.upper), rel=1e-9)
    # The loss is at most 2/2 + 1/5 there.
    assert float(accountant.epsilon(delta=0.0)) == pytest.approx(1.2, rel=1e-12)
    assert accountant.samplings() == frozenset()
    run = _run(1.0, 0.1, 3)
    assert accountant.step(run).samplings() == run.samplings()


def test_nothing_yet_and_steps_that_do_not_happen():
    for accountant in (
        fdp.Accountant(),
        fdp.Accountant().step(_step(1.0, 0.1), count=0),
        fdp.Accountant(relation=REPLACE_ONE),
    ):
        assert accountant.history == ()
        # Total variation 0 is all that there is.
        assert float(accountant.epsilon(delta=1e-5)) <= 0
        assert float(accountant.delta(epsilon=0.0)) == 0


@jitted
def _scan(accountant, noise):
    def one(accountant, noise):
        return accountant.step(_step(noise, 0.01)), None

    return jax.lax.scan(one, accountant, noise)[0]


def test_ten_thousand_steps_in_a_scan():
    noise = 1.0 + 0.1 * (jnp.arange(10_000) % 5)
    start = jax.tree.map(jnp.asarray, fdp.Accountant())
    found = _scan(start, noise)
    assert jax.tree.structure(found) == jax.tree.structure(start)
    assert [count for _, count in found.history] == [2000] * 5
    noises = [_numbers(step)[0] for step, _ in found.history]
    assert noises == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4], rel=1e-15)


def test_new_values_do_not_trace_again():
    traces = []

    @jitted
    def train(accountant, noise, prob):
        traces.append(1)
        return accountant.step(_step(noise, prob))

    accountant = fdp.Accountant()
    for i in range(20):
        accountant = train(accountant, 1.0 + i % 3, 0.01 * (1 + i % 2))
    assert len(traces) == 1
    assert sorted(count for _, count in accountant.history) == [3, 3, 3, 3, 4, 4]


def test_queries_inside_of_programs_and_their_slopes():
    """A slope in the noise reaches every step that had it, also merged ones."""

    def epsilon(noise):
        accountant = fdp.Accountant(capacity=2)
        for factor in (1.0, 2.0, 1.0):
            accountant = accountant.step(_step(factor * noise, 0.01), count=300)
        return accountant.epsilon(delta=1e-5)

    found, slope = jitted(jax.value_and_grad(epsilon))(1.1)
    expected = fdp.compose(_run(1.1, 0.01, 600), _run(2.2, 0.01, 300))
    assert float(found) == pytest.approx(float(expected.epsilon(delta=1e-5)), rel=1e-10)

    def whole(noise):
        runs = _run(noise, 0.01, 600), _run(2 * noise, 0.01, 300)
        return fdp.compose(*runs).epsilon(delta=1e-5)

    difference = (whole(1.1 + 1e-4) - whole(1.1 - 1e-4)) / 2e-4
    assert float(slope) == pytest.approx(float(difference), rel=1e-6)


def test_programs_without_64_bit_numbers_lose_no_digits():
    with jax.enable_x64(False):
        accountant = fdp.Accountant().step(_step(1.1, 256 / 60_000), count=1000)
        accountant = jitted(lambda a: a.step(_step(1.3, 0.01), count=2))(accountant)
        ((first, _), (second, _)) = accountant.history
        assert _numbers(first) == [1.1, 256 / 60_000]
        assert _numbers(second) == [1.3, 0.01]
        found = accountant.epsilon(delta=1e-5)
        assert found.dtype == np.float32
    whole = fdp.compose(_run(1.1, 256 / 60_000, 1000), _run(1.3, 0.01, 2))
    expected = float(whole.epsilon(delta=1e-5))
    assert expected <= float(found) <= expected * (1 + 3e-7)
    made = jax.tree.map(jnp.asarray, fdp.Accountant())
    with jax.enable_x64(False), pytest.raises(ValueError, match="64-bit"):
        jitted(lambda a: a.step(_step(1.0, 0.1)))(made)


def test_infinite_noise_and_other_numbers_of_few_digits():
    with jax.enable_x64(False):
        accountant = fdp.Accountant().step(_step(np.inf, 0.1)).step(_step(1e12, 1e-15))
        steps = [step for step, _ in accountant.history]
        with pytest.raises(ValueError, match="without 64-bit numbers"):
            accountant.step(_step(1e39, 0.1))
    assert list(map(_numbers, steps)) == [[np.inf, 0.1], [1e12, 1e-15]]


def test_remaining_steps_are_the_most_that_fit():
    accountant = fdp.Accountant().step(_step(1.1, 0.01), count=1000)
    left = accountant.remaining(TARGET, _step(1.1, 0.01))
    assert _run(1.1, 0.01, 1000 + left).epsilon(delta=1e-5) <= 2.0
    assert _run(1.1, 0.01, 1001 + left).epsilon(delta=1e-5) > 2.0
    # Ten at a time, another setting, and when all is spent.
    assert accountant.remaining(TARGET, _run(1.1, 0.01, 10)) == left // 10
    other = accountant.remaining(TARGET, _step(2.0, 0.01))
    runs = lambda n: fdp.compose(_run(1.1, 0.01, 1000), _run(2.0, 0.01, n))
    assert runs(other).epsilon(delta=1e-5) <= 2.0 < runs(other + 1).epsilon(delta=1e-5)
    assert accountant.step(_step(1.1, 0.01), 2000).remaining(TARGET, _step(1, 1)) == 0
    small = fdp.targets.ApproxDP(epsilon=1e-4, delta=1e-5)
    assert accountant.remaining(small, _step(1.1, 0.01)) == 0


def test_steps_without_numbers():
    """Nothing, or the record; two reports by the binomial law."""
    report = fdp.RandomizedResponse(1.0, relation="add_or_remove_one")
    truth = (np.exp(2) - np.exp(0.5)) / (1 + np.e) ** 2
    for step, found in (fdp.PerfectPrivacy(), truth), (fdp.BlatantNonPrivacy(), 1.0):
        accountant = fdp.Accountant().step(step).step(report, 2).step(step)
        delta = accountant.delta(epsilon=0.5, bound="estimate")
        np.testing.assert_allclose(delta, found, rtol=1e-9)
        left = np.inf if found == truth else 0
        assert fdp.Accountant().remaining(TARGET, step) == left


def test_remaining_steps_of_a_pure_budget():
    """Losses at their ends add up: .1 + 1/10 of 1 are spent, whatever comes."""
    accountant = fdp.Accountant().step(fdp.PureDP(0.1)).step(fdp.Laplace(10.0))
    budget = fdp.targets.ApproxDP(epsilon=1.0, delta=0.0)
    assert accountant.remaining(budget, fdp.PureDP(0.1)) == 8
    assert accountant.remaining(budget, fdp.Laplace(3.0)) == 2
    assert accountant.remaining(budget, fdp.Gaussian(50.0)) == 0
    small = fdp.targets.ApproxDP(epsilon=0.1, delta=0.0)
    assert accountant.remaining(small, fdp.PureDP(0.01)) == 0
    # log(1 + (e - 1) / 10) = .15856 each.
    sampled = fdp.PoissonSubsampled(fdp.Laplace(1.0), 0.1)
    assert fdp.Accountant().remaining(budget, sampled) == 6


def test_remaining_refuses_what_it_cannot_answer():
    """Any number of steps meets a delta of 1."""
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1.0)
    with pytest.raises(fdp.UnreachableTarget, match="delta must lie in"):
        fdp.Accountant().remaining(target, fdp.Laplace(3.0))


def test_spent_is_what_the_target_limits():
    accountant = fdp.Accountant().step(fdp.Gaussian(2.0), count=4)
    assert accountant.spent(TARGET).upper == accountant.epsilon(delta=1e-5)
    rates = fdp.targets.ErrorRates(alpha=0.1, beta=0.2)
    assert accountant.spent(rates).lower == accountant.beta(alpha=0.1)
    advantage = fdp.targets.Advantage(0.5)
    assert accountant.spent(advantage).upper == pytest.approx(
        float(accountant.advantage()), rel=1e-12
    )
    with pytest.raises(TypeError, match="MuGDP does not limit a single number"):
        accountant.spent(fdp.targets.MuGDP(1.0))


def test_sums_of_accountants():
    one = fdp.Accountant().step(_step(1.1, 0.01), 3).step(fdp.Laplace(9.0), 2)
    other = fdp.Accountant().step(_step(1.1, 0.01), 4).step(_step(1.2, 0.01), 5)
    expected = {(1.1, 7), (1.2, 5), (9.0, 2)}
    number = lambda step: _numbers(step)[0]
    for total in (one + other, other + one, jitted(lambda a, b: a + b)(one, other)):
        assert {(number(step), n) for step, n in total.history} == expected
    with pytest.raises(ValueError, match="must share one neighboring relation"):
        _ = one + fdp.Accountant(relation=REPLACE_ONE)
    # An accountant is a mechanism.
    assert one.step(other).num_steps == 14
    assert float(fdp.compose(one, other).epsilon(delta=1e-5)) == pytest.approx(
        float((one + other).epsilon(delta=1e-5)), rel=1e-9
    )


def test_more_settings_than_there_is_room_for():
    accountant = fdp.Accountant(capacity=2)
    for noise in (1.0, 2.0, 3.0):
        accountant = accountant.step(_step(noise, 0.1))
    assert len(accountant.history) == 3
    full = fdp.Accountant(capacity=2).step(_step(1.0, 0.1)).step(_step(2.0, 0.1))
    full = jax.tree.map(jnp.asarray, full)
    step = jitted(lambda a, noise: a.step(_step(noise, 0.1)))
    assert [n for _, n in step(full, 2.0).history] == [1, 2]
    # Masked steps of another setting change nothing.
    masked = jitted(lambda a, noise, count: a.step(_step(noise, 0.1), count))
    assert _same(masked(full, 3.0, 0), full)
    assert repr(full.step(_step(3.0, 0.1), 0).history) == repr(full.history)
    with pytest.raises(Exception, match=r"make it Accountant\(capacity=...\)"):
        jax.block_until_ready(step(full, 3.0))
    with pytest.raises(ValueError, match=r"make it Accountant\(capacity=...\)"):
        jitted(lambda: full.step(_step(3.0, 0.1)))()


@pytest.mark.parametrize(
    "wrong", [fdp.ZCDP, 1.0, _step(1.0, 0.1).remove, "dpsgd", None]
)
def test_only_mechanisms_are_steps(wrong):
    with pytest.raises(TypeError, match=r"takes mechanisms|must be a .*mechanism"):
        fdp.Accountant().step(wrong)


def _of_gaussian_and_laplace(epsilon, mu, most):
    """The delta of both, by quadrature over the losses of the second."""

    def delta(loss):
        x = epsilon - loss
        return ndtr(mu / 2 - x / mu) - np.exp(x) * ndtr(-mu / 2 - x / mu)

    def density(loss):
        return np.exp((loss - most) / 2) / 4 * delta(loss)

    ends = delta(most) / 2 + np.exp(-most) * delta(-most) / 2
    return ends + integrate.quad(density, -most, most, epsabs=1e-14)[0]


def test_guarantees_by_renyi_divergences_are_steps():
    """The better of both: of all divergences, and of a pair beside the privacy loss.

    Gaussian noise attains zCDP, so its composition is below; that zCDP of rho is what
    all of it allows is above.
    """
    laplace = fdp.Laplace(5.0)
    rho, count = 0.125, 4
    accountant = fdp.Accountant().step(laplace).step(fdp.ZCDP(rho), count)
    assert accountant.history[-1][1] == count
    known = fdp.compose(fdp.ZCDP(rho * count), laplace)
    found = accountant.bounds(delta=1e-5)
    assert found.upper <= known.bounds(delta=1e-5).upper
    assert _of_gaussian_and_laplace(found.upper, (2 * rho * count) ** 0.5, 0.2) <= 1e-5
    # Of the Laplace mechanism alone delta is 1 - e^((eps - 0.2) / 2).
    assert found.lower <= 0.2 + 2 * np.log1p(-1e-5)
    found = accountant.bounds(epsilon=0.5)
    assert found.upper <= known.bounds(epsilon=0.5).upper
    truth = _of_gaussian_and_laplace(0.5, (2 * rho * count) ** 0.5, 0.2)
    assert found.upper >= truth > 0.1
    assert found.lower == 0.0
    # Alone they are what their sum is: Canonne, Kamath, Steinke (2020).
    alone = fdp.Accountant().step(fdp.ZCDP(0.25)).step(fdp.ZCDP(0.125), count=2)
    assert float(alone.epsilon(delta=1e-6)) == pytest.approx(5.2215344, abs=1e-6)


def test_renyi_steps_beside_a_training():
    """A reference account by divergences alone has 1.9010, and 1.7087 is attained."""
    accountant = fdp.Accountant().step(_step(1.1, 0.01), 1000).step(fdp.ZCDP(0.02))
    assert 1.7087 <= float(accountant.epsilon(delta=1e-5)) < 1.79
    shared = fdp.ZCDP(0.1, shared=frozenset({fdp.mechanisms.Shared.NOISE}))
    with pytest.raises(ValueError, match="enter the run itself as a mechanism"):
        accountant.step(shared)


def test_renyi_steps_that_are_left():
    accountant = fdp.Accountant().step(fdp.Laplace(5.0)).step(fdp.ZCDP(0.02))
    target = fdp.targets.ApproxDP(epsilon=3.0, delta=1e-5)
    left = accountant.remaining(target, fdp.ZCDP(0.05))
    assert accountant.step(fdp.ZCDP(0.05), left).spent(target).upper <= 3.0
    assert accountant.step(fdp.ZCDP(0.05), left + 1).spent(target).upper > 3.0


def test_repeated_renyi_steps_add():
    """Twice an account is the account of both: divergences add, worst pairs do not."""
    laplace = fdp.Laplace(5.0)
    once = fdp.Accountant().step(laplace, 3).step(fdp.ZCDP(0.02))
    twice: Any = once.repeat(2)
    assert twice.history == (once + once).history
    none: Any = once.repeat(0)
    assert none.history == ()
    assert fdp.Accountant().step(laplace, 3).repeat(2).as_steps()[0][1] == 6
    many = once.repeat(2**31)  # more equal steps than an account has room for
    assert [count for _, count in many.as_steps()] == [3 * 2.0**31, 2.0**31]
    with pytest.raises(ValueError, match=r"num_steps must be .* got -1"):
        once.repeat(-1)


@pytest.mark.parametrize(
    "step",
    [
        fdp.Laplace,
        lambda x: fdp.ApproxDP(epsilon=1 / x, delta=1e-7),
        lambda x: fdp.compose(
            fdp.Accountant().step(_step(x, 0.1)).step(_step(2 * x, 0.1)),
            fdp.ExponentialMechanism(1 / x),
        ),
    ],
    ids=["Laplace", "ApproxDP", "account"],
)
def test_two_settings_of_any_kind_are_composed(step):
    """Also of kinds whose steps stand in one table, without a density to decay."""
    parts = step(4.0), step(2.0), step(4.0)
    accountant = fdp.Accountant(relation=parts[0].relation)
    for part in parts:
        accountant = accountant.step(part)
    found, known = accountant.bounds(delta=1e-5), fdp.compose(*parts).bounds(delta=1e-5)
    assert found.lower <= known.upper
    assert found.upper == pytest.approx(float(known.upper), rel=2e-5)


def test_responses_of_two_settings_by_enumeration():
    """Four outcomes, whose probabilities are products."""
    parts = [0.3, 0.7]
    accountant = fdp.Accountant(relation=REPLACE_ONE)
    for epsilon in parts:
        accountant = accountant.step(fdp.RandomizedResponse(epsilon))
    truth = 0.0
    for signs in itertools.product((1, -1), repeat=2):
        p = math.prod(
            1 / (1 + math.exp(s * e)) for s, e in zip(signs, parts, strict=True)
        )
        q = math.prod(
            1 / (1 + math.exp(-s * e)) for s, e in zip(signs, parts, strict=True)
        )
        truth += max(q - math.exp(0.5) * p, 0.0)
    found = accountant.bounds(epsilon=0.5)
    assert found.lower - 1e-7 <= truth <= found.upper + 1e-12
    assert found.upper == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize(
    "target",
    [
        TARGET,
        pytest.param(
            fdp.targets.ErrorRates(alpha=0.1, beta=0.5), marks=pytest.mark.slow
        ),
    ],
)
def test_renyi_steps_that_remain_beside_others(target):
    """As many as a query says, of either kind beside the other."""
    noise, zcdp = fdp.Gaussian(6.0), fdp.ZCDP(0.01)
    accountant = fdp.Accountant().step(noise, 2).step(fdp.Laplace(20.0)).step(zcdp)
    meets = lambda account: bool(target.is_met(account))
    for step in (noise, zcdp):
        left = accountant.remaining(target, step)
        assert meets(accountant.step(step, left))
        assert not meets(accountant.step(step, left + 1))
    assert fdp.Accountant().step(noise).remaining(target, fdp.ZCDP(0.0)) == np.inf


def test_curves_are_steps():
    """A curve stands for the pair that it allows; nothing is known to attain it."""
    gaussian = fdp.Gaussian(2.0)
    found = fdp.Accountant().step(gaussian.curve()).step(gaussian).bounds(delta=1e-5)
    truth = float(gaussian.repeat(2).epsilon(delta=1e-5))
    assert truth <= found.upper <= truth * 1.01
    assert found.lower <= float(gaussian.epsilon(delta=1e-5))


def _varied():
    shifts = fdp.MixtureOfGaussians(2.0, shifts=[0.0, 1.0], probs=[0.9, 0.1])
    return (
        fdp.Accountant(capacity=3)
        .step(_step(1.1, 256 / 60_000), 1000)
        .step(_step(1.3, 0.01), 5)
        .step(shifts, 2)
        .step(fdp.Laplace(1 / 3))
    )


@pytest.mark.parametrize("double", [True, False])
def test_saved_and_read_back_bit_by_bit(tmp_path, double):
    path = tmp_path / "run.json"
    with jax.enable_x64(double):
        for accountant in (
            fdp.Accountant(),
            _varied(),
            fdp.Accountant(relation=REPLACE_ONE).step(
                fdp.DPSGD(
                    noise_multiplier=1.0,
                    sampling_prob=0.1,
                    num_steps=3,
                    relation=REPLACE_ONE,
                )
            ),
            fdp.Accountant().step(fdp.PureDP(0.1)),
            fdp.Accountant().step(fdp.ZCDP(0.1), 3).step(fdp.RenyiDP([2.0], [0.5])),
        ):
            accountant.save(path)
            found = fdp.Accountant.load(path)
            assert _same(found, accountant)
            assert repr(found.history) == repr(accountant.history)
            assert found.relation is accountant.relation
            again = found + found.step(fdp.Gaussian(3.0, relation=found.relation))
            assert again.num_steps == 2 * accountant.num_steps + 1
    header = json.loads(path.read_text())
    assert header["version"] == 1
    assert header["content"]["relation"] == "add_or_remove_one"


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "run.json"
    _varied().save(path)
    data = path.read_bytes()
    generator = np.random.default_rng(1)
    places = generator.choice(len(data), 300, replace=False)
    for place, bit in zip(places, itertools.cycle(range(8)), strict=False):
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|version"):
            fdp.Accountant.load(path)
    for size in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="damaged"):
            fdp.Accountant.load(path)
    path.write_bytes(data.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(ValueError, match="has version 2, this is for 1"):
        fdp.Accountant.load(path)


def test_a_save_that_is_cut_off_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    old, new = fdp.Accountant().step(_step(1.0, 0.1)), _varied()
    old.save(path)
    size = path.stat().st_size
    descriptor = os.fdopen

    class _CutOff:
        """A file that takes some bytes, after which the process is no more."""

        def __init__(self, file, room):
            self.file, self.room = file, room

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.file.write(data[: self.room])
            self.file.flush()
            raise KeyboardInterrupt

    for room in np.random.default_rng(2).integers(0, 3 * size, 100):
        cut = lambda handle, mode, room=room: _CutOff(descriptor(handle, mode), room)
        monkeypatch.setattr(os, "fdopen", cut)
        with pytest.raises(KeyboardInterrupt):
            new.save(path)
        assert _same(fdp.Accountant.load(path), old)
    monkeypatch.undo()
    new.save(path)
    assert _same(fdp.Accountant.load(path), new)
    assert [x.name for x in tmp_path.iterdir()] == ["run.json"]


def test_leaves_of_a_checkpoint(tmp_path):
    path = tmp_path / "run.eqx"
    accountant = _varied()
    eqx.tree_serialise_leaves(path, accountant)
    template = jax.tree.map(np.zeros_like, accountant)
    assert _same(eqx.tree_deserialise_leaves(path, template), accountant)


class _Own(fdp.Gaussian):
    """A mechanism of a user's."""


def test_what_cannot_be_saved_is_named(tmp_path):
    path: pathlib.Path = tmp_path / "run.json"
    with pytest.raises(TypeError, match="got _Own"):
        fdp.Accountant().step(_Own(1.0)).save(path)
    with pytest.raises(ValueError, match="outside of jit"):
        jitted(lambda noise: fdp.Accountant().step(_step(noise, 0.1)).save(path))(1.0)
    assert not path.exists()


@pytest.mark.parametrize(
    "move", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy]
)
def test_accounts_are_copied_whole(move):
    account = _varied()
    found = move(account)
    assert _same(found, account)
    assert found.history == account.history
    # Equal steps share a row in the copy, too.
    step = account.history[0][0]
    assert found.step(step).history == account.step(step).history


_FEW = [((0.05, 1.2), (0.052, 1.2)), ((0.01, 1.0), (0.01, 0.9))]


def _delta_of_two(steps, epsilon):
    """Delta of one step of each (rate, noise), with the record.

    By Gauss-Legendre panels over what the first releases, in units of its noise, and
    the second's E (1 - e^(eps - l - L))_+ in closed form; to ten digits.
    """
    (q, s), (rate, noise) = steps
    nodes, weights = np.polynomial.legendre.leggauss(24)
    edges = np.linspace(-9.5, 12.0, 161)
    half = 0.5 * np.diff(edges)[:, None]
    x = (edges[:-1, None] + half * (1 + nodes)).ravel()
    ratio = 1 - q + q * np.exp(x / s - 0.5 / s**2)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * ratio
    left = epsilon - np.log(ratio)
    inner = (np.exp(left) - (1 - rate)) / rate
    place = noise * np.log(np.maximum(inner, 1e-300)) + 0.5 / noise
    power = (1 - rate) * ndtr(-place) + rate * ndtr(1 / noise - place)
    gain = power - np.exp(left) * ndtr(-place)
    gain = np.where(inner > 0, gain, 1 - np.exp(left))
    return float((half * weights).ravel() @ (density * gain))


@pytest.mark.parametrize("steps", _FEW)
def test_few_different_steps_are_tight(steps):
    account = fdp.Accountant()
    for q, s in steps:
        account = account.step(_step(s, q))
    schedule = fdp.Schedule(lambda q, s: _step(s, q), *np.asarray(steps, np.float64).T)
    with jax.enable_x64(True):
        for epsilon in (0.1, 0.7):
            truth = _delta_of_two(steps, epsilon)
            for subject in (account, schedule):
                found = subject.remove.bounds(delta=truth)
                assert found.status == fdp.Status.TIGHT
                assert found.lower - 1e-9 <= epsilon <= found.upper + 1e-9
                np.testing.assert_allclose(found.estimate, epsilon, rtol=1e-6)


def test_epsilon_of_an_account_grows():
    account, before = fdp.Accountant(), 0.0
    for q in np.linspace(0.05, 0.068, 10):
        account = account.step(_step(1.2, q))
        found = account.bounds(delta=1e-5)
        assert found.status == fdp.Status.TIGHT
        assert before < found.lower
        before = float(found.upper)


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e8])
def test_what_steps_leave_out_counts_in_accounts(offset):
    # Lists of so many counts do not reach both tails of a large mean.
    steps = [fdp.PoissonMechanism(x * offset, gain=0.3 * offset**0.5) for x in (1, 1.1)]
    account = fdp.Accountant().step(steps[0]).step(steps[1])
    with jax.enable_x64(True):
        # Nearly the Gaussian mechanism, of which mu^2 adds.
        mu = 0.3 * math.sqrt(1 + 1 / 1.1)
        truth = float(fdp.Gaussian(1 / mu).epsilon(delta=1e-6))
        for method in ("auto", "grid", "contour"):
            found = account.using(method).bounds(delta=1e-6)
            assert found.upper > 0.97 * truth
            assert found.lower < 1.03 * truth
        own, apart = account.loss(), fdp.compose(*steps).loss()
        for mass in ("log_truncated_mass", "log_infinite_mass"):
            for sign in (1.0, -1.0):
                one, other = (getattr(x, mass)(jnp.asarray(sign)) for x in (own, apart))
                assert one >= other - 1e-12
