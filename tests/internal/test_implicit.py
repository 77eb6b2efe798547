"""Derivatives of roots, optima and known values against calculus."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import stop_gradient
from programs import jitted

from fdp_jax._internal._implicit import (
    implicit_root,
    kink_near,
    known_value,
    of_several,
    optimal_value,
    optimum_or_kink,
)


def _square_minus(x, args, aux):
    return x * x - args["a"] * aux


def _root(a, aux=1.0):
    a = jnp.asarray(a, float)
    aux = jnp.asarray(aux, float)
    found = jnp.sqrt(stop_gradient(a * aux))
    return implicit_root(_square_minus, found, {"a": a}, aux)


def _cube(args, aux):
    return aux * args**3


def _known(a, aux=2.0):
    a, aux = jnp.asarray(a, float), jnp.asarray(aux, float)
    return known_value(_cube, stop_gradient(aux * a**3), a, aux)


def _bowl(x, args, aux):
    # Least at x = log a, with value a (1 - log a).
    return jnp.exp(x) - args * x + aux


def _optimum(a, aux=0.0):
    a, aux = jnp.asarray(a, float), jnp.asarray(aux, float)
    point = jnp.log(stop_gradient(a))
    value = stop_gradient(_bowl(point, a, aux))
    return optimal_value(_bowl, value, point, a, aux)


@of_several
def _roof(x, args, aux):
    # Highest where both sides meet, at x = a^2 / (1 + a), with value a x.
    return jnp.minimum(args * x, args**2 - x)[None] + aux


def _kink(a, aux=0.0):
    a, aux = jnp.asarray(a, float), jnp.asarray(aux, float)
    fixed = stop_gradient(a)
    point = fixed**2 / (1 + fixed)
    # The place need not be exact.
    value = stop_gradient(_roof(point, a, aux))
    return optimum_or_kink(_roof, kink_near, value, point * (1 + 1e-4), a, aux)[0]


@of_several
def _hill(x, args, aux):
    return -_bowl(x, args, aux)[None]


def _top(a, aux=0.0):
    a, aux = jnp.asarray(a, float), jnp.asarray(aux, float)
    point = jnp.log(stop_gradient(a))
    value = stop_gradient(_hill(point, a, aux))
    return optimum_or_kink(_hill, kink_near, value, point, a, aux)[0]


CASES = [
    pytest.param(_root, [3**0.5, 0.5 / 3**0.5, -0.25 / 27**0.5], id="root"),
    pytest.param(_known, [54.0, 54.0, 36.0], id="known value"),
    pytest.param(_optimum, [3 - 3 * np.log(3), -np.log(3), -1 / 3], id="optimum"),
    pytest.param(_kink, [27 / 4, 81 / 16, 63 / 32], id="kink"),
    pytest.param(_top, [3 * np.log(3) - 3, np.log(3), 1 / 3], id="smooth top"),
]


@pytest.mark.parametrize(
    ("function", "truth", "transform"),
    [
        *(pytest.param(*case.values, jitted, id=f"jit-{case.id}") for case in CASES),
        pytest.param(*CASES[0].values, lambda f: f, id="eager-root"),
    ],
)
def test_value_and_two_derivatives(function, truth, transform):
    derivatives = [function, jax.grad(function), jax.grad(jax.grad(function))]
    found = transform(lambda x: [d(x) for d in derivatives])(3.0)
    np.testing.assert_allclose(found, truth, rtol=1e-13)


@pytest.mark.parametrize(("function", "truth"), CASES)
def test_forward_over_reverse(function, truth):
    found = jitted(jax.jacfwd(jax.grad(function)))(3.0)
    assert float(found) == pytest.approx(truth[2])


@pytest.mark.parametrize(("function", "truth"), CASES)
def test_vmap(function, truth):
    derivatives = [function, jax.grad(function), jax.grad(jax.grad(function))]

    @jitted
    def ask(points):
        return [(jax.vmap(d)(points), d(points[1])) for d in derivatives]

    each = ask(jnp.asarray([3.0, 5.0]))
    for (found, alone), expected in zip(each, truth, strict=True):
        assert float(found[0]) == pytest.approx(expected)
        assert float(found[1]) == pytest.approx(float(alone))


@pytest.mark.parametrize(("function", "truth"), CASES)
def test_first_derivative_under_scan_is_right(function, truth):
    mapped = lambda a: jax.lax.map(function, a[None])[0]
    assert float(jitted(jax.grad(mapped))(3.0)) == pytest.approx(truth[1])


@pytest.mark.parametrize(("function", "truth"), CASES)
def test_second_derivative_under_scan_is_right_or_nan(function, truth):
    # JAX drops custom rules there.  Never a wrong number.
    mapped = lambda a: jax.lax.map(function, a[None])[0]
    found = float(jitted(jax.grad(jax.grad(mapped)))(3.0))
    assert np.isnan(found) or found == pytest.approx(truth[2])


def test_constants_have_no_derivative():
    slopes = [jax.grad(f, argnums=1) for f in (_root, _known, _optimum)]
    found = jitted(lambda *at: [f(3.0, x) for f, x in zip(slopes, at, strict=True)])
    assert found(1.0, 2.0, 0.0) == [0, 0, 0]
