"""Trainings in files: what is in them, what is refused, what a later version reads."""

import dataclasses
import hashlib
import itertools
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax import training
from fdp_jax._internal._tolerances import SAME_NOISE

RUN = fdp.DPSGD(noise_multiplier=1.3, sampling_prob=0.1, num_steps=20)


class Model(eqx.Module):
    weights: jax.Array
    layers: list
    name: str = "a leaf without numbers"
    activation: object = jax.nn.relu


def _loss(model, example):
    return jnp.sum(model.weights * example)


def _trainer(run: Any = RUN, records=500, clipping: Any = 1.0, **options):
    plan = training.Plan(run, num_records=records, clipping=clipping, **options)
    return training.Trainer(plan, _loss, optax.adam(0.1))


def _model(fill=0.0, rows=3):
    layers = [
        {"narrow": jnp.full(2, fill, jnp.bfloat16), "number": 3},
        (np.full((2, 2), fill), np.arange(4), True, 1j * fill, np.float32(fill)),
        [jnp.zeros((0, 2)), np.array(["text"]), 1 << 70, jnp.int4(fill)],
    ]
    return Model(jnp.full(rows, fill, jnp.float32), layers)


def _state(trainer, seed=0, fill=0.0, step=0):
    state = trainer.init(jax.random.key(seed), _model(fill))
    at = lambda x: x.optimizer[0].step
    return eqx.tree_at(at, state, jnp.asarray(step, jnp.int32))


@pytest.fixture
def file(tmp_path):
    trainer, path = _trainer(), tmp_path / "state"
    trainer.save(path, _state(trainer, 7, 2.5, step=11))
    return path


def _parts(path):
    head, about, data = path.read_bytes().split(b"\n", 2)
    return json.loads(head), json.loads(about), data


