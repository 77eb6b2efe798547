"""Sums whose length is known at run time, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax._internal._blocked_sum import blocked_sum


def _block(index, args, aux):
    x, scale = args
    k = index.astype(x.dtype) * 3 + jnp.arange(3, dtype=x.dtype)
    terms = scale * jnp.exp(-x * k) * aux
    return jnp.stack([jnp.sum(terms), jnp.sum(k * terms)]), jnp.sum(aux * k)


def _total(x, scale, blocks, aux=1.5):
    args = jnp.asarray(x, float), jnp.asarray(scale, float)
    return blocked_sum(_block, jnp.asarray(blocks), args, jnp.asarray(aux))


def _direct(x, scale, blocks, aux=1.5):
    k = np.arange(3 * blocks)
    terms = scale * np.exp(-x * k) * aux
    return np.asarray([terms.sum(), (k * terms).sum()])


@pytest.mark.parametrize("blocks", [0, 1, 7])
def test_value(blocks):
    main, extra = jax.jit(_total)(0.2, 3.0, blocks)
    np.testing.assert_allclose(main, _direct(0.2, 3.0, blocks), rtol=1e-14)
    assert float(extra) == 1.5 * sum(range(3 * blocks))


def test_number_of_blocks_is_not_compiled_in():
    traces = []

    @jax.jit
    def count(blocks):
        traces.append(blocks)
        return _total(0.2, 3.0, blocks)[0]

    np.testing.assert_allclose(count(4), _direct(0.2, 3.0, 4), rtol=1e-14)
    np.testing.assert_allclose(count(9), _direct(0.2, 3.0, 9), rtol=1e-14)
    assert len(traces) == 1


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_first_derivatives(mode):
    found = mode(lambda v: _total(v[0], v[1], 5)[0])(jnp.asarray([0.2, 3.0]))
    k = np.arange(15)
    terms = 1.5 * np.exp(-0.2 * k)
    by_x = [-3 * (k * terms).sum(), -3 * (k**2 * terms).sum()]
    by_scale = [terms.sum(), (k * terms).sum()]
    np.testing.assert_allclose(found, np.stack([by_x, by_scale], 1), rtol=1e-13)


@pytest.mark.parametrize(
    "second",
    [
        lambda f: jax.grad(jax.grad(f)),
        lambda f: jax.jacfwd(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
    ],
)
def test_second_derivatives(second):
    found = jax.jit(second(lambda x: _total(x, 3.0, 5)[0][0]))(0.2)
    k = np.arange(15)
    truth = 3 * (k**2 * 1.5 * np.exp(-0.2 * k)).sum()
    assert float(found) == pytest.approx(truth, rel=1e-13)


def test_vmap_over_values_and_lengths():
    x, blocks = jnp.asarray([0.1, 0.2, 0.3]), jnp.asarray([6, 0, 2])
    main, _ = jax.vmap(lambda x, b: _total(x, 1.0, b))(x, blocks)
    for row, a, b in zip(main, x, blocks, strict=True):
        np.testing.assert_allclose(row, _direct(float(a), 1.0, int(b)), rtol=1e-14)


def test_aux_and_extra_have_no_derivative():
    by_aux = jax.grad(lambda a: _total(0.2, 3.0, 5, a)[0][0])(1.5)
    by_extra = jax.grad(lambda x: _total(x, 3.0, 5)[1])(0.2)
    assert float(by_aux) == 0
    assert float(by_extra) == 0
