"""Options of the compiler where a query is a program of its own."""

import jax

import fdp_jax as fdp
from fdp_jax._internal import _compilation
from fdp_jax._internal._compilation import jit_on_its_own


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(_compilation, "_SOONER", {"xla_no_such_option": False})
    _compilation._options.cache_clear()
    try:
        assert _compilation._options() == {}
        assert jit_on_its_own(lambda x: x + 1)(1.0) == 2.0
    finally:
        _compilation._options.cache_clear()


def test_both_code_generators_agree():
    # Inside another program JAX allows no options: there the default one works.
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
    inside = jax.jit(lambda run: run.epsilon(delta=1e-5))(run)
    assert abs(inside / run.epsilon(delta=1e-5) - 1) <= 1e-12
