"""Noise: its law, where it goes, and what is refused."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import fdp_jax as fdp
from fdp_jax import training

SIZE = 2000
RUN = fdp.DPSGD(noise_multiplier=1.5, sampling_prob=0.1, num_steps=1000)
PLAN = training.Plan(RUN, num_records=500, clipping=2.0)


def _nothing(norm, size=SIZE, clipping=PLAN.clipping):
    like = {"w": jnp.zeros(size, jnp.float32)}
    return training.GradientSum.zero(like, clipping, norm)


def _released(plan, steps, norm=2.0, key=0, size=SIZE):
    transform: Any = training.add_noise(plan, jax.random.key(key))
    state = transform.init({"w": jnp.zeros(size, jnp.float32)})
    update = jax.jit(transform.update)
    found = []
    for _ in range(steps):
        mean, state = update(_nothing(norm, size), state)
        found.append(np.asarray(mean["w"], np.float64))
    return np.stack(found), state


def test_the_noise_is_on_the_sum_and_the_mean_over_the_expected_size():
    found, state = _released(PLAN, 20)
    expected = 1.5 * 2.0 / 50
    # The deviation of 40,000 numbers is known to 1 / sqrt(80,000).
    assert np.std(found) == pytest.approx(expected, rel=5 / np.sqrt(80_000))
    assert scipy.stats.kstest(found.ravel() / expected, "norm").pvalue > 1e-3
    assert int(state.step) == 20
    # No two steps, and no two keys, have noise in common.
    other, _ = _released(PLAN, 20, key=1)
    both = np.concatenate([found, other])
    assert np.all(np.abs(np.corrcoef(both) - np.eye(40)) < 5.5 / np.sqrt(SIZE))


def test_per_layer_norms_add_up():
    plan = training.Plan(RUN, num_records=500, clipping=training.PerLayerClipping(2.0))
    parts = {name: jnp.zeros(SIZE, jnp.float32) for name in "abcd"}
    found = training.GradientSum.zero(parts, plan.clipping, 2.0)
    assert float(plan.noise_deviation(found)) == pytest.approx(1.5 * 4.0, rel=1e-5)


def test_what_adaptive_clipping_tells_is_paid_for():
    """Both releases together are one Gaussian one: squares of mu add up."""
    rule = training.AdaptiveClipping(2.0, count_noise=6.0)
    plan = training.Plan(RUN, num_records=500, clipping=rule)
    deviation = float(plan.noise_deviation(_nothing(2.0)))
    mu_gradient, mu_count = 2.0 / deviation, 0.5 / 6.0
    assert mu_gradient**2 + mu_count**2 == pytest.approx(1 / 1.5**2, rel=1e-5)
    with pytest.raises(ValueError, match=r"half the noise multiplier, 0\.75, got 0\.7"):
        training.Plan(
            RUN,
            num_records=500,
            clipping=training.AdaptiveClipping(2.0, count_noise=0.7),
        )


def _largest_mu(plan, deviation, steps, rule, apart):
    """Of what the first steps tell together, over all patterns of a record: by algebra.

    The noise of the sums has the covariance C^-1 C^-T, that of the counts is
    independent; a record moves the sums of its steps by the norm, the counts by 1/2.
    """
    column = plan.correlation()
    n = steps
    strategy = sum(c * np.eye(n, k=-i) for i, c in enumerate(column[:n]) if abs(c) > 0)
    inverse = np.linalg.inv(strategy)
    cov = np.zeros((2 * n, 2 * n))
    cov[:n, :n] = deviation**2 * inverse @ inverse.T
    cov[n:, n:] = float(rule.count_noise) ** 2 * np.eye(n)
    worst = 0.0
    for pattern in itertools.product((0, 1), repeat=n):
        places = np.flatnonzero(pattern)
        if np.any(np.diff(places) < apart) or not len(places):
            continue
        shift = np.concatenate([2.0 * np.asarray(pattern), 0.5 * np.asarray(pattern)])
        worst = max(worst, shift @ np.linalg.solve(cov, shift))
    return np.sqrt(worst)


@pytest.mark.parametrize(
    ("column", "apart"),
    [([0.1], 1), ([0.5, 0.2], 2), ([0.3, 0.3, 0.3], 3), ([1.0, 0.5, 0.25], 1)],
)
def test_counts_beside_correlated_noise_are_paid_for_after_every_step(column, apart):
    """Also of strategies that move less than the counts do."""
    steps, rule = 6, training.AdaptiveClipping(2.0, count_noise=8.0)
    run = fdp.MatrixMechanism(
        1.5,
        column,
        num_steps=steps,
        min_separation=apart,
        max_participations=6 // apart,
    )
    plan = training.Plan(run, num_records=60, clipping=rule)
    deviation = float(plan.noise_deviation(_nothing(2.0, clipping=rule)))
    for n in range(1, steps + 1):
        found = _largest_mu(plan, deviation, n, rule, apart)
        begun: Any = plan.after(n)
        stated = float(begun.sensitivity()) / 1.5
        assert found <= stated
        if n == 1:
            assert found == pytest.approx(stated, rel=1e-5)
    # Without what is paid for the counts it would be more.
    begun: Any = plan.after(1)
    unpaid = _largest_mu(plan, 1.5 * 2.0, 1, rule, apart)
    assert unpaid > float(begun.sensitivity()) / 1.5


def test_counts_that_leak_more_than_is_stated_are_refused():
    run = fdp.MatrixMechanism(
        1.0, [0.1], num_steps=10, min_separation=1, max_participations=10
    )
    rule = training.AdaptiveClipping(1.0, count_noise=0.6)
    with pytest.raises(ValueError, match=r"half the noise multiplier, 5, got 0\.6"):
        training.Plan(run, num_records=10, clipping=rule)
    # Where no theorem covers what is told together.
    rule = training.AdaptiveClipping(1.0, count_noise=60.0)
    schemes = [
        fdp.sampling.MinSeparation(0.3, min_separation=4),
        fdp.sampling.CyclicPoisson(0.3, num_groups=2),
    ]
    for scheme in schemes:
        run = fdp.MatrixMechanism(1.0, [1.0, 0.5, 0.2], num_steps=10, sampling=scheme)
        training.Plan(run, num_records=10, clipping=1.0)
        with pytest.raises(ValueError, match="no theorem covers both"):
            training.Plan(run, num_records=10, clipping=rule)
    scheme = fdp.sampling.CyclicPoisson(0.3, num_groups=3)
    run = fdp.MatrixMechanism(1.0, [1.0, 0.5, 0.2], num_steps=10, sampling=scheme)
    training.Plan(run, num_records=12, clipping=rule)


def test_the_adaptive_norm_follows_the_quantile():
    """All gradients have length 3: the norm goes there for any quantile."""
    run = fdp.DPSGD(noise_multiplier=0.1, sampling_prob=0.5, num_steps=300)
    rule = training.AdaptiveClipping(0.1, count_noise=5.0, learning_rate=0.1)
    plan = training.Plan(run, num_records=1000, clipping=rule)
    loss = lambda w, x: jnp.sum(w * x)
    trainer = training.Trainer(plan, loss, optax.sgd(0.0))
    data = jnp.tile(jnp.asarray([[3.0, 0.0]], jnp.float32), (1000, 1))
    state = trainer.init(jax.random.key(0), jnp.zeros(2, jnp.float32))
    for _ in range(300):
        state, _ = trainer.step(state, data)
    assert 2.5 < float(state.noise.norm) < 3.6


@pytest.mark.parametrize("column", [[1.0, 0.5, 0.25], [2.0, -0.6]])
def test_correlated_noise_is_the_inverse_of_the_strategy(column):
    n = 6
    scheme = fdp.sampling.CyclicPoisson(0.5, num_groups=3)
    run = fdp.MatrixMechanism(1.5, column, num_steps=n, sampling=scheme)
    plan = training.Plan(run, num_records=300, clipping=2.0)
    found, _ = _released(plan, n, size=100_000)
    strategy = sum(c * np.eye(n, k=-i) for i, c in enumerate(column))
    inverse = np.linalg.inv(strategy)
    expected = (1.5 * 2.0 / plan.expected_size) ** 2 * inverse @ inverse.T
    # Covariances of 100,000 pairs.
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) * 2 / 100_000)
    assert np.all(np.abs(np.cov(found) - expected) < 5 * spread)


@pytest.mark.parametrize(
    "wrong",
    [
        {"w": jnp.zeros(SIZE)},
        jnp.zeros(3),
        None,
    ],
)
def test_noise_on_a_mean_is_refused(wrong):
    transform: Any = training.add_noise(PLAN, jax.random.key(0))
    state = transform.init({"w": jnp.zeros(SIZE, jnp.float32)})
    with pytest.raises(TypeError, match="before it is averaged or accumulated"):
        transform.update(wrong, state)


def test_accumulated_means_are_refused_and_accumulated_updates_are_accounted():
    """`optax.MultiSteps` outside would add gradients; inside it gets private means."""
    noise: Any = training.add_noise(PLAN, jax.random.key(0))
    accumulated: Any = optax.MultiSteps(optax.sgd(0.1), 4)
    within: Any = optax.chain(noise, accumulated)
    params = {"w": jnp.zeros(SIZE, jnp.float32)}
    state = within.init(params)
    for _ in range(4):
        _, state = within.update(_nothing(2.0), state, params)
    assert int(state[0].step) == 4
    outside: Any = optax.MultiSteps(optax.chain(noise, optax.sgd(0.1)), 4)
    with pytest.raises((TypeError, ValueError)):
        outside.update(_nothing(2.0), outside.init(params), params)


def test_no_step_after_the_last_one():
    run = fdp.DPSGD(noise_multiplier=1.5, sampling_prob=0.1, num_steps=2)
    plan = training.Plan(run, num_records=500, clipping=2.0)
    transform: Any = training.add_noise(plan, jax.random.key(0))
    state = transform.init({"w": jnp.zeros(SIZE, jnp.float32)})
    update = eqx.filter_jit(transform.update)
    for _ in range(2):
        _, state = update(_nothing(2.0), state)
    with pytest.raises(
        eqx.EquinoxRuntimeError, match=r"all 2 steps of the plan.*a step after 2"
    ):
        jax.block_until_ready(update(_nothing(2.0), state))


def test_sums_of_other_libraries_are_rounded_to_units():
    total = {"w": jnp.asarray([3.25, -1e-3, 0.0, 2.0**20], jnp.float32)}
    found = training.GradientSum.rounded(total, PLAN.clipping, 2.0)
    assert float(found.unit) == 2.0**-26
    np.testing.assert_allclose(found.total["w"], total["w"], atol=2.0**-27, rtol=0)
    transform: Any = training.add_noise(PLAN, jax.random.key(0))
    mean, _ = transform.update(found, transform.init(total))
    assert np.all(np.abs(mean["w"] * PLAN.expected_size - total["w"]) < 30)


def test_a_traced_norm_out_of_range_is_refused_before_it_is_released():
    transform: Any = training.add_noise(PLAN, jax.random.key(0))
    state = transform.init({"w": jnp.zeros(SIZE, jnp.float32)})
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"norm must be in \[2\^-40"):
        eqx.filter_jit(lambda norm: transform.update(_nothing(norm), state))(
            jnp.float32(0)
        )


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (0, "key must be a key of jax.random.key, got 0"),
        (jnp.zeros(2, jnp.uint32), "key must be a key of"),
        (jax.random.split(jax.random.key(0), 3), "single key, got an array of shape"),
    ],
)
def test_other_keys_are_refused(key, message):
    with pytest.raises(TypeError, match=message):
        training.add_noise(PLAN, key)
