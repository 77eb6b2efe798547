"""Upper bounds of a concave function's maximum from bounds at some points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax.curves._concave import highest


def _bound(thresholds, lower, upper, origin=0.0):
    with jax.enable_x64(True):
        array = lambda x: jnp.asarray(x, jnp.float64)
        ends = array(lower), array(upper)
        return float(highest(array(thresholds), *ends, array(origin)))


def _function(eps, top, size):
    """Concave in e^eps with its maximum `size` at `top`, zero at the origin."""
    ratio = np.exp(np.clip(eps, -100, 100) - top)
    return size * (2 * ratio - ratio**2)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-250])
@pytest.mark.parametrize("top", [-40.0, 0.0, 3.0])
def test_the_maximum_is_below_and_near(size, top):
    random = np.random.default_rng(1)
    for noise in (0.0, 1e-12, 1e-8, 1e-3):
        steps = np.asarray([-0.5, -3e-2, -2e-3, -1e-4, 0, 1e-4, 2e-3, 3e-2, 0.5])
        eps = top + random.uniform(-1e-4, 1e-4) + steps
        values = _function(eps, top, size)
        errors = noise * np.abs(values)
        shift = errors * random.uniform(-1, 1, eps.size)
        found = _bound(eps, values + shift - errors, values + shift + errors)
        assert found >= size
        assert found <= size * (1 + 1e-6 + 20 * noise)


def test_a_kink_is_found_where_the_lines_cross():
    gamma = np.asarray([0.1, 0.2, 0.7, 0.9])
    values = np.minimum(gamma, 1.2 - 2 * gamma)  # with its maximum 0.4 at 0.4
    found = _bound(np.log(gamma), values, values)
    assert 0.4 <= found <= 0.4 * (1 + 1e-13)


def test_order_and_free_slots_do_not_matter():
    eps = np.asarray([0.2, np.inf, -0.1, 0.1, np.inf, -0.3])
    values = np.where(np.isfinite(eps), _function(eps, 0.0, 0.3), 0.0)
    lower = np.where(np.isfinite(eps), values, -np.inf)
    upper = np.where(np.isfinite(eps), values, np.inf)
    some = np.isfinite(eps)
    found = _bound(eps, lower, upper)
    sorted_values = values[some][np.argsort(eps[some])]
    assert found == _bound(np.sort(eps[some]), sorted_values, sorted_values)
    assert 0.3 <= found < 0.31


def test_nothing_known_is_no_bound():
    assert _bound([np.inf, np.inf], [-np.inf] * 2, [np.inf] * 2) == np.inf
    # To the right of a function that still rises there may be anything.
    assert _bound([0.0, 0.1], [0.1, 0.2], [0.1, 0.2]) == np.inf


def test_far_points_do_not_hide_a_small_maximum():
    """Rounding of what is large elsewhere must not matter where all is small."""
    eps = np.asarray([-900.0, -60.01, -60.0, -59.99, 5.0, 800.0])
    near = _function(eps, -60.0, 1e-26)
    values = np.where(np.abs(eps + 60) < 1, near, -np.inf)
    upper = np.where(np.abs(eps + 60) < 1, near, -0.5)
    upper[0], values[0] = 1.0, 0.0
    found = _bound(eps, values, upper)
    assert 1e-26 <= found <= 1.01e-26
