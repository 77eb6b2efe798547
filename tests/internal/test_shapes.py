"""Zeros of the shapes of results."""

import jax
import jax.numpy as jnp
import numpy as np

from fdp_jax._internal._shapes import zeros_of


def test_zeros_have_the_shapes_of_results_which_are_traced_once():
    traces = 0

    @jax.jit
    def function(x):
        nonlocal traces
        traces += 1
        return {"outer": jnp.outer(x, x), "large": x > 1}

    def asked(x):
        none = zeros_of(function, x)
        return none, jax.lax.cond(x[0] > 0, function, lambda x: none, x)

    none, found = jax.jit(asked)(jnp.asarray([1.0, 2.0, 3.0]))
    assert traces == 1
    assert {name: x.dtype for name, x in none.items()} == {
        "outer": jnp.float64,
        "large": jnp.bool_,
    }
    np.testing.assert_array_equal(none["outer"], np.zeros((3, 3)))
    np.testing.assert_array_equal(found["outer"], np.outer([1, 2, 3], [1, 2, 3]))
    assert not none["large"].any()