def _write(path, head, about, data):
    body = json.dumps(about).encode() + b"\n" + data
    head = head | {"sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(json.dumps(head).encode() + b"\n" + body)


def _numbers(tree):
    plain = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    return [
        np.asarray(plain(x) if isinstance(x, jax.Array) else x)
        for x in jax.tree.leaves(tree)
    ]


def test_all_kinds_of_leaves_come_back_bit_by_bit(file):
    trainer = _trainer()
    wanted, like = _state(trainer, 7, 2.5, step=11), _state(trainer, 1)
    for found in (
        trainer.restore(file, like),
        trainer.restore_or_init(file, jax.random.key(3), _model()),
    ):
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert type(x) is type(y)
            assert getattr(x, "dtype", None) == getattr(y, "dtype", None)
        for x, y in zip(_numbers(found), _numbers(wanted), strict=True):
            np.testing.assert_array_equal(x, y)
        assert found.model.layers[1][1].flags.writeable
        assert int(found.step) == 11
        assert found.model.activation is jax.nn.relu


def test_a_file_says_what_is_in_it_by_public_names(file):
    """It is read here with the standard library and NumPy alone."""
    _, about, data = _parts(file)
    assert about["plan"] == {
        "mechanism": "DPSGD",
        "mechanism.noise_multiplier": 1.3,
        "mechanism.sampling_prob": 0.1,
        "mechanism.num_steps": 20,
        "mechanism.relation": "add_or_remove_one",
        "mechanism.sampling": None,
        "clipping": "FlatClipping",
        "clipping.norm": 1.0,
        "num_records": 500,
    }
    found, place = {}, 0
    for name, _, dtype, shape in about["arrays"]:
        width = {"bfloat16": "V2", "int4": "i1"}.get(dtype, dtype)
        flat = np.frombuffer(data, width, int(np.prod(shape)), place)
        found[name], place = flat.reshape(shape), place + flat.nbytes
    assert place == len(data)
    assert found["optimizer[0].step"] == 11
    np.testing.assert_array_equal(found["model.weights"], np.full(3, 2.5, np.float32))
    assert found["model.layers[0]['number']"] == 3
    np.testing.assert_array_equal(found["model.layers[1][0]"], np.full((2, 2), 2.5))
    assert {"optimizer[1][0].mu.weights", "optimizer[0].key", "key"} <= set(found)


def test_neither_the_order_nor_a_field_that_came_later_matters(file):
    head, about, data = _parts(file)
    sizes = np.cumsum([0] + [len(x) for x in _pieces(about, data)])
    pieces = [data[a:b] for a, b in itertools.pairwise(sizes)]
    turned = about | {"arrays": about["arrays"][::-1]}
    trainer = _trainer()
    before = trainer.restore(file, _state(trainer))
    _write(file, head, turned, b"".join(pieces[::-1]))
    for x, y in zip(
        _numbers(trainer.restore(file, _state(trainer))), _numbers(before), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    # Written by a version without relations: as the default was meant.
    plan = {k: v for k, v in about["plan"].items() if k != "mechanism.relation"}
    _write(file, head, about | {"plan": plan}, data)
    assert int(trainer.restore(file, _state(trainer)).step) == 11
    other = _trainer(dataclasses.replace(RUN, relation="zero_out"))
    with pytest.raises(ValueError, match="relation is add_or_remove_one there and"):
        other.restore(file, _state(other))
    # Written by a version with a field that is not known here.
    _write(file, head, about | {"plan": about["plan"] | {"mechanism.new": 2}}, data)
    with pytest.raises(ValueError, match=r"mechanism\.new is 2 there and None here"):
        trainer.restore(file, _state(trainer))


def _pieces(about, data):
    place = 0
    for _, _, dtype, shape in about["arrays"]:
        size = int(np.prod(shape)) * jnp.dtype(dtype).itemsize
        yield data[place : place + size]
        place += size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"run": dataclasses.replace(RUN, noise_multiplier=1.25)},
            "mechanism.noise_multiplier is 1.3 there and 1.25 here",
        ),
        (
            {"run": dataclasses.replace(RUN, num_steps=21, sampling_prob=0.2)},
            "mechanism.sampling_prob is 0.1 there and 0.2 here, mechanism.num_steps "
            "is 20 there and 21 here",
        ),
        (
            {"run": dataclasses.replace(RUN, relation="zero_out")},
            "mechanism.relation is add_or_remove_one there and zero_out here",
        ),
        ({"records": 510}, "num_records is 500 there and 510 here"),
        ({"clipping": 0.5}, "clipping.norm is 1 there and 0.5 here"),
        (
            {"clipping": training.AdaptiveClipping(1.0, count_noise=9.0)},
            "clipping is FlatClipping there and AdaptiveClipping here",
        ),
        (
            {
                "run": fdp.MatrixMechanism(
                    1.3,
                    [1.0, 0.5],
                    num_steps=20,
                    sampling=fdp.sampling.CyclicPoisson(0.1, num_groups=2),
                )
            },
            "mechanism is DPSGD there and MatrixMechanism here",
        ),
    ],
)
def test_of_another_plan_it_is_said_what_differs(file, options, message):
    other = _trainer(**options)
    with pytest.raises(ValueError, match="another plan") as caught:
        other.restore(file, _state(other))
    assert str(caught.value) == f"{file} was written for another plan: {message}"


def test_the_last_digits_of_a_calibrated_noise_may_differ(file, tmp_path):
    near = lambda share: dataclasses.replace(RUN, noise_multiplier=1.3 * (1 + share))
    for share in (1e-16, -1e-16, 0.9 * SAME_NOISE, -0.9 * SAME_NOISE):
        other = _trainer(near(share), microbatch_size=7)
        assert int(other.restore(file, _state(other)).step) == 11
    other = _trainer(near(2 * SAME_NOISE))
    with pytest.raises(ValueError, match=r"noise_multiplier is 1\.3 there and 1\.3000"):
        other.restore(file, _state(other))
    # With a count that is released too, not all that is added is more than stated.
    rule = training.AdaptiveClipping(1.0, count_noise=9.0)
    adaptive, nearby = (_trainer(x, clipping=rule) for x in (RUN, near(1e-15)))
    adaptive.save(tmp_path / "other", _state(adaptive))
    with pytest.raises(ValueError, match="noise_multiplier"):
        nearby.restore(tmp_path / "other", _state(nearby))


