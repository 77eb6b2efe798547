"""Functions that XLA is asked to compile as calls: the same numbers, fewer tasks."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fdp_jax as fdp
from fdp_jax._internal import _linking
from fdp_jax._internal._linking import apart, as_one_function
from fdp_jax.cli._sweep import WHOLE_LOOPS

# XLA marks small loops of its own with the second one.
LINKED = 'inlineable="false",xla_cpu_small_call="true"'


def test_what_is_set_apart_is_compiled_once_and_transforms():
    inner = lambda x: x * (x + 1) - jnp.where(x > 0, x, 0)
    function = apart(inner)
    x = jnp.linspace(-1.0, 1.0, 64)
    spread = lambda f: lambda x: (jnp.outer(f(x), x), f(x) + 1)
    text = jax.jit(spread(function)).lower(x).compile().as_text()
    assert text is not None
    assert text.count(" call(") == 1  # for both uses, and none for what it calls
    for found, wanted in zip(spread(function)(x), spread(inner)(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
    total = lambda f: lambda x: jnp.sum(f(x) ** 2)
    rows = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(
        jax.vmap(jax.grad(total(function)))(rows),
        jax.vmap(jax.grad(total(inner)))(rows),
        rtol=1e-14,
    )


_LOOP = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from fdp_jax._internal._compilation import options_here
from fdp_jax._internal._special import log1p

def step(index, x):
    return jnp.sqrt(log1p(jnp.exp(log1p(x))))

loop = lambda count, x: jax.lax.fori_loop(0, count, step, x)
x = jnp.linspace(0.1, 3.0, 5000)
found = jax.jit(loop, **options_here(often=True))(4, x)
for _ in range(4):
    x = jnp.sqrt(jnp.log1p(1 + x))
print(float(jnp.max(jnp.abs(found / x - 1))))
"""


