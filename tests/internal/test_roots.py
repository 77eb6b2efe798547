"""Roots inside a bracket: where they are, and what they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax._internal import _roots as roots


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


class Counted:
    """A function that counts in how many places it was looked at."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def _count(self, _):
        self.calls += 1

    def __call__(self, x):
        jax.debug.callback(self._count, x)
        return self.function(x)


CASES = {
    "line": (lambda x: 3 * x - 1.2, 0.4),
    "exponential": (lambda x: jnp.expm1(5 * (x - 0.7)), 0.7),
    "flat": (lambda x: (x - 0.3) ** 5, 0.3),
    "jump": (lambda x: jnp.where(x < 0.1, -1.0, 2.0), 0.1),
    "infinite": (lambda x: jnp.where(x < -0.6, -jnp.inf, jnp.inf), -0.6),
    "negative": (lambda x: jnp.log(2 + x) - np.log(0.5), -1.5),
    "tiny": (lambda x: jnp.tanh(1e9 * (x - 1e-9)), 1e-9),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interpolated_root(name):
    function, root = CASES[name]
    counted = Counted(function)
    low, high = roots.root_between(counted, -jnp.ones(()) * 1.9, jnp.ones(()))
    jax.effects_barrier()
    # No more than bisection, which takes as many as a root has digits.
    assert counted.calls <= 85
    if name in ("line", "exponential", "negative"):
        assert counted.calls <= 16
    assert function(low) <= 0 < function(high)
    assert 0 < high - low <= 4e-16 * max(abs(low), abs(high))
    assert min(abs(low - root), abs(high - root)) < (1e-3 if name == "flat" else 1e-15)


def test_the_same_root_by_halving():
    for function, _ in CASES.values():
        ends = -jnp.ones(()) * 1.9, jnp.ones(())
        by_halving = roots.bisect(function, *ends, 110)
        found = roots.root_between(function, *ends)
        np.testing.assert_allclose(found, by_halving, rtol=4e-16)


def test_halving_with_the_ends_exchanged():
    decreasing = lambda x: 0.3 - x
    low, high = roots.bisect(decreasing, jnp.asarray(1.0), jnp.asarray(0.0), 60)
    assert decreasing(low) <= 0 < decreasing(high)
    np.testing.assert_allclose([low, high], 0.3, rtol=4e-16)


@pytest.mark.parametrize("find", [roots.bisect, roots.root_between])
def test_without_a_root_an_end_is_found(find):
    ends = jnp.asarray(-2.0), jnp.asarray(3.0)
    np.testing.assert_allclose(find(lambda x: x + 9, *ends), -2, rtol=1e-15)
    np.testing.assert_allclose(find(lambda x: x - 9, *ends), 3, rtol=1e-15)
    # What is not a number counts as not past the root.
    np.testing.assert_allclose(find(lambda x: x * jnp.nan, *ends), 3, rtol=1e-15)


def test_arrays_and_batches():
    targets = jnp.asarray([0.1, 2.0, 1e-7, 30.0])
    find = lambda t: roots.root_between(lambda x: x * x - t, 0 * t, 0 * t + 9)[1]
    np.testing.assert_allclose(jax.jit(find)(targets), np.sqrt(targets), rtol=4e-16)
    np.testing.assert_allclose(jax.vmap(find)(targets), np.sqrt(targets), rtol=4e-16)


def test_roots_have_no_derivative():
    for find in (roots.bisect, roots.root_between):
        root = lambda t, f=find: f(lambda x: x - jax.lax.stop_gradient(t), 0 * t, t + 1)
        assert float(jax.grad(lambda t, r=root: r(t)[0])(0.5)) == 0


@pytest.mark.parametrize("place", [1e-290, 2e-37, 1e-12, 0.3, 5.0, 1e9])
def test_least_threshold(place):
    tail = lambda e: -e / place
    found = roots.least_threshold(tail, jnp.asarray(-1.0), jnp.asarray(jnp.inf))
    np.testing.assert_allclose(found, place, rtol=4e-16)
    assert tail(found) <= -1
    found = roots.least_threshold(tail, jnp.zeros(()), jnp.asarray(jnp.inf))
    assert float(found) == 0


def test_least_threshold_of_jumps_and_ends():
    steps = lambda e: -jnp.floor(e)
    found = roots.least_threshold(steps, jnp.asarray(-2.5), jnp.asarray(jnp.inf))
    assert float(found) == 3.0
    found = roots.least_threshold(steps, jnp.asarray(-2.5), jnp.asarray(1.5))
    assert float(found) == 1.5
    at_zero = lambda e: jnp.where(e > 0, -2.0, 0.0)
    found = roots.least_threshold(at_zero, jnp.asarray(-1.0), jnp.asarray(jnp.inf))
    assert 0 < float(found) < 1e-300
