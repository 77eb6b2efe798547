"""Accounts as leaves of a checkpoint, among a training's parameters."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp


def _step(noise):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=0.01, num_steps=1)


def _account():
    """Several settings of one kind, with digits that float32 does not have."""
    account = fdp.Accountant()
    for noise in (1.1, 1.0 + 1e-12, 1.1):
        account = account.step(_step(noise), count=100)
    return account.step(fdp.Laplace(2.0), count=3)


def _empty():
    """What a program that resumes makes: the same kinds of steps, none taken."""
    return fdp.Accountant().step(fdp.Laplace(1.0), count=0)


def _traced():
    """An account that has been through a compiled training step."""
    train_step = jax.jit(lambda account, noise: account.step(_step(noise)))
    account = fdp.Accountant()
    for noise in (1.1, 1.2, 1.1):
        account = train_step(account, noise)
    return account


CASES = [(_account, _empty), (_traced, fdp.Accountant)]


def _assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("make", "empty"), CASES)
def test_equinox(make, empty, double, tmp_path):
    with jax.enable_x64(double):
        state = {"account": make(), "params": jnp.ones(3)}
        eqx.tree_serialise_leaves(tmp_path / "state.eqx", state)
        like = {"account": empty(), "params": jnp.zeros(3)}
        found = eqx.tree_deserialise_leaves(tmp_path / "state.eqx", like)
        _assert_same(found, state)
        assert found["account"].history == state["account"].history


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("make", "empty"), CASES)
def test_orbax(make, empty, double, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orbax = pytest.importorskip("orbax.checkpoint")
    with jax.enable_x64(double):
        state = {"account": make(), "params": jnp.ones(3)}
        like = {"account": empty(), "params": jnp.zeros(3)}
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", state)
            checkpointer.wait_until_finished()
            found = checkpointer.restore(tmp_path / "state", like)
        _assert_same(found, state)
        # The run goes on with it, as it would have.
        for account in (found["account"], state["account"]):
            more = account.step(_step(1.2))
            assert more.num_steps == state["account"].num_steps + 1


def test_what_a_restored_account_answers(tmp_path):
    account = _account()
    eqx.tree_serialise_leaves(tmp_path / "account.eqx", account)
    found = eqx.tree_deserialise_leaves(tmp_path / "account.eqx", _empty())
    assert found.epsilon(delta=1e-5) == account.epsilon(delta=1e-5)
