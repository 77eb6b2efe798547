"""A training's state as an orbax checkpoint, where that is installed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax import training


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("double", [True, False])
def test_a_training_goes_on_from_an_orbax_checkpoint(tmp_path, double):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orbax = pytest.importorskip("orbax.checkpoint")
    with jax.enable_x64(double):
        run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.5, num_steps=6)
        plan = training.Plan(run, num_records=20, clipping=1.0)
        trainer = training.Trainer(plan, lambda w, x: jnp.sum(w * x), optax.adam(0.1))
        data = jnp.ones((20, 3), jnp.float32)
        begin = lambda key: trainer.init(key, jnp.zeros(3, jnp.float32))
        state = begin(jax.random.key(0))
        for _ in range(3):
            state, _ = trainer.step(state, data)
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", state)
            checkpointer.wait_until_finished()
            found = checkpointer.restore(tmp_path / "state", begin(jax.random.key(1)))
        for _ in range(3):
            state, _ = trainer.step(state, data)
            found, _ = trainer.step(found, data)
        np.testing.assert_array_equal(found.model, state.model)
        assert int(found.step) == 6
