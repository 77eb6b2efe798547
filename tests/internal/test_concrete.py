"""What is asked with known numbers alone is answered before programs are compiled."""

import jax
import jax.numpy as jnp
import pytest

import fdp_jax as fdp
from fdp_jax._internal._concrete import ahead_of_time, outside_transformations

RUN = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=100)
TARGET = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)


@ahead_of_time
def _met_outside(*_):
    return outside_transformations()


@pytest.mark.parametrize("transformation", [jax.jit, jax.grad, jax.vmap])
def test_known_numbers_are_met_outside_of_programs(transformation):
    seen = []

    def look(x):
        seen.extend((_met_outside(1.0, RUN), _met_outside(x), _met_outside()))
        return x

    transformation(look)(jnp.ones(1 if transformation is jax.vmap else ()))
    assert seen == [True, False, True]


def test_functions_that_close_over_traced_numbers_are_traced():
    def product(x):
        return ahead_of_time(lambda factor: jnp.sin(2.0) * x * factor)(3.0)

    expected = 3 * jnp.sin(2.0)
    for found in (jax.jit(product)(1.0), jax.grad(product)(1.0)):
        assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_known_answers_are_constants_of_programs():
    def epsilon(x):
        return x * RUN.epsilon(delta=1e-5)

    def noise(x):
        found = fdp.calibrate(
            fdp.DPSGD(sampling_prob=0.01, num_steps=100),
            TARGET,
            solve_for="noise_multiplier",
        )
        return x * found.value

    for program in (epsilon, noise):
        plain = float(program(1.0))
        assert float(jax.jit(program)(1.0)) == plain
        assert float(jax.grad(program)(1.0)) == plain
        assert len(jax.make_jaxpr(program)(1.0).eqns) < 10


def test_what_cannot_be_reached_is_said_while_tracing():
    def noise(x):
        family = fdp.compose(fdp.Gaussian(0.3), fdp.Gaussian())
        unknown = "parts.1.noise_multiplier"
        return x * fdp.calibrate(family, TARGET, solve_for=unknown).value

    with pytest.raises(fdp.UnreachableTarget, match=r"no .*noise_multiplier"):
        jax.jit(noise)(1.0)
