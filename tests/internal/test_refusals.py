"""Refusals under transformations: one sentence, with the number."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import fdp_jax as fdp
from fdp_jax._internal import _checks

GOOD = jnp.array([1.0, 2.0])
BAD = jnp.array([1.0, -2.5])


def _positive(x):
    return 2 * _checks.positive("noise", x)


def _whole(x):
    return _checks.positive_count("batches", x)


def _sum(x):
    return _positive(x).sum()


@pytest.mark.parametrize(
    "call",
    [
        lambda: jax.vmap(_positive)(BAD),
        lambda: jax.vmap(jax.vmap(_positive))(BAD[:, None]),
        lambda: jax.grad(_positive)(-2.5),
        lambda: jax.vmap(jax.grad(_positive))(BAD),
        lambda: jax.grad(_sum)(BAD),
        lambda: jax.jvp(_positive, (-2.5,), (1.0,)),
    ],
)
def test_transformations_by_themselves_refuse_at_once(call):
    with pytest.raises(ValueError, match="noise must be") as raised:
        call()
    assert isinstance(raised.value, eqx.EquinoxRuntimeError)
    assert str(raised.value) == "noise must be a positive number, got -2.5"


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_checked_programs_refuse_in_one_line(x64, batched):
    with jax.enable_x64(x64):
        program = jax.jit(jax.vmap(_positive) if batched else _positive)
        call = fdp.checked(program)
        good, bad = ([1.0, 2.0], [1.0, -2.5]) if batched else (1.0, -2.5)
        good, bad = jnp.asarray(good), jnp.asarray(bad)
        assert jnp.all(call(good) == 2 * good)
        with pytest.raises(ValueError, match=r"^noise must be a positive.*got -2\.5$"):
            call(bad)


def test_whole_numbers_and_nan():
    for value, text in ((jnp.int32(-3), "got -3$"), (jnp.float32(0.5), "got 0.5$")):
        with pytest.raises(ValueError, match=text):
            fdp.checked(jax.jit(_whole))(value)
    with pytest.raises(ValueError, match=r"got nan$"):
        fdp.checked(jax.jit(_positive))(jnp.nan)


def test_equinox_and_jax_say_the_sentence_too():
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"positive number, got -2\.5"):
        eqx.filter_jit(_positive)(jnp.asarray(-2.5))
    errors = jax.errors.JaxRuntimeError, ValueError
    with pytest.raises(errors, match=r"positive number, got -2\.5"):
        jax.block_until_ready(jax.jit(_positive)(-2.5))


def test_other_errors_are_left_alone():
    def fails(x):
        raise ValueError("something else")

    with pytest.raises(ValueError, match=r"^something else$"):
        fdp.checked(fails)(1.0)
    assert jnp.isinf(fdp.checked(jax.jit(lambda x: 1 / x))(0.0))


def test_values_and_derivatives_pass():
    assert jax.grad(_positive)(3.0) == 2
    assert jnp.all(jax.jit(jax.vmap(jax.grad(_positive)))(GOOD) == 2)
