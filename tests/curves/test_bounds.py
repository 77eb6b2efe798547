"""Ends that cross leave no trace but a status; see also conftest.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.curves import _bounds
from fdp_jax.curves._queries import bounds_of
from fdp_jax.engines import Interval

Status = fdp.Status
SHARE = jnp.asarray(0.3)
RANGES = {
    "epsilon": (_bounds.EPSILON, (-np.inf, np.inf)),
    "log_delta": (_bounds.LOGARITHM, (-np.inf, 0.0)),
    "delta": (_bounds.DELTA, (0.0, 1.0)),
    "beta": (_bounds.beta_range(SHARE), (0.0, 0.7)),
    "tpr": (_bounds.tpr_range(SHARE), (0.3, 1.0)),
    "bayes_error": (_bounds.bayes_error_range(SHARE), (0.0, 0.3)),
}


@pytest.fixture
def _as_users_have_it(monkeypatch):
    monkeypatch.setattr(_bounds, "MEND", True)


def _of(lower, upper, known, narrow=False):
    ends = (jnp.asarray(x, jnp.result_type(float)) for x in (lower, upper))
    low, high = ends
    middle = 0.5 * (low + high)
    found = bounds_of(Interval(low, middle, high), jnp.asarray(False), known)
    return found._in_single() if narrow else found


@pytest.mark.usefixtures("_as_users_have_it")
@pytest.mark.parametrize("quantity", RANGES)
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_crossed_ends_become_the_trivial_ones(quantity, narrow, traced):
    known, (least, most) = RANGES[quantity]
    sign = -1.0 if quantity == "log_delta" else 1.0
    one = lambda low, high: _of(low, high, known, narrow)
    one = jax.jit(one) if traced else one
    low, high = sorted((sign * 0.301, sign * 0.5))
    for lower, upper in ((high, low), (np.nan, high), (low, np.nan)):
        found = one(lower, upper)
        assert found.status == Status.VACUOUS
        np.testing.assert_allclose([found.lower, found.upper], (least, most), 1e-7)
        assert not np.isnan(found.estimate) or np.isnan(lower + upper)
    kept = one(low, high)
    np.testing.assert_allclose([kept.lower, kept.upper], (low, high), 1e-7)
    assert kept.lower <= low
    assert kept.upper >= high
    assert kept.status == Status.LOOSE


@pytest.mark.usefixtures("_as_users_have_it")
@pytest.mark.parametrize("quantity", RANGES)
def test_a_crossing_by_a_rounding_error_widens(quantity):
    known, _ = RANGES[quantity]
    value = -0.5 if quantity == "log_delta" else 0.5
    if quantity == "bayes_error":
        value = 0.2
    found = _of(np.nextafter(value, 1), value, known)
    assert found.status == Status.TIGHT
    assert found.lower < value < np.nextafter(value, 1) < found.upper
    assert found.upper - found.lower < 1e-14
    # So does the smallest step of a large number, or of a small one.
    for size in (1e-200, 1e200) if quantity in ("delta", "epsilon") else ():
        if quantity == "delta" and size > 1:
            continue
        found = _of(np.nextafter(size, np.inf), size, known)
        assert found.status != Status.VACUOUS
        assert found.lower < size < found.upper


@pytest.mark.usefixtures("_as_users_have_it")
def test_infinite_ends_are_compared_as_others_are():
    known = _bounds.EPSILON
    for lower, upper in ((np.inf, 5.0), (5.0, -np.inf), (np.inf, -np.inf)):
        found = _of(lower, upper, known)
        assert (found.lower, found.upper) == (-np.inf, np.inf)
        assert found.status == Status.VACUOUS
    for both in (np.inf, -np.inf):
        found = _of(both, both, known)
        assert (found.lower, found.upper) == (both, both)
        assert found.status == Status.TIGHT


def test_no_negative_width_is_tight():
    lower, upper = jnp.ones(3), jnp.asarray([0.5, 1 - 1e-12, np.nan])
    for vacuous in (False, True):
        found = _bounds.classify(lower, upper, jnp.full(3, vacuous))
        assert np.all(found == Status.VACUOUS)


def test_what_floating_point_cannot_tell_from_zero_is_tight():
    upper = jnp.asarray([0.0, 2e-308, 3e-307, 1e-305])
    found = _bounds.classify(jnp.zeros(4), upper, jnp.ones(4, bool))
    few, loose = Status.TIGHT, Status.VACUOUS
    assert list(found) == [few, few, few, loose]
    found = _bounds.classify(-jnp.ones(1), jnp.full(1, 2e-308), jnp.zeros(1, bool))
    assert found == Status.LOOSE


@pytest.mark.usefixtures("_as_users_have_it")
def test_engines_that_contradict_each_other_say_nothing():
    def make(low, high):
        ends = (jnp.full(2, x) for x in (low, 0.5 * (low + high), high))
        lower, estimate, upper = ends
        return fdp.Bounds(lower, estimate, upper, jnp.zeros(2, int), "grid")

    found = _bounds.intersection(make(1.0, 2.0), make(2.5, 3.0), _bounds.EPSILON)
    assert np.all(found.lower == -np.inf)
    assert np.all(found.upper == np.inf)
    assert np.all(found.status == Status.VACUOUS)
    found = _bounds.intersection(make(0.1, 0.2), make(0.15, 0.3), _bounds.DELTA)
    np.testing.assert_array_equal(found.lower, 0.15)
    np.testing.assert_array_equal(found.upper, 0.2)
    # In a float32 program ends are rounded outward, and do not cross by rounding.
    narrow = lambda low, high: jax.tree.map(np.float32, make(low, high))
    step = np.nextafter(np.float32(1), np.float32(2))
    found = _bounds.intersection(narrow(0.9, 1.0), narrow(step, 2.0), _bounds.EPSILON)
    assert np.all(found.status == Status.VACUOUS)


@pytest.mark.usefixtures("_as_users_have_it")
def test_a_crossed_curve_answers_with_nothing():
    curve = fdp.Laplace(1.0).curve(num_points=13).remove
    ends = curve.log_delta_grid
    curve = fdp.GridCurve(
        curve.epsilon_grid,
        Interval(ends.lower + 1, ends.estimate, ends.upper),
        curve.log_rest_grid,
        curve.log_alpha_grid,
        curve.log_beta_grid,
    )
    # Of a shape that no other test asks for: ends are mended when a program is traced.
    epsilon = np.full((1, 1, 5), 0.05)
    found = curve.bounds(epsilon=epsilon)
    assert np.all(found.lower == 0)
    assert np.all(found.upper == 1)
    assert np.all(found.status == Status.VACUOUS)
    assert np.all(curve.delta(epsilon=epsilon) == 1)
    assert np.all(curve.delta(epsilon=epsilon, bound="optimistic") == 0)


def test_what_leaks_no_less_bounds_the_private_side_alone():
    """The other end is that of the guarantee itself; no estimate is no number."""
    wide, above = _of(-1.0, np.inf, _bounds.EPSILON), _of(2.0, 3.0, _bounds.EPSILON)
    found = _bounds.within(wide, above, _bounds.EPSILON, upper=True)
    assert (found.lower, found.estimate, found.upper) == (-1.0, 2.5, 3.0)
    known = _bounds.beta_range(SHARE)
    own, above = _of(0.1, 0.6, known), _of(0.2, 0.4, known)
    found = _bounds.within(own, above, known, upper=False)
    assert found.lower == above.lower
    assert found.upper == own.upper
    better = _bounds.within(above, own, known, upper=False)
    assert (better.lower, better.upper) == (above.lower, above.upper)
