"""Tests of `in_float64`: each function against the same one in an all-float64 program.

`jax_enable_x64` is set explicitly in every test: off by the fixture below, on by the
context manager where a reference or a caller with x64 is wanted.
"""

import enum
import functools
import gc
import weakref
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

from fdp_jax._internal import _float64_call
from fdp_jax._internal._precision import float_dtype, in_float64


@pytest.fixture(autouse=True)
def x64_off():
    with jax.enable_x64(False):
        yield


# ------------------------------------------------------------------ table of functions

GRID = np.linspace(0.1, 2.0, 12)


def elementwise(x):
    return jnp.exp(-x) * jnp.log1p(x) + 1000 * jnp.expm1(1e-9 * x)


def fourier(x):
    spectrum = jnp.fft.rfft(jnp.exp(-x * GRID**2), 32)
    return jnp.fft.irfft(spectrum**3)[5]


def complex_numbers(x):
    return jnp.abs(jnp.sum(jnp.exp(1j * x * GRID) / (x + 1j * GRID)))


def sorting(x):
    return jnp.sum(jnp.sort(jnp.cos(3 * x * GRID)) * GRID)


def gather(x):
    values = jnp.sin(x * GRID) * jnp.exp(-GRID)
    best = jnp.argmax(values)
    return values[best] + values[best - 1] ** 2 + jnp.interp(x, GRID, values)


def cumulative(x):
    weights = jnp.cumsum(jnp.exp(-x * GRID))[::-1]
    return jnp.sum(jnp.log(weights)) * jnp.pad(weights, 2)[3]


def update(x):
    values = (x * GRID).at[3].set(x**3).at[5:7].multiply(x)
    return jnp.linalg.norm(lax.dynamic_update_slice(values, values[:2] ** 2, (4,)))


def gamma_tail(x):
    return special.gammainc(2.5, x) - special.gammaincc(4.0, 2 * x)


def beta_tail(x):
    return special.betainc(2.0, 3.5, 0.4 * x)


def conditional(x):
    small = lax.cond(x < 1, jnp.sin, lambda y: y**3, x)
    branch = jnp.asarray(2 * x, jnp.int32)
    return small + lax.switch(branch, [jnp.exp, jnp.square, jnp.log1p], x)


def scanned(x):
    def step(carry, t):
        carry = carry + jnp.sin(carry * t)
        return carry, carry

    last, steps = lax.scan(step, x, GRID)
    return last + jnp.sum(steps**2)


def random_numbers(x):
    sample = jax.random.normal(jax.random.key(0), (6,))
    return jnp.mean(jnp.exp(x * sample))


def checked(x):
    x = eqx.error_if(x, x < 0, "negative input")
    return jnp.sqrt(x) * special.i0e(x)


@jax.custom_jvp
def cube_root(y):
    def improve(carry):
        z, _ = carry
        new = (2 * z + y / z**2) / 3
        # A few units: an iteration may end in two neighboring numbers by turns.
        return new, jnp.abs(new - z) > 4 * jnp.finfo(z.dtype).eps * z

    return lax.while_loop(lambda c: c[1], improve, (1 + y, True))[0]


@cube_root.defjvp
def _cube_root_jvp(primals, tangents):
    (y,), (dy,) = primals, tangents
    z = cube_root(y)
    return z, dy / (3 * z**2)


def implicit(x):
    return cube_root(1 + x**2) * jnp.exp(-cube_root(x))


def while_loop(x):
    def step(carry):
        total, term, k = carry
        return total + term, term * x / (k + 1), k + 1

    start = (jnp.zeros_like(x), jnp.ones_like(x), jnp.zeros_like(x))
    return lax.while_loop(lambda c: c[1] > 1e-18, step, start)[0]


def nested_while(x):
    def outer(carry):
        total, n = carry
        inner = lax.while_loop(lambda c: c < n * x, lambda c: 1.5 * c + 0.1 * x, x)
        return total + jnp.sin(inner), n + 1

    return lax.while_loop(lambda c: c[1] < 4 + x, outer, (0 * x, 0 * x))[0]


