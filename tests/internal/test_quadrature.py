"""Quadrature rules against integrals that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax._internal import _quadrature as quadrature


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("order", [1, 7, 12, 48])
def test_unit_rule_integrates_polynomials(order):
    nodes, weights = quadrature.unit_rule(order)
    for degree in range(2 * order):
        assert weights @ nodes**degree == pytest.approx(1 / (degree + 1), abs=5e-15)
    assert quadrature.unit_rule(order)[0] is nodes
    with pytest.raises(ValueError, match="read-only"):
        nodes[0] = 0


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_intervals(array):
    low, high = array([[0.0, 1e-30], [-2.0, 3.0]]), array([[1.0, 2e-30], [-1.0, 3.0]])
    nodes, weights = quadrature.on_intervals(low, high, 5)
    assert type(nodes) is type(weights) is type(low)
    assert nodes.shape == weights.shape == (2, 2, 5)
    truth = (high**3 - low**3) / 3
    np.testing.assert_allclose((weights * nodes**2).sum(-1), truth, rtol=1e-14)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_panels_between_kinks(array):
    cuts = array([-1.0, 0.0, 0.0, 0.25, 4.0])
    nodes, weights = quadrature.between(cuts, 6, 3)
    assert nodes.shape == weights.shape == (4 * 3 * 6,)
    assert np.all(np.diff(nodes) >= 0)
    np.testing.assert_allclose(weights @ abs(nodes), 8.5, rtol=1e-14)
    kink = lambda x: abs(x) + abs(x - 0.25) ** 3
    np.testing.assert_allclose(
        weights @ kink(nodes), 8.5 + (1.25**4 + 3.75**4) / 4, rtol=1e-14
    )


def test_derivatives_go_through_the_cuts():
    def integral(end):
        nodes, weights = quadrature.between(jnp.stack([0 * end, end]), 8, 2)
        return weights @ jnp.exp(nodes)

    np.testing.assert_allclose(jax.jit(jax.grad(integral))(1.3), np.exp(1.3), 1e-14)


def test_single_precision_is_kept():
    cuts = jnp.float32([0, 1, 3])
    for found in (
        quadrature.between(cuts, 4, 2),
        quadrature.on_intervals(cuts[:-1], cuts[1:], 4),
    ):
        assert {x.dtype for x in found} == {jnp.dtype("float32")}
