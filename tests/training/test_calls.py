"""Wrong calls of a training: one line that names the argument and what is right."""

# What is wrong here a type checker would notice as well.
# pyright: reportCallIssue=false, reportArgumentType=false

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax import sampling, training

RUN = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.5, num_steps=1)
PLAN = training.Plan(RUN, num_records=32, clipping=1.0)
DATA = jnp.ones((32, 3), jnp.float32)
ZERO = jnp.zeros(3, jnp.float32)
KEY = jax.random.key(0)
TARGET = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
WHOLE = {"num_records": 32, "batch_size": 4, "clipping": 1.0}


class _Unasked(fdp.targets.ApproxDP):
    """What must be refused before a search for it begins."""

    def margin(self, loss):
        raise AssertionError


_UNASKED = _Unasked(epsilon=1.0, delta=1e-5)


def _target_for(scheme):
    return training.Plan.for_target(
        TARGET, num_records=32, sampling=scheme, num_epochs=1, clipping=1.0
    )


def _loss(model, example):
    return jnp.sum((model - example) ** 2)


def _draws(model, example, key):
    return _loss(model, example) + jax.random.normal(key)


def _fit(model=ZERO, data=DATA, loss=_loss, optimizer=None, key=KEY, **options):
    sgd = optax.sgd(0.1) if optimizer is None else optimizer
    options = {"progress": False} | options
    return training.fit(PLAN, loss, sgd, model, data, key=key, **options)


class _Table:
    """What a table of another library looks like."""

    shape = (32, 3)
    dtype = np.dtype(float)


TRAINER = training.Trainer(PLAN, _loss, optax.sgd(0.1))
STATE = TRAINER.init(KEY, ZERO)
RECORDS = ("data must be arrays of 32 records", "the plan draws the batches")
TRAINED = "model must have arrays of floating-point numbers that trainable selects"
NUMBER = "loss must return one real number"

