"""The package's own training, audited: a thousand runs with and without a canary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax import audit, training

RUNS, STEPS, RECORDS = 500, 4, 8
STATED = fdp.DPSGD(noise_multiplier=0.8, sampling_prob=0.5, num_steps=STEPS)


def _loss(weights, example):
    return -weights @ example


@functools.cache
def _both(noise_multiplier):
    """How far the weights went in a direction that the canary alone has."""
    run = fdp.DPSGD(
        noise_multiplier=noise_multiplier, sampling_prob=0.5, num_steps=STEPS
    )
    plan = training.Plan(run, num_records=RECORDS, clipping=1.0)
    trainer = training.Trainer(plan, _loss, optax.sgd(1.0))
    others = np.zeros((RECORDS, 3))
    others[:-1, 1:] = np.random.default_rng(0).normal(size=(RECORDS - 1, 2))
    with_it, without = np.copy(others), np.copy(others)
    with_it[-1], without[-1] = [5.0, 0.0, 0.0], np.nan

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def score(key, data):
        state = trainer.init(key, jnp.zeros(3, jnp.float32))
        step = lambda _, state: trainer._step(state, data)[0]
        return jax.lax.fori_loop(0, STEPS, step, state).model[0]

    return [
        np.asarray(score(jax.random.split(jax.random.key(seed), RUNS), data))
        for seed, data in ((3, np.float32(with_it)), (4, np.float32(without)))
    ]


@pytest.fixture(scope="module")
def curve():
    return STATED.curve(num_points=33)


def test_no_bound_is_above_the_curve(curve):
    scores = audit.Scores(*_both(0.8))
    delta = 1e-5
    found = audit.epsilon_lower_bound(scores, delta=delta, confidence=0.999)
    truth = float(STATED.epsilon(delta=delta))
    assert 0.1 * truth < found <= truth
    points = audit.tradeoff_points(scores, confidence=0.999)
    inside = np.flatnonzero((points.alpha > 0) & (points.alpha < 1))[::4]
    assert inside.size > 20
    assert np.all(curve.beta(alpha=points.alpha[inside]) <= points.beta[inside])
    verdict = audit.falsifies(curve, scores, level=0.001)
    assert not verdict.falsified


def test_noise_that_was_halved_by_hand_is_found(curve):
    scores = audit.Scores(*_both(0.4))
    assert audit.falsifies(curve, scores, level=0.001).falsified


def test_canaries_are_in_by_fair_coins_and_empty_places_contribute_nothing():
    data = jnp.ones((40, 3)), jnp.arange(40)
    canaries = jnp.full((30, 3), 7.0), jnp.full(30, 9)
    (rows, labels), included = training.insert_canaries(
        jax.random.key(0), data, canaries
    )
    included = np.asarray(included)
    assert 7 < included.sum() < 23
    np.testing.assert_array_equal(rows[:10], 1)
    np.testing.assert_array_equal(rows[10:][included], 7)
    assert np.all(np.isnan(rows[10:][~included]))
    np.testing.assert_array_equal(labels[10:][included], 9)
    found = training.gradient_sum(
        _loss,
        jnp.zeros(3),
        rows,
        jnp.ones(40, bool),
        training.FlatClipping(1.0),
        jnp.ones(()),
        microbatch_size=16,
    )
    expected = -(10 + included.sum()) / np.sqrt(3)
    np.testing.assert_allclose(found.total, expected, rtol=1e-4)
    with pytest.raises(ValueError, match="at most as many as there are records, 40"):
        training.insert_canaries(jax.random.key(0), data, data_of(41))
    with pytest.raises(ValueError, match="floating-point numbers for empty places"):
        training.insert_canaries(jax.random.key(0), jnp.arange(5), jnp.arange(2))


def data_of(number):
    return jnp.ones((number, 3)), jnp.arange(number)


def test_scores_speak_for_membership():
    weights, examples = jnp.asarray([1.0, 2.0]), jnp.eye(2)
    np.testing.assert_allclose(
        training.loss_scores(_loss, weights, examples), [1.0, 2.0]
    )
    np.testing.assert_allclose(
        training.loss_scores(_loss, weights, examples, before=jnp.ones(2)), [0.0, 1.0]
    )
    mean = jnp.asarray([-3.0, 4.0])
    found = training.gradient_scores(_loss, weights, 2 * examples, mean)
    np.testing.assert_allclose(found, [3.0, -4.0])