SMOOTH = [
    elementwise,
    fourier,
    complex_numbers,
    sorting,
    gather,
    cumulative,
    update,
    gamma_tail,
    beta_tail,
    conditional,
    scanned,
    random_numbers,
    checked,
    implicit,
]
FORWARD_ONLY = [while_loop, nested_while]  # JAX cannot transpose their loops


class Transform(NamedTuple):
    """A transform of a scalar function, taking a batch if `batched`."""

    apply: Callable
    order: int  # of the derivative
    batched: bool = False
    reverse: bool = False


TRANSFORMS = {
    "eager": Transform(lambda f: f, 0),
    "jit": Transform(jax.jit, 0),
    "vmap": Transform(jax.vmap, 0, batched=True),
    "jacfwd": Transform(jax.jacfwd, 1),
    "jit_jacfwd_jacfwd": Transform(lambda f: jax.jit(jax.jacfwd(jax.jacfwd(f))), 2),
    "grad": Transform(jax.grad, 1, reverse=True),
    "jit_grad": Transform(lambda f: jax.jit(jax.grad(f)), 1, reverse=True),
    "grad_grad": Transform(lambda f: jax.grad(jax.grad(f)), 2, reverse=True),
    "jit_vmap_hessian": Transform(
        lambda f: jax.jit(jax.vmap(jax.hessian(f))), 2, True, True
    ),
}

# Exact in float32, so the comparison sees no rounding of the input.
POINTS = np.array([0.75, 1.25], np.float32)


@functools.cache
def reference(f):
    """Value and two derivatives at `POINTS`, in an all-float64 program."""

    def all_orders(x):
        first = jax.jacfwd(f)
        return f(x), first(x), jax.jacfwd(first)(x)

    with jax.enable_x64(True):
        result = jax.jit(jax.vmap(all_orders))(POINTS.astype(np.float64))
        return [np.asarray(x) for x in result]


@functools.cache
def wrapped(f):
    return in_float64(f)


CASES = [
    pytest.param(f, name, id=f"{f.__name__}-{name}")
    for f in SMOOTH + FORWARD_ONLY
    for name, transform in TRANSFORMS.items()
    if f in SMOOTH or not transform.reverse
]


@pytest.mark.parametrize(("f", "name"), CASES)
def test_inside_a_float32_program(f, name):
    transform = TRANSFORMS[name]
    points = POINTS if transform.batched else POINTS[0]
    got = transform.apply(wrapped(f))(jnp.asarray(points))
    want = reference(f)[transform.order]
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(
        got, want if transform.batched else want[0], rtol=3e-7, atol=0
    )


@pytest.mark.parametrize("f", SMOOTH + FORWARD_ONLY)
def test_inside_a_float64_program(f):
    with jax.enable_x64(True):
        got = [wrapped(f)(POINTS[1]), jax.jit(jax.jacfwd(wrapped(f)))(float(POINTS[1]))]
        assert all(x.dtype == jnp.float64 for x in got)
    want = [x[1] for x in reference(f)[:2]]
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_table_tells_the_precisions_apart(monkeypatch):
    # The comparison is worth something only if plain float32 fails it.
    # (A copy, since JAX confuses a constant used in both precisions, see `in_float64`.)
    monkeypatch.setitem(globals(), "GRID", GRID.copy())
    rough = [jax.jit(f)(POINTS[1]) for f in SMOOTH]
    monkeypatch.undo()
    exact = [reference(f)[0][1] for f in SMOOTH]
    errors = np.abs(np.asarray(rough) / exact - 1)
    assert np.sum(errors > 1.5e-7) >= 2


def test_reverse_mode_of_a_while_loop_says_what_jax_says():
    with pytest.raises(ValueError, match="Reverse-mode differentiation"):
        jax.grad(wrapped(while_loop))(1.0)


# ------------------------------------------------------------------ arguments, results


def _seen_dtypes(*args, **kwargs):
    seen = []

    @in_float64
    def spy(*args, **kwargs):
        leaves = jax.tree.leaves((args, kwargs))
        seen.extend(x.dtype.name if eqx.is_array(x) else x for x in leaves)
        return jnp.zeros(())

    spy(*args, **kwargs)
    return seen