# What is called, and words that the message must hold.
TABLE = {
    "whole numbers": (lambda: _fit(jnp.arange(3)), TRAINED, "i64[3]"),
    "whole numbers among": (lambda: _fit({"a": jnp.arange(3), "b": 2}), TRAINED),
    "python number": (lambda: _fit(1.0), TRAINED, "got 1"),
    "list of numbers": (lambda: _fit([0.5, 1.5]), TRAINED, "[0.5, 1.5]"),
    "no model": (lambda: _fit(None), TRAINED, "None"),
    "nothing selected": (lambda: _fit(trainable=lambda _: False), TRAINED),
    "complex": (lambda: _fit(1j * ZERO), "arrays of real floating-point", "c64[3]"),
    "vector loss": (lambda: _fit(loss=lambda w, x: w - x), NUMBER, "f32[3]"),
    "loss of one entry": (lambda: _fit(loss=lambda w, x: (w - x)[:1]), NUMBER, "[1]"),
    "loss and more": (lambda: _fit(loss=lambda w, x: (w[0], w)), NUMBER, "(traced"),
    "no loss": (lambda: _fit(loss=lambda w, x: None), NUMBER, "None"),
    "count": (lambda: _fit(loss=lambda w, x: jnp.sum(x > w)), NUMBER, "i64[]"),
    "score": (
        lambda: training.loss_scores(lambda w, x: w - x, ZERO, DATA),
        *(NUMBER, "f32[3]"),
    ),
    "no example": (lambda: _fit(loss=lambda w: w[0]), "loss must take", "(w)"),
    "key too much": (lambda: _fit(loss=_draws), "draws=False", "(model, example, key)"),
    "key too few": (lambda: _fit(draws=True), "model, example, key", "draws=True"),
    "loss": (lambda: _fit(loss=3), "loss must be a function", "3"),
    "optimizer": (lambda: _fit(optimizer=3), "optimizer", "optax.sgd(0.1)", "got 3"),
    "uncalled optimizer": (lambda: _fit(optimizer=optax.sgd), "optimizer", "got sgd"),
    "number as key": (lambda: _fit(key=0), "key must be a key of jax.random.key"),
    "generator": (lambda: _fit(data=(x for x in DATA)), *RECORDS, "got generator"),
    "iterator": (lambda: _fit(data=iter([DATA])), *RECORDS, "got list_iterator"),
    "function": (lambda: _fit(data=lambda: DATA), *RECORDS, "got function"),
    "one batch": (lambda: _fit(data=DATA[:5]), *RECORDS, "got 5 rows"),
    "batches": (lambda: _fit(data=[DATA[:5], DATA[5:]]), *RECORDS, "got 5, 27 rows"),
    "lists": (lambda: _fit(data=[[1.0, 2.0, 3.0]] * 32), *RECORDS, "got float"),
    "table": (lambda: _fit(data=_Table()), *RECORDS, "got _Table"),
    "texts": (lambda: _fit(data=np.array(["a"] * 32)), *RECORDS, "of <U1"),
    "no data": (lambda: _fit(data=None), *RECORDS, "got no rows"),
    "no leading axis": (lambda: _fit(data=(DATA, ZERO[0])), *RECORDS, "none, 32 rows"),
    "participants": (
        lambda: training.gradient_sum(
            *(_loss, ZERO, DATA[:3], jnp.ones(32, bool), PLAN.clipping, 1.0),
            microbatch_size=4,
        ),
        *("one row for each of the participants, 32", "got 3 rows"),
    ),
    "evaluate": (lambda: _fit(evaluate=3), "evaluate must be a function", "3"),
    "batch size": (lambda: _fit(batch_size=3), "Trainer has no argument 'batch_size'"),
    "progress": (lambda: PLAN.progress(), "progress takes exactly one", "none"),
    "progress of a place": (lambda: PLAN.progress(1e-5), "by name", "delta="),
    "progress of two": (
        lambda: PLAN.progress(delta=1e-5, epsilon=1.0),
        *("progress takes exactly one", "got delta, epsilon"),
    ),
    "progress misspelt": (lambda: PLAN.progress(target_delta=1e-5), "mean delta"),
    "progress of nonsense": (lambda: PLAN.progress(foo=1), "'foo'", "delta, epsilon"),
    "progress out of range": (lambda: PLAN.progress(delta=2.0), "delta", "got 2"),
    "progress points": (lambda: PLAN.progress(delta=0.1, num_points=1), "num_points"),
    "no epochs": (lambda: training.Plan.for_target(TARGET, **WHOLE), "num_epochs"),
    **{
        f"{type(scheme).__name__} without its number": (
            functools.partial(_target_for, scheme),
            *(f"{name} of {type(scheme).__name__} is not set: give it", name),
        )
        for name, scheme in (
            ("prob", sampling.Poisson()),
            ("prob", sampling.FixedSize()),
            ("prob", sampling.UserLevel()),
            ("batch_size", sampling.TruncatedPoisson(0.1)),
            ("batch_size", sampling.WithReplacement()),
            ("num_batches", sampling.RandomAllocation()),
            ("num_batches", sampling.ShuffledEpochs()),
            ("num_groups", sampling.CyclicPoisson(0.5)),
        )
    },
    "clipping of a target": (
        lambda: training.Plan.for_target(
            _UNASKED, **WHOLE | {"clipping": np.nan}, num_epochs=1
        ),
        *("norm must be in", "got nan"),
    ),
    "steps of a target": (
        lambda: training.Plan.for_target(TARGET, **WHOLE, epochs=1),
        *("for_target has no argument 'epochs'", "mean num_epochs"),
    ),
    "number as state": (lambda: TRAINER.step(3, DATA), "state", "Trainer.init", "3"),
    "places of a step": (lambda: TRAINER.step(DATA, STATE), "state must be", "f32[32"),
    "model as state": (lambda: TRAINER.step(ZERO, DATA), "state must be", "f32[3]"),
    "step of nothing": (lambda: TRAINER.step(STATE), "step needs data"),
    "step of a batch": (lambda: TRAINER.step(STATE, DATA[:5]), *RECORDS, "got 5 rows"),
    "state as steps": (lambda: PLAN.after(STATE), "num_steps", "TrainingState("),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_call_says_in_one_line_what_is_right(case):
    call, *words = TABLE[case]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    # It is no error of what was called inside, explained by another one.
    assert caught.value.__cause__ is None


def test_what_follows_the_last_step_is_refused_in_one_line(capfd):
    state, _ = TRAINER.step(STATE, DATA)
    with pytest.raises(ValueError, match="all 1 steps") as caught:
        TRAINER.step(state, DATA)
    assert str(caught.value) == (
        "all 1 steps of the plan have been taken: what follows is another plan's, got "
        "a step after 1"
    )
    assert caught.value.__context__ is None
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""
    # Inside of a program, too, where it is asked for.
    looped = fdp.checked(jax.jit(lambda state: TRAINER.step(state, DATA)[0].step))
    assert int(looped(STATE)) == 1
    with pytest.raises(ValueError, match=r"^all 1 steps of the plan"):
        looped(state)


def test_functions_that_tell_nothing_of_their_arguments_are_losses():
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(max)
    training.Trainer(PLAN, max, optax.sgd(0.1))


def test_losses_of_other_kinds_of_numbers_are_losses():
    for loss in (lambda w, x: 1.0, lambda w, x: w[0].astype(jnp.bfloat16)):
        found, _ = training.per_example_gradients(loss, ZERO, DATA)
        assert found.shape == (32,)
