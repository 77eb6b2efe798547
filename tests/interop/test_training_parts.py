"""Clipping, noise and batches of other libraries beside those of `fdp.training`."""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from optax import contrib

import fdp_jax as fdp
from fdp_jax import training

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/training.md"
RANDOM = np.random.default_rng(8)
IMAGES = (3 * RANDOM.normal(size=(60, 5))).astype(np.float32)
DATA = jnp.asarray(IMAGES), jnp.asarray(RANDOM.integers(0, 4, 60))
WEIGHTS = {
    "matrix": jnp.asarray(RANDOM.normal(size=(4, 5)), jnp.float32),
    "shift": jnp.zeros(4, jnp.float32),
}
RUN = fdp.DPSGD(noise_multiplier=1.5, sampling_prob=0.25, num_steps=4)
PLAN = training.Plan(RUN, num_records=60, clipping=2.0)
INSIDE = np.asarray(PLAN.participants(jax.random.key(1), 0))


def loss(weights, example):
    image, label = example
    logits = weights["matrix"] @ image + weights["shift"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def _ours(inside=INSIDE):
    return training.gradient_sum(
        loss,
        WEIGHTS,
        DATA,
        jnp.asarray(inside),
        PLAN.clipping,
        PLAN.clipping.start(),
        microbatch_size=16,
    )


def _flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def _batch(inside=INSIDE):
    return jax.tree.map(lambda x: x[np.flatnonzero(inside)], DATA)


def test_optax_clips_to_the_same_sum():
    """But for our margin, by which norms are below what is stated."""
    _, gradients = training.per_example_gradients(loss, WEIGHTS, _batch())
    transform = contrib.differentially_private_aggregate(2.0, 0.0, 0)
    theirs, _ = transform.update(gradients, transform.init(WEIGHTS))
    ours, size = _ours(), INSIDE.sum()
    assert 0 < int(ours.kept) < size
    np.testing.assert_allclose(
        _flat(theirs) * size, _flat(ours.total), rtol=3e-5, atol=3e-5
    )


def test_noise_of_optax_has_the_same_deviation_and_another_divisor():
    """Theirs divides by the rows that are there, ours by the expected number."""
    wide: Any = {"w": jnp.zeros(20_000, jnp.float32)}
    rows = {"w": jnp.zeros((10, 20_000), jnp.float32)}
    other = contrib.differentially_private_aggregate(2.0, 1.5, 3)
    theirs, _ = other.update(rows, other.init(wide))
    nothing = training.GradientSum.zero(wide, PLAN.clipping, 2.0)
    own: Any = training.add_noise(PLAN, jax.random.key(3))
    ours, _ = own.update(nothing, own.init(wide))
    one, two = 10 * _flat(theirs), PLAN.expected_size * _flat(ours)
    # The deviation of 20,000 numbers is known to 1 / sqrt(40,000).
    for found in (one, two):
        assert np.std(found) == pytest.approx(1.5 * 2.0, rel=5 / 200)
    assert scipy.stats.ks_2samp(one, two)[1] > 1e-3  # pyright: ignore


def test_padded_rows_change_optax_s_mean():
    """Why the page asks for batches without padding: the noise is divided by more."""
    transform = contrib.differentially_private_aggregate(2.0, 1.5, 3)
    tall = {"w": jnp.zeros((10, 500), jnp.float32)}
    taller = {"w": jnp.zeros((40, 500), jnp.float32)}
    one, other = (
        transform.update(x, transform.init(jnp.zeros(())))[0] for x in (tall, taller)
    )
    np.testing.assert_allclose(_flat(one), 4 * _flat(other), rtol=1e-5)


@pytest.fixture
def theirs():
    """JAX-Privacy."""
    return pytest.importorskip("jax_privacy")


@pytest.mark.filterwarnings("ignore")
def test_jax_privacy_clips_to_the_same_sum_and_its_noise_is_the_plan_s(theirs):
    find = theirs.clipping.clipped_grad(loss, l2_clip_norm=2.0, keep_batch_dim=False)
    total = find(WEIGHTS, _batch())
    ours = _ours()
    np.testing.assert_allclose(_flat(total), _flat(ours.total), rtol=3e-5, atol=3e-5)
    # Under the relation of the plan a record moves their sum by the same norm.
    theirs_norm = find.sensitivity(neighboring_relation=_relation("ADD_OR_REMOVE_ONE"))
    assert float(ours.norm) == pytest.approx(theirs_norm)
    # Their sum takes our noise.
    own: Any = training.add_noise(PLAN, jax.random.key(0))
    mixed = training.GradientSum.rounded(total, PLAN.clipping, 2.0)
    mean, state = own.update(mixed, own.init(WEIGHTS))
    assert int(state.step) == 1
    assert jax.tree.structure(mean) == jax.tree.structure(WEIGHTS)
    wide = {"w": jnp.zeros(20_000, jnp.float32)}
    other = theirs.noise_addition.gaussian_privatizer(stddev=1.5 * 2.0, prng_key=4)
    noise, _ = other.update(wide, other.init(wide))
    expected = float(PLAN.noise_deviation(ours))
    assert np.std(_flat(noise)) == pytest.approx(expected, rel=5 / 200)


def _relation(name):
    return pytest.importorskip("dp_accounting").NeighboringRelation[name]


@pytest.mark.filterwarnings("ignore")
def test_batches_of_jax_privacy_have_the_plan_s_law(theirs):
    select, scheme = theirs.batch_selection, fdp.sampling.MinSeparation
    ours = scheme(0.3, min_separation=3)
    pairs = [
        (select.CyclicPoissonSampling(0.25, 400), fdp.sampling.Poisson(0.25)),
        (select.BMinSepSampling(0.3, 400, 3), ours),
    ]
    batches: list = []
    for other, own in pairs:
        batches = list(other.batch_iterator(60, rng=5))
        mean = float(own.expected_size(60))
        found = np.mean([len(x) for x in batches])
        assert found == pytest.approx(mean, abs=5 * np.sqrt(mean / 400))
        inside = np.isin(np.arange(60), batches[0])
        assert int(_ours(inside).size) == len(batches[0])
    # The same chances that a record comes again after so many steps.
    theirs_drawn = np.stack([np.isin(np.arange(60), x) for x in batches])

    def one(memory, step):
        mask, memory = ours.next_participants(
            jax.random.key(0), step, memory, num_records=60
        )
        return memory, mask

    drawn = np.asarray(jax.lax.scan(one, ours.memory(60), jnp.arange(400))[1])
    for lag in range(1, 6):
        chances = [np.mean(x[lag:] & x[:-lag]) for x in (theirs_drawn, drawn)]
        assert chances[0] == pytest.approx(chances[1], abs=0.015)
        assert (chances[1] == 0) == (lag < 3)


@pytest.mark.filterwarnings("ignore")
def test_the_page_s_example_runs(theirs):
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python jax_privacy\n(.*?)^```$", text, re.M | re.S)
    images = jnp.asarray(RANDOM.normal(size=(1500, 5)), jnp.float32)
    names = {
        **{"fdp": fdp, "jax": jax, "optax": optax, "of_weights": loss},
        **{"data": (images, jnp.zeros(1500, int)), "weights": WEIGHTS},
    }
    exec(block, names)
    assert np.any(_flat(names["weights"]) != _flat(WEIGHTS))