NUMBERS = [1.5, 3, np.float32(1), np.float16(1), np.int64(3), np.float64(1)]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("number", NUMBERS, ids=lambda x: type(x).__name__)
def test_numbers_arrive_as_float64(number, x64):
    with jax.enable_x64(x64):
        assert _seen_dtypes(number, key=number) == ["float64", "float64"]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_float_arrays_and_tracers_arrive_as_float64(dtype, x64):
    with jax.enable_x64(True):
        array = jnp.ones(2, dtype)
    with jax.enable_x64(x64):
        assert _seen_dtypes(array, np.asarray(array)) == ["float64", "float64"]
        traced = []
        jax.eval_shape(lambda x: traced.extend(_seen_dtypes(x)), array)
        assert traced == ["float64"]


@pytest.mark.parametrize("x64", [False, True])
def test_complex_numbers_arrive_as_complex128(x64):
    with jax.enable_x64(x64):
        numbers = (1j, np.complex64(1j), jnp.ones(2, "complex64"))
        assert _seen_dtypes(numbers) == ["complex128"] * 3


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("x64", [False, True])
def test_other_leaves_arrive_unchanged(x64):
    with jax.enable_x64(x64):
        static = [True, "pessimistic", Color.RED, jnp.sin]
        assert _seen_dtypes(static) == static
        arrays = [np.arange(2, dtype=np.int32), np.array([True])]
        assert _seen_dtypes(arrays) == ["int32", "bool"]
        assert _seen_dtypes(jax.random.key(0)) == ["key<fry>"]


def _many_results(x):
    return {
        "float": x,
        "complex": x + 1j,
        "int": jnp.argmax(jnp.ones(3) * x),
        "bool": x > 0,
        "key": jax.random.key(0),
        "static": ("name", None, 2.5, jnp.sin),
    }


@pytest.mark.parametrize("transform", [lambda f: f, eqx.filter_jit])
def test_results_have_the_callers_precision(transform):
    out = transform(in_float64(_many_results))(1.0)
    assert out["float"].dtype == jnp.float32
    assert out["complex"].dtype == jnp.complex64
    assert out["int"].dtype == jnp.int32
    assert out["bool"].dtype == jnp.bool_
    assert jnp.issubdtype(out["key"].dtype, jax.dtypes.prng_key)
    assert out["static"] == ("name", None, 2.5, jnp.sin)


def test_results_stay_wide_with_x64_on():
    with jax.enable_x64(True):
        out = in_float64(_many_results)(np.float32(1))
    assert out["float"].dtype == jnp.float64
    assert out["int"].dtype == jnp.int64


def test_precision_of_the_result_does_not_depend_on_the_path():
    half = jnp.asarray(1.5, jnp.bfloat16)
    f = in_float64(jnp.exp)
    assert f(half).dtype == jax.jit(f)(half).dtype == jnp.float32
    assert jax.grad(f)(half).dtype == jnp.bfloat16  # as JAX has it for its input


def test_float_dtype():
    assert float_dtype() == np.float32
    with jax.enable_x64(True):
        assert float_dtype() == np.float64


NEAR_ONE = 1 - 1e-12  # is 1 in float32


def test_concrete_numbers_are_never_rounded():
    @in_float64
    def tail(x, p):
        return x * jnp.log1p(-p[0])

    x = jnp.float32(1)
    want = np.float32(np.log1p(-NEAR_ONE))
    for p in (NEAR_ONE, np.float64(NEAR_ONE), np.array(NEAR_ONE)):
        assert tail(x, [p]) == want
        assert jax.jit(lambda x, p=p: tail(x, [p]))(x) == want
        assert jax.jit(lambda p=p: tail(1.0, [p]))() == want
        assert jax.grad(tail)(x, [p]) == want
        assert jax.jit(jax.grad(lambda x, p=p: tail(x, [p])))(x) == want
        assert jax.jit(jax.vmap(lambda x, p=p: tail(x, [p])))(x[None]) == want
        assert jax.vjp(lambda x, p=p: tail(x, [p]), x)[1](x)[0] == want
        remat = jax.checkpoint(lambda x, p=p: tail(x, [p]))
        assert jax.grad(remat)(x) == jax.jit(jax.grad(remat))(x) == want
        scan = lambda x, p=p: lax.scan(lambda c, _: (tail(c, [p]), x), x, None, 1)[0]
        assert jax.grad(scan)(x) == jax.jit(jax.grad(scan))(x) == want


