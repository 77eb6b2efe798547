"""Sums of clipped gradients against NumPy, whatever the size of a batch."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy_dpsgd import clipped_sum, per_example_gradients

import fdp_jax as fdp
from fdp_jax import training
from fdp_jax.training._gradients import _clipped_sum

RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.normal(size=(40, 6)).astype(np.float32)
LABELS = RANDOM.integers(0, 10, 40)
DATA = jnp.asarray(IMAGES), jnp.asarray(LABELS)
WEIGHTS = [
    RANDOM.normal(size=s).astype(np.float32) for s in ((5, 6), (5,), (10, 5), (10,))
]
FLAT = training.FlatClipping(1.0)


def loss(weights, example):
    w1, b1, w2, b2 = weights
    image, label = example
    logits = w2 @ jax.nn.relu(w1 @ image + b1) + b2
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


@eqx.filter_jit
def _summed(mask, clipping, norm, width, data, model):
    return training.gradient_sum(
        loss, model, data, mask, clipping, norm, microbatch_size=width
    )


def _sum(participants, clipping, norm=1.0, width=8, data=DATA, model=WEIGHTS):
    mask, norm = jnp.asarray(participants), jnp.float32(norm)
    return _summed(mask, clipping, norm, width, data, model)


@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("size", [0, 1, 13, 40])
def test_the_sum_is_that_of_numpy_however_it_is_cut(width, size):
    mask = np.zeros(40, bool)
    mask[RANDOM.permutation(40)[:size]] = True
    found = _sum(mask, training.FlatClipping(1.0), width=width)
    expected = clipped_sum(
        per_example_gradients(WEIGHTS, IMAGES[mask], LABELS[mask]), 1.0
    )
    for one, other in zip(found.total, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-4)
    assert int(found.size) == size
    lengths = _lengths(per_example_gradients(WEIGHTS, IMAGES[mask], LABELS[mask]))
    assert int(found.kept) == np.sum(lengths <= 1.0)


def _lengths(gradients):
    squares = [np.sum(np.square(g), axis=tuple(range(1, g.ndim))) for g in gradients]
    return np.sqrt(sum(squares))


@pytest.mark.parametrize(
    "clipping",
    [
        training.FlatClipping(0.5),
        training.PerLayerClipping(0.5),
        training.AutomaticClipping(),
        training.AdaptiveClipping(0.5, count_noise=10.0),
    ],
)
def test_one_record_moves_the_sum_no_farther_than_stated(clipping):
    norm = clipping.start()
    most = float(clipping.sensitivity(norm, 4))
    scales = 10.0 ** RANDOM.uniform(-6, 6, size=300)
    gradients = [
        scales.reshape(-1, *[1] * w.ndim) * RANDOM.normal(size=(300, *w.shape))
        for w in WEIGHTS
    ]
    gradients = [jnp.asarray(x.astype(np.float32)) for x in gradients]
    ones = jnp.ones(300, bool)
    like = training.GradientSum.zero(WEIGHTS, clipping, norm)
    losses = jnp.zeros(300, jnp.float32)

    @jax.jit
    def clipped(losses, rows, flags):
        return _clipped_sum(losses, rows, flags, clipping, like)

    found = clipped(losses, gradients, ones)

    def one(loss, *gradients):
        rows = [x[None] for x in gradients]
        found = clipped(loss[None], rows, ones[:1])
        return found.total, found.kept > 0

    each: Any = jax.jit(jax.vmap(one))(losses, *gradients)
    alone, kept = each
    # In double precision, as an attacker would.
    lengths = _lengths([np.asarray(g, np.float64) for g in alone])
    assert np.all(lengths <= most)
    assert lengths.max() > 0.99 * most
    for total, other in zip(found.total, alone, strict=True):
        double = np.asarray(other, np.float64).sum(axis=0)
        np.testing.assert_allclose(total, double, rtol=1e-6, atol=1e-6)
    assert int(found.kept) == kept.sum()
    before = _lengths([np.asarray(g, np.float64) for g in gradients])
    np.testing.assert_allclose(lengths[kept], before[kept], rtol=1e-5, atol=1e-7)


def test_what_is_measured_is_computed_once():
    """XLA would find a cheap gradient twice, for its length and for the sum."""
    ask = lambda w, x, inside: training.gradient_sum(
        lambda w, x: w @ jnp.floor(x),
        w,
        x,
        inside,
        training.FlatClipping(1.0),
        jnp.float32(1),
        microbatch_size=8,
    )
    rows, inside = jnp.zeros((20, 1000), jnp.float32), jnp.ones(20, bool)
    text = jax.jit(ask).lower(rows[0], rows, inside).compile().as_text()
    # For the loss and for the gradient.
    assert 1 <= str(text).count(" floor(") <= 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_not_finite_contribute_nothing(bad):
    images = IMAGES.copy()
    images[5] = bad
    mask = np.zeros(40, bool)
    mask[3:9] = True
    without = mask.copy()
    without[5] = False
    data = jnp.asarray(images), DATA[1]
    for clipping in (training.FlatClipping(1.0), training.AutomaticClipping()):
        found, expected = (_sum(m, clipping, data=data) for m in (mask, without))
        assert int(found.size) == int(expected.size) == 5
        for one, other in zip(found.total, expected.total, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_frozen_leaves_get_no_gradients():
    """As in a fine-tuning by low-rank matrices of a network that stays as it is."""
    base = eqx.nn.Linear(6, 10, key=jax.random.key(0))
    model = {"base": base, "left": jnp.ones((10, 2)), "right": jnp.zeros((2, 6))}

    def adapted(model, example):
        image, label = example
        logits = model["base"](image) + model["left"] @ (model["right"] @ image)
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    run = fdp.DPSGD(noise_multiplier=0.5, sampling_prob=0.5, num_steps=5)
    plan = training.Plan(run, num_records=40, clipping=1.0)
    trainer = training.Trainer(
        plan,
        adapted,
        optax.adam(0.1),
        trainable={"base": False, "left": True, "right": True},
    )
    state = trainer.init(jax.random.key(1), model)
    sizes = [x.size for x in jax.tree.leaves(state.optimizer[1][0].mu)]
    assert sorted(sizes) == [12, 20]
    state, _ = trainer.step(state, DATA)
    np.testing.assert_array_equal(state.model["base"].weight, base.weight)
    assert np.any(np.asarray(state.model["right"]) != 0)


def test_losses_that_draw_get_a_key_for_every_example():
    def noisy(weight, example, key):
        return weight * jax.random.normal(key) + 0 * example

    ask = jax.jit(lambda *args: training.per_example_gradients(noisy, *args))
    weight, records = jnp.float32(1.0), jnp.zeros(1000, jnp.float32)
    _, slopes = ask(weight, records, jax.random.key(7))
    assert len(np.unique(slopes)) == 1000
    assert abs(np.std(slopes) - 1) < 0.1


@eqx.filter_jit
def _sum_of(records, flags, rule=FLAT, norm=1.0):
    loss = lambda w, x: jnp.sum(jnp.stack(w)) * x[0]
    model = [jnp.zeros(1)] * 16
    return training.gradient_sum(
        loss, model, records, flags, rule, jnp.float32(norm), microbatch_size=2
    )


@pytest.mark.parametrize(
    ("rows", "flags", "error", "message"),
    [
        (4, np.ones(6, bool), ValueError, "one row for each .* 6, got 4 rows"),
        (4, np.ones(3, bool), ValueError, "one row for each .* 3, got 4 rows"),
        (4, np.ones(4), TypeError, "participants must be flags, got float"),
    ],
)
def test_records_are_as_many_as_flags(rows, flags, error, message):
    """Others would be counted several times, or never."""
    with pytest.raises(error, match=message):
        _sum_of(jnp.ones((rows, 1)), jnp.asarray(flags))


def test_the_rule_that_bounded_a_sum_is_paid_for():
    """Whatever rule the plan has: one record moves this sum by four norms."""
    flags, ones = jnp.ones(4, bool), jnp.ones((4, 1))
    rule = training.PerLayerClipping(1.0)
    one, other = (_sum_of(x, flags, rule) for x in (ones, ones.at[0].set(0.0)))
    leaves = zip(jax.tree.leaves(one.total), jax.tree.leaves(other.total), strict=True)
    moved = math.sqrt(sum(float(jnp.sum((x - y) ** 2)) for x, y in leaves))
    assert moved == pytest.approx(4.0, rel=1e-5)
    run = fdp.DPSGD(noise_multiplier=1.5, sampling_prob=1.0, num_steps=5)
    plan = training.Plan(run, num_records=4, clipping=1.0)
    assert float(plan.noise_deviation(one)) >= 1.5 * moved
    flat = _sum_of(ones, flags)
    assert float(plan.noise_deviation(flat)) == pytest.approx(1.5, rel=1e-5)
    assert float(plan.noise_deviation(flat.plus(flat))) == float(
        plan.noise_deviation(flat)
    )
    with pytest.raises(ValueError, match=r"sum in units of .*, got"):
        flat.plus(_sum_of(ones, flags, norm=4.0))


def test_what_was_spent_after_a_number_that_is_not_whole():
    run = fdp.DPSGD(noise_multiplier=1.5, sampling_prob=0.5, num_steps=5)
    plan = training.Plan(run, num_records=4, clipping=1.0)
    for steps in (2, np.int32(2), jnp.asarray(2), 2.0):
        after: Any = plan.after(steps)
        assert after.num_steps == 2
    for steps in (2.9, jnp.float32(2.7), "3", True, math.nan, None, 6, -1):
        with pytest.raises(ValueError, match="num_steps must be"):
            plan.after(steps)
