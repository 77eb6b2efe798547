"""Whole trainings: digits end to end, resumed, shared out over devices."""

import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy_dpsgd import accuracy, train
from scipy.special import ndtr, ndtri
from sklearn.datasets import load_digits

import fdp_jax as fdp
from fdp_jax import training

TARGET = fdp.targets.ApproxDP(epsilon=8.0, delta=1e-5)
WIDTH, NORM, RATE = 32, 1.0, 1.0


def _digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images / 16).astype(np.float32)[order]
    return images[:1500], labels[order][:1500], images[1500:], labels[order][1500:]


def _loss(model, example):
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(model(image), label)


def _model(seed):
    model = eqx.nn.MLP(64, 10, WIDTH, 1, key=jax.random.key(seed))
    wide = lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x
    return jax.tree.map(wide, model)


@pytest.fixture(scope="module")
def plan():
    return training.Plan.for_target(
        TARGET, num_records=1500, batch_size=250, num_epochs=30, clipping=NORM
    )


def test_plans_of_other_schemes():
    cyclic = fdp.sampling.CyclicPoisson(0.2, num_groups=2)
    fixed = fdp.sampling.FixedSize(batch_size=10, dataset_size=100)
    asked: dict[str, Any] = {"num_records": 100, "num_epochs": 2.05, "clipping": NORM}
    found = training.Plan.for_target(
        TARGET, sampling=cyclic, relation="zero_out", **asked
    )
    assert found.mechanism.relation is fdp.NeighboringRelation.ZERO_OUT
    assert found.num_steps == 21
    assert found.expected_size == 10
    noise: Any = found.mechanism.noise_multiplier
    epsilon = found.mechanism.epsilon(delta=1e-5)
    again = fdp.DPSGD(
        noise_multiplier=0.999 * noise,
        sampling=cyclic,
        num_steps=21,
        relation="zero_out",
    )
    assert epsilon <= 8.0 < again.epsilon(delta=1e-5)
    calls: list[dict[str, Any]] = [
        {},
        {"sampling": fixed, "batch_size": 10},
        {"sampling": 0.1},
    ]
    with pytest.raises(ValueError, match="must draw records"):
        training.Plan.for_target(TARGET, sampling=fdp.sampling.Poisson(0.0), **asked)
    for wrong in calls:
        with pytest.raises(ValueError, match="give batch_size"):
            training.Plan.for_target(TARGET, **asked, **wrong)


def test_digits_are_learned_as_well_as_by_numpy(plan):
    images, labels, *test = _digits()
    data = jnp.asarray(images), jnp.asarray(labels)
    noise = float(plan.mechanism.noise_multiplier)
    ours, theirs = [], []
    found = training.fit(
        plan,
        _loss,
        optax.sgd(RATE),
        _model(0),
        data,
        key=jax.random.key(0),
        progress=False,
    )
    models = [found.model]
    # The others step by step, by one program.
    trainer = training.Trainer(plan, _loss, optax.sgd(RATE))
    for seed in range(1, 4):
        state = trainer.init(jax.random.key(seed), _model(seed))
        for _ in range(plan.num_steps):
            state, _ = trainer.step(state, data)
        models.append(state.model)
    for seed, model in enumerate(models):
        guess = jax.vmap(model)(test[0]).argmax(axis=1)
        ours.append(float(np.mean(np.asarray(guess) == test[1])))
        weights = train(
            images,
            labels,
            noise=noise,
            prob=250 / 1500,
            steps=plan.num_steps,
            norm=NORM,
            rate=RATE,
            width=WIDTH,
            seed=seed,
        )
        theirs.append(accuracy(weights, *test))
    assert np.mean(theirs) > 0.7
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.02)
    assert float(found.mechanism.epsilon(delta=1e-5)) <= 8 * (1 + 1e-9)


def _same(one, other):
    plain = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    leaves = [
        [np.asarray(plain(x)) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]
        for tree in (one, other)
    ]
    return all(np.array_equal(x, y) for x, y in zip(*leaves, strict=True))