def test_arrays_shared_with_a_float32_program_are_not_rounded():
    grid = 1 + 1e-12 * np.arange(12)
    spread = in_float64(lambda x, g: 1e12 * x * jnp.max(g - 1))
    want = np.float32(1e12 * np.max(grid - 1))

    @jax.jit
    def user(x):
        return x * jnp.sum(grid), spread(1.0, grid), spread(x, grid)

    assert user(1.0)[1:] == (want, want)
    for f in (spread, jax.grad(spread), jax.jit(lambda x, g: spread(x, grid))):
        assert f(1.0, grid) == want
    with jax.enable_x64(True):
        np.testing.assert_allclose(spread(1.0, grid), want, rtol=1e-7)


def test_large_concrete_arrays_are_never_rounded():
    grid = 1 + 1e-12 * np.arange(1000)
    spread = in_float64(lambda x, g: 1e12 * x * jnp.max(g - 1))
    want = np.float32(1e12 * np.max(grid - 1))
    assert jax.jit(lambda x: spread(x, grid))(1.0) == want
    assert jax.grad(spread)(1.0, grid) == want
    scanned = lax.scan(lambda c, x: (c, spread(x, grid)), 0, jnp.ones(2))[1]
    np.testing.assert_array_equal(scanned, want)


# -------------------------------------------------------- modules and float64 objects


class Mechanism(eqx.Module):
    sigma: jax.Array | np.ndarray | float
    rates: tuple
    name: str = eqx.field(static=True, default="m")
    size: int = eqx.field(static=True, default=4)

    @in_float64
    def cost(self, order=2.0):
        grid = jnp.linspace(0, 1, self.size)
        rates = self.rates[0] * self.rates[1]
        return order * rates * jnp.sum(jnp.exp(-grid / self.sigma**2))


def _cost(sigma, r0, r1, order):
    grid = np.linspace(0, 1, 4)
    return order * r0 * r1 * np.sum(np.exp(-grid / sigma**2))


def test_methods_of_modules():
    mechanism = Mechanism(2.0, (0.1, np.float32(0.5)))
    want = _cost(2.0, 0.1, 0.5, 3.0)
    np.testing.assert_allclose(mechanism.cost(3), want, rtol=1e-7)
    np.testing.assert_allclose(mechanism.cost(order=3.0), want, rtol=1e-7)
    np.testing.assert_allclose(eqx.filter_jit(Mechanism.cost)(mechanism, 3), want, 1e-7)


def _slope(sigma):
    e = 1e-6
    return (_cost(sigma + e, 0.1, 0.5, 2.0) - _cost(sigma - e, 0.1, 0.5, 2.0)) / (2 * e)


@pytest.mark.parametrize("make", [jnp.float32, np.float64, np.asarray])
@pytest.mark.parametrize("transform", [lambda f: f, eqx.filter_jit])
def test_gradient_with_respect_to_fields(make, transform):
    mechanism = Mechanism(make(2.0), (make(0.1), make(0.5)))
    gradient = transform(eqx.filter_grad(lambda m: m.cost()))(mechanism)
    np.testing.assert_allclose(gradient.sigma, _slope(2.0), rtol=1e-6)
    np.testing.assert_allclose(gradient.rates[0], _cost(2, 1, 0.5, 2), rtol=1e-6)
    assert gradient.sigma.dtype == jnp.float32