def test_what_is_added_is_more_than_what_a_resumed_plan_states():
    """By as much as its noise multiplier may be larger, whatever the roundings."""
    random = np.random.default_rng(0)
    for noise, norm in np.exp(random.normal(size=(50, 2))):
        trainer = _trainer(dataclasses.replace(RUN, noise_multiplier=noise))
        zero = training.GradientSum.zero(
            jnp.zeros(3), training.FlatClipping(norm), jnp.float32(norm)
        )
        added = float(trainer.plan.noise_deviation(zero))
        stated = noise * float(zero.sensitivity)
        assert added > stated * (1 + 2 * SAME_NOISE)


def test_other_states_are_refused_by_the_name_of_an_array(file):
    trainer = _trainer()
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"weights is float32\[3\] there and .*\[4\]"):
        trainer.restore_or_init(file, key, _model(rows=4))
    other = training.Trainer(trainer.plan, _loss, optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"count is int32\[\] there and missing"):
        other.restore_or_init(file, key, _model())
    with pytest.raises(ValueError, match=r"key is key<fry>\[2\] there and key<rbg>"):
        trainer.restore_or_init(file, jax.random.key(0, impl="rbg"), _model())
    others: list[Any] = [3, "state", _model()]
    for wrong in others:
        with pytest.raises(TypeError, match="like must be a TrainingState"):
            trainer.restore(file, wrong)
        with pytest.raises(TypeError, match="state must be a TrainingState"):
            trainer.save(file, wrong)


def test_no_training_is_begun_anew_where_one_may_be(file, tmp_path):
    trainer, key = _trainer(), jax.random.key(0)
    begin = lambda path: trainer.restore_or_init(path, key, _model())
    assert int(begin(tmp_path / "none").step) == 0
    assert int(begin(file).step) == 11
    (tmp_path / "link").symlink_to(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        begin(tmp_path / "link")
    for call in (begin, lambda path: trainer.save(path, _state(trainer))):
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            call(tmp_path / "none" / "state")
    with pytest.raises(IsADirectoryError):
        begin(tmp_path)
    head, about, data = _parts(file)
    for content, message in (
        (b"", "damaged"),
        (file.read_bytes()[:-1], "damaged"),
        (
            json.dumps(head | {"version": 1}).encode() + b"\n",
            "version 1, this is for 2",
        ),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            begin(file)
    # Another generator would deal records to other batches of an epoch.
    _write(file, head, about | {"draws": [1, 2, 3, 4]}, data)
    with pytest.raises(ValueError, match="jax_threefry_partitionable"):
        begin(file)


def _kinds(tree):
    return [(x.dtype, x.shape) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("double", [True, False])
def test_a_step_changes_no_type_that_a_file_would_name(double, tmp_path):
    """Of models in half precision, where optimizers keep what is made of private means,

    and of those in NumPy's, which is double also where programs are not.
    """
    models = jnp.zeros(3, jnp.bfloat16), np.zeros(3), np.zeros(3, np.float16)
    optimizers = optax.adam(0.1), optax.sgd(0.1, momentum=0.9), optax.lion(0.1)
    data = np.ones((500, 3), np.float32)
    with jax.enable_x64(double):
        for model, optimizer in itertools.product(models, optimizers):
            trainer = training.Trainer(
                _trainer().plan, lambda w, x: jnp.sum(w * x), optimizer
            )
            state = trainer.init(jax.random.key(0), model)
            after, _ = jax.eval_shape(trainer._step, state, data)
            assert _kinds(after) == _kinds(state)
        # This one goes on in the model's precision, whatever it begins in.
        trainer = training.Trainer(
            _trainer().plan, lambda w, x: jnp.sum(w * x), optax.adafactor(0.1)
        )
        state = trainer.init(jax.random.key(0), jnp.zeros(3, jnp.bfloat16))
        after, _ = jax.eval_shape(trainer._step, state, data)
        assert _kinds(after) != _kinds(state)
        other = jax.tree.map(
            lambda x, y: x if x.dtype == y.dtype else x.astype(y.dtype), state, after
        )
        trainer.save(tmp_path / "state", other)
        assert _kinds(trainer.restore(tmp_path / "state", state)) == _kinds(after)