def test_a_training_goes_on_from_a_checkpoint_bit_by_bit(plan, tmp_path):
    images, labels, *_ = _digits()
    data = jnp.asarray(images), jnp.asarray(labels)
    traced = []

    def loss(model, example):
        traced.append(None)
        return _loss(model, example)

    trainer = training.Trainer(plan, loss, optax.adam(1e-2))
    state = trainer.init(jax.random.key(3), _model(3))
    once = 0
    stop = int(np.random.default_rng().integers(1, 19))
    file = tmp_path / "state"
    for step in range(20):
        state, _ = trainer.step(state, data)
        if step + 1 == stop:
            trainer.save(file, state)
        if step == 0:
            once = len(traced)
    # Batches of different sizes, and nothing is traced again.
    assert len(traced) == once
    again = training.Trainer(plan, _loss, optax.adam(1e-2))
    resumed = again.restore(file, again.init(jax.random.key(0), _model(0)))
    assert int(resumed.step) == stop
    for _ in range(20 - stop):
        resumed, _ = again.step(resumed, data)
    assert _same(state, resumed)
    assert plan.after(state.step).epsilon(delta=1e-5) == plan.after(20).epsilon(
        delta=1e-5
    )


def test_checkpoints_of_other_plans_and_damaged_ones_are_refused(plan, tmp_path):
    trainer = training.Trainer(plan, _loss, optax.sgd(0.1))
    state = trainer.init(jax.random.key(3), _model(3))
    file = tmp_path / "state"
    trainer.save(file, state)
    content = file.read_bytes()
    other = training.Plan(plan.mechanism, num_records=1500, clipping=0.5)
    with pytest.raises(ValueError, match="was written for another plan"):
        training.Trainer(other, _loss, optax.sgd(0.1)).restore(file, state)
    random = np.random.default_rng(0)
    for place in random.integers(0, len(content), 30):
        bad = bytearray(content)
        bad[place] ^= 1 << int(random.integers(8))
        file.write_bytes(bytes(bad))
        with pytest.raises(ValueError, match="state"):
            trainer.restore(file, state)


def test_a_training_stops_where_the_target_is_met(plan):
    images, labels, *_ = _digits()
    data = jnp.asarray(images), jnp.asarray(labels)
    until = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-5)
    seen = []
    found = training.fit(
        plan,
        _loss,
        optax.sgd(RATE),
        _model(0),
        data,
        key=jax.random.key(0),
        until=until,
        delta=1e-5,
        every=5,
        evaluate=lambda model: seen.append(model) or len(seen),
        progress=False,
    )
    steps = int(found.state.step)
    assert 1 < steps < plan.num_steps
    assert float(found.mechanism.epsilon(delta=1e-5)) <= 2
    assert float(plan.after(steps + 1).epsilon(delta=1e-5)) > 2
    assert [row["step"] for row in found.history[:2]] == [5, 10]
    for row in found.history:
        exact = float(plan.after(int(row["step"])).epsilon(delta=1e-5))
        assert exact <= row["epsilon"] * (1 + 1e-12)
        assert row["epsilon"] < 1.2 * exact
    assert len(seen) == len(found.history)


def test_the_number_of_steps_may_not_depend_on_the_data(plan):
    with pytest.raises(TypeError, match="learned from the data"):
        training.fit(
            plan,
            _loss,
            optax.sgd(0.1),
            _model(0),
            (jnp.zeros((1500, 64)), jnp.zeros(1500, int)),
            key=jax.random.key(0),
            until=lambda model: True,  # pyright: ignore
        )


def test_progress_inside_of_programs_is_a_bound(plan):
    spent = plan.progress(delta=1e-5, num_points=12)
    with pytest.raises(ValueError, match="at most the number of steps"):
        spent.at(plan.num_steps + 1)
    looked_up = jax.jit(lambda step: spent.at(step))
    exact = 0.0
    for step in (1, 2, 17, 100, plan.num_steps):
        exact = float(plan.after(step).epsilon(delta=1e-5))
        assert float(looked_up(step)) >= exact
    assert float(looked_up(plan.num_steps)) == pytest.approx(exact, rel=1e-6)
    alphas = np.asarray([0.01, 0.1, 0.5])
    whole = fdp.DPSGD(noise_multiplier=5.0, sampling_prob=1.0, num_steps=9)
    curve = training.Plan(whole, num_records=10, clipping=1.0).progress(alpha=alphas)
    for step in (1, 4, 9):
        found = jax.jit(lambda step: curve.at(step))(step)
        exact = ndtr(-ndtri(alphas) - np.sqrt(step) / 5)
        np.testing.assert_allclose(found, exact, rtol=1e-9)
        assert np.all(np.asarray(found) <= exact * (1 + 1e-15))


