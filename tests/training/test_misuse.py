"""What makes a training less private than stated, refused or found out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax import training

RUN = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.5, num_steps=3)
PLAN = training.Plan(RUN, num_records=32, clipping=1.0)
DATA = jnp.asarray(np.random.default_rng(0).normal(size=(32, 2000)), jnp.float32)
ZERO = jnp.zeros(2000, jnp.float32)


def loss(weights, example):
    return weights @ example


def _means(plan, key, steps=1, rate=-1.0, data=DATA):
    """The private means of the first steps, which the weights are the sums of."""
    trainer = training.Trainer(plan, loss, optax.sgd(rate))
    state, found = trainer.init(jax.random.key(key), ZERO), []
    for _ in range(steps):
        before = np.asarray(state.model)
        state, _ = trainer.step(state, data)
        found.append(np.asarray(state.model) - before)
    return np.stack(found)


def test_microbatches_do_not_change_what_is_released():
    """Neither the noise nor the clipping is done once for each of them."""
    plans = [
        training.Plan(RUN, num_records=32, clipping=1.0, microbatch_size=n)
        for n in (1, 5, 32)
    ]
    first, *others = (_means(plan, 0) for plan in plans)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_the_mean_is_over_the_expected_and_not_the_physical_size():
    """Data sets of which most gradients are none have the same noise."""
    few = DATA.at[2:].set(jnp.nan)
    spread = [np.std(_means(PLAN, 1, data=x)) for x in (DATA, few)]
    expected = 1.0 / PLAN.expected_size
    assert spread[1] == pytest.approx(expected, rel=0.1)
    assert spread[0] < 1.3 * expected


def test_steps_of_one_run_have_no_noise_in_common_and_a_key_has_one_run():
    nothing = jnp.full_like(DATA, jnp.nan)
    steps = _means(PLAN, 2, 3, data=nothing)
    assert np.all(np.abs(np.corrcoef(steps) - np.eye(3)) < 5.5 / np.sqrt(2000))
    # Twice the same key: the difference would tell the data, as the page says.
    np.testing.assert_array_equal(_means(PLAN, 2, 3, data=nothing), steps)
    trainer = training.Trainer(PLAN, loss, optax.sgd(1.0))
    with pytest.raises(TypeError, match="single key"):
        trainer.init(jax.random.split(jax.random.key(0), 2), ZERO)


def test_the_relation_decides_on_the_account():
    """A replaced record moves the sum twice as far; no plan is for the wrong one."""
    scheme = fdp.sampling.FixedSize(batch_size=16, dataset_size=32)
    with pytest.raises(ValueError, match="relation must be"):
        fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=3)
    whole = lambda relation: training.Plan(
        fdp.DPSGD(
            noise_multiplier=2.0, sampling_prob=1.0, num_steps=4, relation=relation
        ),
        num_records=32,
        clipping=1.0,
    )
    for relation, mu in (("add_or_remove_one", 1.0), ("replace_one", 2.0)):
        found = whole(relation).after(4).beta(alpha=0.05)
        assert found == pytest.approx(float(fdp.Gaussian(1 / mu).beta(alpha=0.05)))


def test_accumulation_is_of_private_means_alone():
    accumulated: Any = optax.MultiSteps(optax.sgd(-1.0), 3)
    trainer = training.Trainer(PLAN, loss, accumulated)
    state = trainer.init(jax.random.key(0), ZERO)
    for _ in range(3):
        state, _ = trainer.step(state, DATA)
    # Three releases are counted, though there was one update.
    assert int(state.step) == 3
    np.testing.assert_allclose(state.model, _means(PLAN, 0, 3).mean(axis=0), atol=1e-5)


def test_more_steps_than_stated_are_refused():
    trainer = training.Trainer(PLAN, loss, optax.sgd(1.0))
    state = trainer.init(jax.random.key(0), ZERO)
    for _ in range(3):
        state, _ = trainer.step(state, DATA)
    with pytest.raises(Exception, match="all 3 steps of the plan"):
        jax.block_until_ready(trainer.step(state, DATA))
    with pytest.raises(ValueError, match="num_steps"):
        PLAN.after(4)


def test_plain_functions_of_arrays_are_enough():
    """A table of two classes, by `loss(params, example)` without any module."""
    datasets = pytest.importorskip("sklearn.datasets")
    table, labels = datasets.load_wine(return_X_y=True)
    table = ((table - table.mean(axis=0)) / table.std(axis=0)).astype(np.float32)
    data = jnp.asarray(table), jnp.asarray(labels)

    def cross_entropy(params, example):
        row, label = example
        logits = params["weights"] @ row + params["shift"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    run = fdp.DPSGD(noise_multiplier=2.0, sampling_prob=0.5, num_steps=60)
    plan = training.Plan(run, num_records=len(labels), clipping=1.0)
    # Of two precisions, where the shift is in float64.
    params = {"weights": jnp.zeros((3, 13), jnp.float32), "shift": jnp.zeros(3)}
    trained = training.fit(
        plan,
        cross_entropy,
        optax.sgd(0.5),
        params,
        data,
        key=jax.random.key(0),
        progress=False,
    )
    logits = data[0] @ trained.model["weights"].T + trained.model["shift"]
    assert np.mean(np.asarray(logits.argmax(axis=1)) == labels) > 0.85