def test_vmap_over_a_module():
    sigmas = np.array([1.0, 2.0, 3.0])
    mechanisms = Mechanism(jnp.asarray(sigmas), (0.1, 0.5))
    axes = Mechanism(0, (None, None))
    got = jax.vmap(lambda m: m.cost(), in_axes=(axes,))(mechanisms)
    np.testing.assert_allclose(got, [_cost(s, 0.1, 0.5, 2) for s in sigmas], rtol=1e-7)


class Table(eqx.Module):
    values: jax.Array


@in_float64(cast_out=False)
def build(x):
    return Table(1 + 1e-12 * x * jnp.arange(3.0))


@in_float64
def query(table):
    return 1e12 * (table.values[2] - 1)


def test_objects_keep_float64_leaves():
    assert build(1.0).values.dtype == jnp.float64
    with jax.enable_x64(True):
        want = 1e12 * ((1 + 2e-12 * 1.5) - 1)
    total = lambda x: query(build(x))
    for f in (total, jax.jit(total), lambda x: jax.jit(query)(jax.jit(build)(x))):
        assert f(1.5).dtype == jnp.float32
        np.testing.assert_allclose(f(1.5), want, rtol=1e-7)
    batch = jax.vmap(total)(jnp.array([1.5, 1.5]))
    np.testing.assert_allclose(batch, want, rtol=1e-7)
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(total)(1.5), 2.0, rtol=1e-7)
        np.testing.assert_allclose(jax.jit(derivative(total))(1.5), 2.0, rtol=1e-7)


# --------------------------------------------------------- inside the caller's program


def test_checkpoint():
    f = jax.checkpoint(lambda x: wrapped(fourier)(jnp.tanh(x)))
    g = lambda x: wrapped(fourier)(jnp.tanh(x))
    for order in (jax.grad, lambda f: jax.jit(jax.grad(jax.grad(f)))):
        np.testing.assert_allclose(order(f)(0.75), order(g)(0.75), rtol=1e-6)


def test_scan_and_its_gradient():
    f = wrapped(gamma_tail)

    def total(x):
        return lax.scan(lambda c, t: (c + f(x * t), None), 0.0, jnp.ones(3))[0]

    value, slope = (x[0] for x in reference(gamma_tail)[:2])
    np.testing.assert_allclose(total(0.75), 3 * value, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(total)(0.75), 3 * slope, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(total))(0.75), 3 * slope, rtol=1e-6)


def test_branches_and_loops_of_the_caller():
    f = wrapped(gather)
    value, slope = (x[0] for x in reference(gather)[:2])
    branch = jax.jit(lambda x: lax.cond(x > 0, f, jnp.sin, x))
    np.testing.assert_allclose(branch(0.75), value, rtol=3e-7)
    np.testing.assert_allclose(jax.grad(branch)(0.75), slope, rtol=3e-7)
    loop = lambda x: lax.while_loop(lambda c: c < 0.5, lambda c: f(x), 0.0)
    np.testing.assert_allclose(loop(jnp.float32(0.75)), value, rtol=3e-7)
    mapped = lax.map(f, jnp.full(3, 0.75), batch_size=2)
    np.testing.assert_allclose(mapped, value, rtol=3e-7)


def test_gradients_of_batches_whose_rules_have_conditions():
    @jax.custom_jvp
    def power(x, square):
        return lax.cond(square > 0, jnp.square, lambda y: 3 * y, x)

    @power.defjvp
    def _power_jvp(primals, tangents):
        along = lambda x: power.fun(x, primals[1])
        return power(*primals), jax.jvp(along, primals[:1], tangents[:1])[1]

    # Which branch is taken differs from row to row, what they are taken of does not.
    batch = jax.vmap(in_float64(power), (None, 0))
    total = lambda x: batch(x, jnp.array([1.0, -1.0])).sum()
    assert jax.grad(total)(2.0) == 4 + 3


def test_concrete_arguments_inside_jit():
    # No tracer among the arguments, but lowering still happens outside the context.
    for f in (gather, gamma_tail, random_numbers, implicit):
        got = jax.jit(lambda f=f: wrapped(f)(0.75))()
        np.testing.assert_allclose(got, reference(f)[0][0], rtol=3e-7)