def _of(scheme, relation="replace_one"):
    return fdp.DPSGD(
        noise_multiplier=1.0, sampling=scheme, num_steps=10, relation=relation
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mechanism": fdp.Gaussian(1.0)}, TypeError, "must be a DPSGD or a Matrix"),
        (
            {"mechanism": fdp.DPSGD(sampling_prob=0.1, num_steps=3)},
            ValueError,
            "not set",
        ),
        ({"num_records": 0}, ValueError, r"num_records must be in \[1,"),
        ({"clipping": -1.0}, ValueError, r"norm must be in \[2\^-40, 2\^40\]"),
        ({"microbatch_size": 0}, ValueError, "microbatch_size must be in"),
        (
            {"mechanism": _of(fdp.sampling.FixedSize(batch_size=10, dataset_size=50))},
            ValueError,
            "num_records must be 50, the dataset_size of batches of 10, got 100",
        ),
        (
            {
                "mechanism": _of(
                    fdp.sampling.TruncatedPoisson(0.1, batch_size=9, dataset_size=60)
                )
            },
            ValueError,
            "num_records must be 60, the dataset_size of batches of at most 9, got 100",
        ),
        (
            {"mechanism": _of(fdp.sampling.ShuffledEpochs(30), "zero_out")},
            ValueError,
            "must be a multiple of num_batches = 30, got 100",
        ),
        (
            {"mechanism": _of(fdp.sampling.Poisson(1e-20), "zero_out")},
            ValueError,
            r"prob must be 0 or at least 2\^-64 for records to be drawn, got 1e-20",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(change, error, message):
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10)
    options = {"mechanism": run, "num_records": 100, "clipping": 1.0} | change
    with pytest.raises(error, match=message):
        training.Plan(**options)


def test_data_must_be_what_the_plan_says():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10)
    plan = training.Plan(run, num_records=100, clipping=1.0)
    trainer = training.Trainer(plan, lambda w, x: w * x, optax.sgd(0.1))
    state = trainer.init(jax.random.key(0), jnp.float32(0.0))
    with pytest.raises(ValueError, match="arrays of 100 records"):
        trainer.step(state, jnp.zeros(99))


def test_shuffled_batches_keep_their_own_guarantee():
    """The draw is the scheme's: nobody can shuffle and state Poisson sampling."""
    scheme = fdp.sampling.ShuffledEpochs(10)
    run = fdp.DPSGD(
        noise_multiplier=1.0, sampling=scheme, num_steps=20, relation="zero_out"
    )
    plan = training.Plan(run, num_records=100, clipping=1.0)
    key = jax.random.key(0)
    drawn = np.stack([plan.participants(key, i) for i in range(20)])
    np.testing.assert_array_equal(drawn[:10].sum(axis=0), 1)
    np.testing.assert_array_equal(drawn[10:].sum(axis=0), 1)
    poisson = fdp.DPSGD(
        noise_multiplier=1.0, sampling_prob=0.1, num_steps=20, relation="zero_out"
    )
    assert plan.mechanism.epsilon(delta=1e-5) > 1.8 * poisson.epsilon(delta=1e-5)
    with pytest.raises(ValueError, match="relation must be"):
        fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=20)


_DEVICES = """
import os, sys, tempfile
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=%d"
import jax
if %d > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize("localhost:%d", %d, int(sys.argv[1]))
import jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import fdp_jax as fdp

run = fdp.DPSGD(noise_multiplier=0.1, sampling_prob=0.5, num_steps=30)
plan = fdp.training.Plan(run, num_records=400, clipping=1.0)
mesh = Mesh(np.asarray(jax.devices()), ("data",))
loss = lambda w, x: jnp.sum(w * x)
trainer = fdp.training.Trainer(plan, loss, optax.sgd(1.0), mesh=mesh)
size = 20_000
state = trainer.init(jax.random.key(0), jnp.zeros(size))
# Every gradient along an axis of its own: all else is noise.
where = NamedSharding(mesh, P("data"))
rows = np.eye(400, size, dtype=np.float32)
data = jax.make_array_from_callback(rows.shape, where, lambda index: rows[index])

def drawn(before, after):
    told = (np.asarray(before) - np.asarray(after))[:400] * plan.expected_size > 0.5
    shards = told.reshape(len(jax.devices()), -1)
    # No two shards draw alike: a half agrees, by chance alone.
    for i, one in enumerate(shards):
        assert all(np.mean(one == x) < 0.8 for x in shards[:i])
    return told

first = state.model
state, seen = trainer.step(state, data)
told = drawn(first, state.model)
assert told.sum() == int(seen.size)
if %d == 1:
    with tempfile.TemporaryDirectory() as folder:
        trainer.save(folder + "/run", state)
        like = trainer.init(jax.random.key(0), first)
        resumed = trainer.restore(folder + "/run", like)
    after, other = (trainer.step(x, data)[0] for x in (resumed, state))
    assert np.array_equal(after.model, other.model)
    assert np.any(drawn(state.model, after.model) != told)
alone = [np.asarray(x.data) for x in state.model.addressable_shards]
weights = alone[0]
assert all(np.array_equal(alone[0], x) for x in alone)
noise = weights[400:] * plan.expected_size / 0.1
print(int(np.asarray(seen.size)), float(np.std(noise)), weights[1], len(jax.devices()))
"""