def test_loops_that_are_one_function_are_linked_with_what_is_set_apart():
    """Also where it is dealt to several threads, which takes two cores."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOP],
        env=dict(os.environ, XLA_FLAGS=WHOLE_LOOPS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 1e-15


def compiled(function, *args):
    text = jax.jit(function).lower(*args).compile().as_text()
    assert text is not None
    return text


class Line(eqx.Module):
    """A PyTree with something that is no array."""

    slope: jax.Array
    kind: str = eqx.field(static=True)


def summed(count, line, x):
    """Sum over k < count of sin(slope k x)."""
    step = lambda k, total: total + jnp.sin(line.slope * k * x)
    return jax.lax.fori_loop(0, count, step, jnp.zeros_like(x)), line


def summed_exactly(count, slope, x):
    angles = slope * np.arange(count)[:, None] * np.asarray(x)
    return np.sum(np.sin(angles), axis=0)


LINE, X = Line(jnp.asarray(0.3), "straight"), jnp.linspace(0.1, 2.0, 70)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_loop_is_one_function_with_the_same_values(count):
    linked = as_one_function(summed)
    args = jnp.asarray(count), LINE, X
    assert compiled(linked, *args).count(LINKED) > 0
    assert compiled(summed, *args).count(LINKED) == 0
    found, line = jax.jit(linked)(*args)
    np.testing.assert_allclose(found, summed_exactly(count, 0.3, X), atol=1e-14)
    assert line.kind == "straight"
    assert line.slope == 0.3
    # Outside of programs each operation is one, as usual.
    np.testing.assert_allclose(linked(*args)[0], found, atol=1e-14)


def test_a_batch_is_computed_together_as_usual():
    linked = jax.vmap(lambda k, x: as_one_function(summed)(k, LINE, x)[0])
    counts, rows = jnp.asarray([2, 5]), jnp.stack([X, 2 * X])
    assert compiled(linked, counts, rows).count(LINKED) == 0
    wanted = [summed_exactly(k, 0.3, x) for k, x in zip([2, 5], rows, strict=True)]
    np.testing.assert_allclose(jax.jit(linked)(counts, rows), wanted, atol=1e-14)


def test_there_is_no_derivative():
    total = lambda x: jnp.sum(as_one_function(summed)(5, LINE, x)[0] * x)
    found = jax.jit(jax.grad(total))(X)
    np.testing.assert_allclose(found, summed_exactly(5, 0.3, X), atol=1e-14)


def test_arguments_that_nothing_depends_on_are_no_failure():
    """XLA ends the process over an argument whose use it has simplified away."""
    function = as_one_function(
        lambda x, y, z, w: jnp.where(jnp.ones((), bool), x, y) + 0 * z.astype(int)[0]
    )
    asked = jax.jit(lambda x: function(x, 2 * x, jnp.round(x), x > 1))
    assert compiled(asked, X).count(LINKED) > 0
    np.testing.assert_array_equal(asked(X), X)


LINKABLE = {
    "add sub mul div rem neg abs sign": lambda x: -abs((x + 1) * (x - 2) / (x % 3 + 1)),
    "square sqrt rsqrt cbrt pow integer_pow": lambda x: (
        jnp.square(x) + jnp.sqrt(x) + lax.rsqrt(x) + jnp.cbrt(x) + x**x + x**5
    ),
    "exp exp2 expm1 log log1p": lambda x: (
        jnp.exp(x) + jnp.exp2(x) + jnp.expm1(x) + jnp.log(x) + jnp.log1p(x)
    ),
    "sin cos tan tanh atan2 logistic": lambda x: (
        (jnp.sin(x) + jnp.cos(x) + jnp.tan(x) + jnp.tanh(x) + jax.nn.sigmoid(x))
        + jnp.arctan2(x, x + 1)
    ),
    "erf erfc lgamma": lambda x: (
        jax.scipy.special.erf(x) + jax.scipy.special.erfc(x) + lax.lgamma(x)
    ),
    "floor ceil round is_finite": lambda x: jnp.where(
        jnp.isfinite(x), jnp.floor(x) + jnp.ceil(x) + jnp.round(x), 0
    ),
    "comparisons and bits": lambda x: jnp.where(
        ((x < 1) | (x >= 1.5)) & ~(x == 1) ^ (x > 1.7), x, 0
    ),
    "shifts": lambda x: ((x.astype(int) << 3) >> 1) + 0 * x,
    "bitcasts": lambda x: lax.bitcast_convert_type(
        lax.bitcast_convert_type(x, jnp.int64), x.dtype
    ),
    "max min clamp": lambda x: jnp.clip(jnp.maximum(x, 0.5) + jnp.minimum(x, 1), 1, 2),
    "reductions": lambda x: (
        (x + jnp.sum(x) + jnp.max(x) + jnp.min(x) + jnp.prod(x) + jnp.argmax(x))
        + jnp.argmin(x)
    ),
    "flags": lambda x: x + jnp.any(x > 1) + 2 * jnp.all(x > 1),
    "cumulative": lambda x: (
        (jnp.cumsum(x) + lax.cummax(x) + lax.cummin(x) + lax.cumlogsumexp(x))
        + jnp.cumprod(x)
    ),
    "places": lambda x: jnp.concatenate(
        [jnp.pad(x[::-1][3:9], 2), x.reshape(7, 10).T.ravel(), jnp.arange(3.0)]
    ),
    "slices": lambda x: lax.dynamic_update_slice(
        x, lax.dynamic_slice(x, (x.astype(int)[9],), (5,)), (x.astype(int)[-1],)
    ),
    "gathers": lambda x: x[(10 * x).astype(int)] + jnp.stack([x, 2 * x])[:, 3].sum(),
    "branches": lambda x: lax.cond(x[0] > 1, jnp.sin, jnp.cos, x),
    "loops": lambda x: lax.scan(lambda a, b: (a + b, a * b), x[0], x)[1],
    "barriers": lambda x: lax.optimization_barrier(x + 1) - 1,
    "rounding": lambda x: lax.reduce_precision(x, 8, 23),
    "sums of derivatives": jax.grad(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x) * x)),
    "constants": lambda x: lax.stop_gradient(x) * x,
}


@pytest.mark.parametrize("name", LINKABLE)
def test_what_is_said_to_need_no_task_is_compiled(name):
    function = LINKABLE[name]
    linked = as_one_function(function)
    assert compiled(linked, X).count(LINKED) > 0
    np.testing.assert_allclose(
        jax.jit(linked)(X), jax.jit(function)(X), rtol=1e-14, atol=1e-14
    )


@pytest.mark.parametrize(
    "function",
    [
        jnp.sort,
        lambda x: x @ x,
        lambda x: jnp.outer(x, x) @ x,
        lambda x: jnp.fft.rfft(x).real,
        lambda x: x.at[jnp.asarray([3, 3])].add(1.0),
        lambda x: jnp.sum(jnp.outer(x, x)),
        lambda x: jnp.max(jnp.outer(x, x), axis=1),
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sort(-y), x),
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        lambda x: eqx.error_if(x, jnp.any(x < 0), "negative"),
        lambda x: x + jax.random.uniform(jax.random.key(0), x.shape),
    ],
)
def test_what_needs_a_task_stays_as_it_is(function):
    linked = as_one_function(function)
    assert compiled(linked, X).count(LINKED) == 0
    np.testing.assert_array_equal(jax.jit(linked)(X), jax.jit(function)(X))


def test_hidden_arguments_are_an_error():
    hidden = lambda y: as_one_function(lambda x: x + y)(2 * y)
    with pytest.raises(TypeError, match="must be its arguments"):
        jax.jit(hidden)(X)


def test_other_versions_of_jaxlib_are_not_asked(monkeypatch):
    monkeypatch.setattr(_linking, "_TRIED", {(0, 99)})
    assert compiled(as_one_function(summed), jnp.asarray(3), LINE, X).count(LINKED) == 0


def test_all_searches_of_a_query_are_linked(monkeypatch):
    verdicts = []
    asked = _linking._needs_no_task

    def noted(jaxpr):
        verdicts.append(asked(jaxpr))
        return verdicts[-1]

    monkeypatch.setattr(_linking, "_needs_no_task", noted)
    jax.clear_caches()  # What was traced before is not judged again.
    run = lambda s, q, n: fdp.DPSGD(
        noise_multiplier=s, sampling_prob=q, num_steps=n
    ).using("auto", split=False)
    text = compiled(lambda *x: run(*x).epsilon(delta=1e-5), 1.0, 0.01, 1000.0)
    # Starts, plan, table, root.
    assert text.count(LINKED) >= 4
    assert len(verdicts) >= 4
    assert all(verdicts)