def test_eval_shape():
    out = eqx.filter_eval_shape(in_float64(_many_results), 1.0)
    assert out["float"].dtype == jnp.float32
    assert out["int"].dtype == jnp.int32


def test_closing_over_tracers():
    def f(x, y):
        inner = in_float64(lambda a: a * jnp.sin(y * GRID)[3])
        outer = in_float64(lambda a, g: g(a))
        return inner(2.0) + outer(1.0, lambda a: a * y**2) * x

    def plain(x, y):
        return 2 * jnp.sin(y * GRID[3].item()) + y**2 * x

    for transform in (jax.grad, lambda f, n: jax.jit(jax.grad(f, n))):
        for n in (0, 1):
            got = transform(f, n)(0.5, 0.75)
            np.testing.assert_allclose(got, jax.grad(plain, n)(0.5, 0.75), rtol=1e-6)
    batch = jax.vmap(f, in_axes=(None, 0))(0.5, jnp.array([0.75, 1.0]))
    np.testing.assert_allclose(batch[0], plain(0.5, 0.75), rtol=1e-6)


def test_nested_decorated_functions():
    outer = in_float64(lambda x: wrapped(fourier)(x) + wrapped(sorting)(x))
    want = [reference(fourier)[k][0] + reference(sorting)[k][0] for k in (0, 1)]
    np.testing.assert_allclose(outer(0.75), want[0], rtol=3e-7)
    np.testing.assert_allclose(jax.jit(jax.grad(outer))(0.75), want[1], rtol=3e-7)


def test_several_arguments_and_outputs():
    @in_float64
    def f(x, y, n):
        return {"a": jnp.fft.fft(x).real * y, "n": n + 1, "const": jnp.ones(2)}

    x, y = jnp.arange(4.0), jnp.float32(2)
    jac = jax.jacrev(lambda x, y: f(x, y, jnp.arange(3))["a"], (0, 1))(x, y)
    np.testing.assert_allclose(jac[0], 2 * np.fft.fft(np.eye(4)).real, atol=1e-6)
    np.testing.assert_allclose(jac[1], np.fft.fft(np.arange(4)).real, atol=1e-6)
    primal, tangent = jax.jvp(lambda x: f(x, y, jnp.arange(3)), (x,), (x,))
    np.testing.assert_allclose(primal["a"], tangent["a"], rtol=1e-7)
    assert tangent["n"].dtype == jax.dtypes.float0
    np.testing.assert_array_equal(tangent["const"], 0)
    rows = jax.vmap(lambda x: f(x, y, 1), in_axes=1, out_axes=-1)(jnp.ones((4, 3)))
    assert rows["a"].shape == (4, 3)


def test_effects_survive():
    seen = []

    @in_float64
    def f(x):
        jax.debug.callback(lambda v: seen.append(v.dtype.name), x)
        return x

    f(1.0)
    jax.jit(f)(1.0)
    jax.effects_barrier()
    # Under the caller's `jit` the host part of a callback runs with x64 off.
    assert seen == ["float64", "float32"]


# ----------------------------------------------------------------------------- errors


def _call_with_x64(f, x):
    with jax.enable_x64(True):
        return f(x)


ERROR_PATHS = {
    "x64": lambda f, x: _call_with_x64(f, x),
    "eager": lambda f, x: f(x),
    "vmap": lambda f, x: jax.vmap(f)(jnp.array([1.0, x])),
    "grad": lambda f, x: jax.grad(f)(x),
    "filter_jit": lambda f, x: eqx.filter_jit(f)(jnp.asarray(x)),
    "filter_jit_grad": lambda f, x: eqx.filter_jit(jax.grad(f))(jnp.asarray(x)),
    "jit": lambda f, x: jax.jit(f)(x),
}


@pytest.mark.parametrize("path", ERROR_PATHS)
def test_errors_are_raised_with_their_text(path):
    run = functools.partial(ERROR_PATHS[path], wrapped(checked))
    jax.block_until_ready(run(1.0))
    # A plain outer `jit` is not equinox's, so there the error is JAX's own.
    own = (jax.errors.JaxRuntimeError, ValueError)
    kind = own if path == "jit" else eqx.EquinoxRuntimeError
    with pytest.raises(kind, match="negative input"):
        jax.block_until_ready(run(-1.0))