def _run_on(devices, processes):
    port = 20_000 + int(np.random.default_rng().integers(20_000))
    code = _DEVICES % (devices, processes, port, processes, processes)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    printed = []
    for process in started:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-2000:]
        printed.append(out.splitlines()[-1].split())
    return printed


@pytest.mark.parametrize(("devices", "processes"), [(4, 1), (1, 2)])
def test_devices_draw_among_their_own_and_the_noise_is_added_once(devices, processes):
    """Also after a checkpoint: else batches of all devices would be one, repeated."""
    found = _run_on(devices, processes)
    assert all(one == found[0] for one in found)
    size, spread, _, number = (float(x) for x in found[0])
    assert number == devices * processes
    assert 150 < size < 250
    # Of several noises it would be sqrt(number) times as much.
    assert spread == pytest.approx(1.0, rel=0.03)


def test_batches_with_a_least_separation_have_a_monte_carlo_certificate(tmp_path):
    scheme = fdp.sampling.MinSeparation(0.5, min_separation=4)
    run = fdp.DPSGD(noise_multiplier=2.0, sampling=scheme, num_steps=8)
    plan = training.Plan(run, num_records=60, clipping=1.0)
    assert plan.expected_size == pytest.approx(60 * 0.5 / 2.5)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("data",))
    data = jnp.eye(60, dtype=jnp.float32)
    loss = lambda w, x: jnp.sum(w * x)
    sizes, memories = [], []
    for shared in (None, mesh):
        trainer = training.Trainer(plan, loss, optax.sgd(0.0), mesh=shared)
        begin = lambda key, t=trainer: t.init(jax.random.key(key), jnp.zeros(60))
        state = begin(0)
        for step in range(8):
            state, seen = trainer.step(state, trainer.shard(data))
            sizes.append(int(seen.size))
            if step == 3 and shared is None:
                trainer.save(tmp_path / "state", state)
        memories.append(np.asarray(state.memory))
    # Nobody takes part more often than every fourth time.
    assert 0 < sum(sizes[:4]) <= 60
    assert np.ptp(memories) <= 3
    trainer = training.Trainer(plan, loss, optax.sgd(0.0))
    state = trainer.restore(
        tmp_path / "state", trainer.init(jax.random.key(1), jnp.zeros(60))
    )
    for _ in range(4):
        state, _ = trainer.step(state, data)
    np.testing.assert_array_equal(state.memory, memories[0])
    with pytest.raises(ValueError, match="like must be a state as in"):
        trainer.restore(
            tmp_path / "state", trainer.init(jax.random.key(1), jnp.zeros(61))
        )
    # No number is stated that was not proved.
    for ask in (plan.after(4).epsilon, lambda delta: plan.progress(delta=delta)):
        with pytest.raises(ValueError, match=r"fdp_jax\.monte_carlo"):
            ask(delta=1e-5)
    found = fdp.monte_carlo(plan.after(4), jax.random.key(0), num_samples=2000)
    assert 0 < found.delta(epsilon=0.5) < 1


def test_devices_cannot_draw_batches_of_a_fixed_size():
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("data",))
    scheme = fdp.sampling.FixedSize(batch_size=10, dataset_size=100)
    run = fdp.DPSGD(
        noise_multiplier=1.0, sampling=scheme, num_steps=5, relation="replace_one"
    )
    plan = training.Plan(run, num_records=100, clipping=1.0)
    with pytest.raises(ValueError, match="draw every record independently"):
        training.Trainer(plan, lambda w, x: w * x, optax.sgd(0.1), mesh=mesh)