# ----------------------------------------------------------------------------- caching


@pytest.fixture
def programs(monkeypatch):
    """Every `Program` made during the test."""
    made = []
    init = _float64_call.Program.__init__

    def counting(self, closed):
        init(self, closed)
        made.append(weakref.ref(self))

    monkeypatch.setattr(_float64_call.Program, "__init__", counting)
    return made


REPEATED = {
    "eager": lambda f: f,
    "grad": jax.grad,
    "grad_grad": lambda f: jax.grad(jax.grad(f)),
    "vmap": lambda f: lambda x, n: jax.vmap(f, (0, None))(jnp.full(2, x), n),
    "jit_per_call": lambda f: lambda x, n: jax.jit(lambda x: f(x, n))(x),
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("x64", [False, True])
def test_new_values_need_no_new_trace(name, x64, programs, caplog):
    @in_float64
    @eqx.debug.assert_max_traces(max_traces=1)
    def f(x, steps):
        return jnp.sin(x) * steps

    with jax.enable_x64(x64):
        run = REPEATED[name](f)
        run(0.5, 1000)
        first = len(programs)
        with jax.log_compiles():
            for x, steps in [(0.25, 2000), (0.125, 3), (2.0, 1.5)]:
                run(x, steps)
    assert len(programs) == first
    compiled = [m for m in caplog.messages if m.startswith("Compiling")]
    assert name == "jit_per_call" or not compiled
    assert bool(first) != (name == "eager")  # a plain call needs none


def test_new_types_do_need_a_new_trace():
    @in_float64
    @eqx.debug.assert_max_traces(max_traces=2)
    def f(x):
        return jnp.sum(x)

    f(1.0)
    f(jnp.ones(3))
    assert f(jnp.full(3, 2.0)) == 6
    with pytest.raises(RuntimeError, match="can only be traced 2 times"):
        f(jnp.ones(4))


def test_static_arguments_are_told_apart():
    f = in_float64(lambda x, kind: x + 1 if kind == "plus" else x - 1)
    assert f(1.0, "plus") == 2
    assert f(1.0, "minus") == 0
    assert jax.jit(lambda x: f(x, "minus"))(1.0) == 0


def test_programs_die_with_their_function(programs):
    def use():
        f = in_float64(lambda x: jnp.sin(x) * GRID[2])
        f(1.0)
        jax.grad(jax.grad(f))(1.0)
        jax.vmap(f)(jnp.ones(2))

    gc.freeze()  # what is there already need not be looked at
    use()
    assert len(programs) > 3
    jax.clear_caches()  # JAX's own caches hold the primitive's parameters
    gc.collect()
    gc.unfreeze()
    assert [ref for ref in programs if ref() is not None] == []


def test_no_tracer_leaks():
    with jax.checking_leaks():
        f = in_float64(lambda x, y: jnp.sum(jnp.sort(jnp.sin(x * GRID))) * y)
        jax.jit(jax.grad(jax.grad(f)))(0.5, 2.0)
        jax.jit(jax.vmap(jax.grad(f), (0, None)))(jnp.ones(2), 2.0)


def test_outputs_that_do_not_vary_are_not_batched():
    # Otherwise a grid shared by a whole sweep is copied for each of its cells.
    with jax.enable_x64(True):
        program = _float64_call.Program.trace(
            lambda x, y: [jnp.sin(x) + y, jnp.cos(y), jnp.ones(3)],
            [jax.ShapeDtypeStruct((), np.float64)] * 2,
        )
    batched, out_dims = program.batched(5, (0, None))
    assert out_dims == (0, None, None)
    assert [s.shape for s in batched.out_structs] == [(5,), (), (3,)]


def test_metadata():
    assert wrapped(fourier).__name__ == "fourier"
    assert wrapped(fourier).__wrapped__ is fourier
