"""Programs in NumPy give what compiled ones give."""

import concurrent.futures
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpmath import log, log1p, mp, mpf

import fdp_jax as fdp
from fdp_jax._internal import (
    _compilation,
    _interpreted as module,
    _subnormal,
)
from fdp_jax._internal._interpreted import Interpreted, source_of
from fdp_jax._internal._numpy_operations import TooLong

_REAL = np.array([-np.inf, -800.0, -2.5, -1.0, -0.5, -1e-9, -0.0, 0.0, 1e-300, 1e-9])
_REAL = np.concatenate([_REAL, [0.3, 0.5, 1.0, 1.5, 2.5, 7.0, 800.0, np.inf, np.nan]])
_OTHER = np.roll(_REAL, 7)
_INSIDE = np.linspace(-0.97, 0.97, 9)
_WHOLE = np.array([-(2**31), -7, -1, 0, 1, 3, 2**31 - 1], np.int32)
_BITS = np.array([0, 1, 5, 2**63, 2**64 - 1], np.uint64)
_TRUE = _REAL > 0
_COMPLEX = np.array([1 + 2j, -0.5j, 3.0, -1 - 1e-3j])
_GRID = np.arange(24.0).reshape(2, 3, 4)
_AT = np.array([2, 0, -1, 5])


def _key():
    return jax.random.wrap_key_data(jnp.asarray([3, 2**32 - 1], np.uint32))


def _folded(key, i):
    return jax.random.fold_in(key, i), key


_EXACT = {
    "arithmetic": lambda: [
        jnp.asarray(_REAL) + _OTHER,
        jnp.asarray(_REAL) - _OTHER,
        jnp.asarray(_REAL) * _OTHER,
        jnp.asarray(_REAL) / _OTHER,
        -jnp.asarray(_REAL),
        jnp.abs(_REAL),
        jnp.sqrt(jnp.abs(_REAL)),
        lax.integer_pow(jnp.asarray(_REAL), 3),
        lax.integer_pow(jnp.asarray(_REAL), -2),
        lax.rem(jnp.asarray(_REAL), _OTHER),
        jnp.floor(_REAL),
        jnp.ceil(_REAL),
        *jnp.frexp(jnp.asarray(_REAL[np.isfinite(_REAL)])),
        lax.round(jnp.asarray(_REAL), lax.RoundingMethod.TO_NEAREST_EVEN),
        lax.round(jnp.asarray(_REAL), lax.RoundingMethod.AWAY_FROM_ZERO),
        jnp.nextafter(jnp.asarray([1.0, -1.0, 0.5]), jnp.inf),
        lax.clamp(-1.0, jnp.asarray(_REAL), 1.0),
    ],
    "comparisons": lambda: [
        *[op(_REAL, _OTHER) for op in (jnp.equal, jnp.not_equal, jnp.less)],
        *[op(_REAL, _OTHER) for op in (jnp.less_equal, jnp.greater)],
        jnp.maximum(_REAL, _OTHER),
        jnp.minimum(_REAL, _OTHER),
        jnp.isfinite(_REAL),
        _TRUE & ~jnp.asarray(_TRUE[::-1]) | jnp.asarray(_TRUE[::-1]) ^ _TRUE,
        jnp.where(_TRUE, _REAL, 1.0),
        jnp.where(jnp.asarray(True), _REAL, _OTHER),
        lax.select_n(jnp.asarray([0, 2, 1]), *jnp.asarray(_GRID[0, :, :3])),
        jnp.searchsorted(jnp.asarray([0.0, 1.0, jnp.nan]), jnp.asarray(_REAL)),
    ],
    "whole numbers": lambda: [
        jnp.asarray(_WHOLE) + 1,
        lax.div(jnp.asarray(_WHOLE), jnp.asarray([2, -2, 3, 5, -1, 2, -7], np.int32)),
        jnp.asarray(_WHOLE) >> 2,
        lax.shift_right_logical(jnp.asarray(_WHOLE), jnp.full(7, 3, np.int32)),
        jnp.asarray(_BITS) << np.uint64(3),
        jnp.asarray(_BITS) >> np.uint64(3),
        ~jnp.asarray(_WHOLE),
        jnp.asarray(_WHOLE) ^ np.int32(5),
    ],
    "types": lambda: [
        jnp.asarray(_REAL).astype(np.int32),
        jnp.asarray(_REAL).astype(np.int64),
        jnp.asarray(_REAL).astype(np.float32),
        jnp.asarray(_REAL).astype(bool),
        jnp.asarray(_WHOLE).astype(np.float64),
        jnp.asarray(_COMPLEX).real,
        lax.bitcast_convert_type(jnp.asarray(_REAL[:-1]), np.int64),
    ],
    "shapes": lambda: [
        jnp.broadcast_to(jnp.asarray(2.0), (2, 3)),
        jnp.broadcast_to(jnp.arange(3.0)[:, None], (2, 3, 4)),
        jnp.broadcast_to(jnp.arange(3.0), (3000, 3)),
        jnp.asarray(_GRID).transpose(2, 0, 1).reshape(4, 6)[1:, ::2],
        jnp.flip(_GRID, (0, 2)),
        jnp.tile(jnp.asarray(_GRID), (2, 1, 3)),
        jnp.diagonal(jnp.asarray(_GRID), axis1=1, axis2=2),
        jnp.concatenate([jnp.asarray(_GRID), _GRID[:, :1]], axis=1),
        jnp.stack([jnp.asarray(1.0), jnp.asarray(2.0)]),
        jnp.stack([jnp.asarray(_GRID), _GRID], axis=1),
        sum(jnp.asarray(_GRID), start=jnp.zeros((3, 4))),
        lax.pad(jnp.asarray(_GRID[0]), 9.0, ((1, 2, 1), (0, 1, 0))),
        lax.pad(jnp.asarray(_GRID[0]), 9.0, ((-1, 2, 1), (1, -2, 0))),
        lax.reshape(jnp.asarray(_GRID), (4, 6), (1, 0, 2)),
        lax.iota(np.int32, 5) + lax.broadcasted_iota(np.int32, (2, 5), 0),
        jnp.asarray(_GRID[:1, :1, :1]).squeeze() + 1,
    ],
    "random numbers": lambda: [
        *[jax.random.bits(_key(), (3, 5), f"uint{n}") for n in (8, 16, 32, 64)],
        *[jax.random.bits(jax.random.fold_in(_key(), i)) for i in (0, 9, 2**32 - 1)],
        jax.random.uniform(jax.random.split(_key(), (2, 3))[1, 2], (7, 0)),
        jax.random.uniform(jax.random.split(_key())[1], (4097,)),
        jax.random.uniform(_key(), (7,), np.float32),
        jax.random.key_data(jax.random.split(_key(), (2, 3))[::-1].T),
        jax.random.key_data(jnp.where(_AT > 0, _key(), jax.random.split(_key(), 4))),
        *jax.tree.map(jax.random.key_data, lax.scan(_folded, _key(), jnp.arange(3))),
        lax.map(jax.random.uniform, jax.random.split(_key(), 5)),
    ],
    "windows": lambda: [
        lax.dynamic_slice(jnp.asarray(_GRID), (1, 2, 3), (1, 2, 2)),
        lax.dynamic_slice(jnp.asarray(_GRID), (-9, 0, 9), (1, 2, 2)),
        lax.dynamic_update_slice(jnp.asarray(_GRID), -jnp.ones((1, 2, 2)), (1, 2, 0)),
        lax.dynamic_index_in_dim(jnp.asarray(_GRID), 1, 1, keepdims=False),
    ],
    "indices": lambda: [
        jnp.asarray(_GRID)[0, _AT[:3]],
        jnp.asarray(_GRID)[:, :, _AT[:3]],
        jnp.asarray(_GRID)[_AT[1:3], :, _AT[1:3]],
        jnp.asarray(_GRID)[jnp.asarray(1), 1:, jnp.asarray(2)],
        jnp.asarray(_GRID).at[..., _AT].get(mode="fill"),
        jnp.asarray(_GRID).at[..., _AT].get(mode="fill", fill_value=3.0),
        jnp.asarray(_GRID).at[..., _AT].get(mode="clip"),
        jnp.asarray(_WHOLE).at[_AT + 3].get(mode="fill"),
        jnp.take_along_axis(jnp.asarray(_GRID), jnp.argsort(-_GRID, 1), 1),
        jax.vmap(lambda row, i: row[i])(jnp.asarray(_GRID), jnp.asarray([2, 1])),
        jax.vmap(lambda row, i: row[:, i], (1, None))(jnp.asarray(_GRID), _AT[:2]),
        jnp.asarray(_GRID).at[0, _AT[:3]].set(-1.0),
        jnp.asarray(_GRID).at[:, :, _AT].add(_GRID, mode="drop"),
        jnp.ones(4).at[jnp.asarray([1, 1, 3])].multiply(jnp.asarray([2.0, 3.0, 5.0])),
        jnp.ones(4).at[jnp.asarray([1, 1, 3])].max(jnp.asarray([2.0, 3.0, 0.0])),
        jnp.zeros(4).at[jnp.asarray([1, 1, 3, 9])].add(2.0),
        jax.vmap(lambda row, i: row.at[i].set(7.0))(jnp.zeros((2, 3)), jnp.arange(2)),
    ],
    "ends and orders": lambda: [
        jnp.max(_GRID, axis=(0, 2)),
        jnp.min(jnp.asarray(_REAL)),
        jnp.all(_TRUE.reshape(-1, 1), axis=0),
        jnp.any(jnp.asarray(_TRUE)),
        jnp.argmax(jnp.asarray(_REAL)),
        jnp.argmin(_GRID, axis=1),
        jnp.sort(jnp.asarray(_OTHER)),
        jnp.argsort(jnp.asarray(_OTHER)),
        *lax.sort((jnp.asarray([2.0, 1.0, 2.0]), jnp.arange(3)), num_keys=1),
        *lax.sort(
            (jnp.asarray(_REAL[::-1] > 0.4), jnp.asarray(_OTHER), jnp.arange(19)),
            num_keys=2,
        ),
        *lax.top_k(jnp.asarray(_GRID), 2),
        lax.top_k(jnp.asarray([1.0, 3.0, -jnp.inf, 3.0]), 3)[1],
        *lax.top_k(jnp.asarray([1.0, jnp.nan, -0.0, 0.0, -jnp.inf]), 4),
        jnp.sign(jnp.asarray(_REAL)),
        *jnp.split(jnp.asarray(_REAL), [2, 7]),
        lax.cummax(jnp.asarray(_REAL[:9]), reverse=True),
        lax.cummin(jnp.asarray(_GRID), axis=1),
        jnp.sum(jnp.asarray(_WHOLE)),
        jnp.cumsum(jnp.arange(5)),
    ],
}
_CLOSE = {
    "elementary": lambda: [
        *[op(_REAL) for op in (jnp.exp, jnp.expm1, jnp.tanh, jnp.sinh, jnp.cosh)],
        *[op(jnp.abs(_REAL)) for op in (jnp.log, jnp.log1p, lax.rsqrt, jnp.cbrt)],
        *[op(_INSIDE) for op in (jnp.sin, jnp.cos, jnp.tan, jnp.arcsin, jnp.arctanh)],
        *[op(_INSIDE) for op in (jnp.arctan, jnp.arcsinh, jnp.arccos, jnp.exp2)],
        *[op(_INSIDE) for op in (lax.erf, lax.erfc, lax.erf_inv, lax.logistic)],
        # Of which other versions of JAX have other parts.
        *[jax.vmap(jax.grad(op))(jnp.asarray(_INSIDE)) for op in (jnp.arcsin, lax.erf)],
        *[op(jnp.asarray(_INSIDE + 2)) for op in (jnp.log2, jnp.sinc, jax.nn.gelu)],
        jnp.polyval(jnp.asarray([0.5, -2.0, 0.25, 3.0]), jnp.asarray(_INSIDE)),
        jax.vmap(jax.grad(jnp.tanh))(jnp.asarray(_INSIDE)),
        *[op(_INSIDE + 2) for op in (lax.lgamma, lax.digamma, jnp.arccosh)],
        lax.betainc(jnp.asarray(2.5), jnp.asarray(30.0), jnp.asarray(_INSIDE[5:])),
        lax.igamma(jnp.asarray(2.5), jnp.asarray(_INSIDE[5:] * 9)),
        lax.igammac(jnp.asarray(2.5), jnp.asarray(_INSIDE[5:] * 9)),
        jnp.arctan2(_REAL, _OTHER),
        jnp.power(jnp.abs(_REAL), 1.7),
        jnp.exp(jnp.asarray(_COMPLEX)) * lax.conj(jnp.asarray(_COMPLEX)),
        lax.complex(jnp.asarray(_INSIDE), jnp.asarray(_INSIDE[::-1])) / _COMPLEX[0],
        jnp.abs(jnp.asarray(_COMPLEX)),
        jnp.asarray(_INSIDE) * 1j - (2 + 1j),
        lax.complex(-1.0, jnp.asarray(_INSIDE)),
    ],
    "sums": lambda: [
        jnp.sum(_GRID, axis=(0, 1)),
        jnp.prod(jnp.asarray(_GRID) + 0.1),
        jnp.cumsum(jnp.asarray(_GRID), axis=2),
        jnp.cumsum(jnp.linspace(0.1, 0.7, 1500).reshape(1500, 1), axis=0),
        lax.cumsum(jnp.linspace(0.1, 0.7, 1024), reverse=True),
        lax.cumprod(jnp.asarray(_GRID), axis=1, reverse=True),
        lax.cumlogsumexp(jnp.asarray(_INSIDE)),
        *lax.reduce(
            (jnp.asarray(_GRID), jnp.asarray(-_GRID)),
            (jnp.zeros(()), jnp.ones(())),
            lambda a, b: (a[0] + b[0], a[1] + b[1]),
            (0, 2),
        ),
        jnp.asarray(_GRID[0]) @ _GRID[0].T,
        jnp.einsum("bij,bik->bjk", jnp.asarray(_GRID), _GRID),
        jnp.dot(jnp.arange(3.0), jnp.arange(3.0)),
        jnp.tensordot(jnp.asarray(_GRID), _GRID, _GRID.ndim),
        jnp.dot(jnp.arange(3.0), jnp.arange(3)),
        jnp.fft.irfft(jnp.fft.rfft(jnp.asarray(_INSIDE)), 9) + 1,
        jnp.fft.ifft(jnp.fft.fft(jnp.asarray(_COMPLEX))),
    ],
    "programs": lambda: [
        lax.while_loop(lambda x: x[0] < 40, lambda x: (x[1], x[0] + x[1]), (1.0, 1.0))[
            1
        ],
        jax.vmap(lambda n: lax.while_loop(lambda x: x < n, lambda x: 2 * x + 1, 0.5))(
            jnp.asarray([0.0, 3.0, 50.0])
        ),
        *lax.scan(lambda c, x: (c * 0.5 + x, c), 1.0, jnp.asarray(_INSIDE)),
        *lax.scan(lambda c, x: (c - x, c), 1.0, jnp.asarray(_INSIDE), reverse=True),
        lax.scan(lambda c, x: (c, x + c), jnp.zeros(2), jnp.zeros((0, 2)))[1],
        *[
            lax.switch(i, [lambda x: x, lambda x: -x, lambda x: 3 * x], 2.0)
            for i in jnp.asarray([-5, 1, 9])
        ],
        jax.vmap(lambda p: lax.cond(p, jnp.sin, jnp.cos, 2.0))(jnp.asarray(_TRUE[:4])),
        jax.grad(lambda x: jnp.sum(jnp.where(x > 0, x, 0) ** 2))(jnp.asarray(_INSIDE)),
        jax.checkpoint(jnp.sin)(jnp.asarray(0.3)),
        jnp.logaddexp(jnp.asarray(_INSIDE), 0.2),
        jax.nn.relu(jnp.asarray(_INSIDE)),
    ],
}


def _same(table, *, exactly):
    closed = jax.make_jaxpr(lambda: [jnp.asarray(x) for x in table()])()
    source = source_of(closed)
    assert source is not None
    found, _ = Interpreted(source)([], 1e9)
    wanted = jax.jit(table)()
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert (np.shape(one), one.dtype) == (other.shape, other.dtype), i
        if exactly:
            np.testing.assert_array_equal(one, other, err_msg=str(i))
            both_zero = (np.asarray(one) == 0) & (np.asarray(other) == 0)
            if one.dtype.kind == "f":
                signs = np.signbit(one) == np.signbit(other)
                assert np.all(signs | ~both_zero), i
        else:
            np.testing.assert_allclose(
                one, other, rtol=2e-14, atol=1e-15, err_msg=str(i)
            )


@pytest.mark.parametrize("name", _EXACT)
def test_exact_operations(name):
    _same(_EXACT[name], exactly=True)


@pytest.mark.parametrize("name", _CLOSE)
def test_rounded_operations(name):
    _same(_CLOSE[name], exactly=False)


def _interpreted(fn, *args):
    source = source_of(jax.make_jaxpr(fn)(*args))
    assert source is not None
    return Interpreted(source)


def _programs(fn, *args):
    found = _interpreted(fn, *args)
    return lambda *args, work=1e9: found(args, work)[0]


def test_functions_of_numpy_have_all_digits():
    """Of those that XLA has too, against 60 digits."""
    random = np.random.default_rng(1)
    angle = np.concatenate(
        [random.uniform(-50, 50, 99), 10 ** random.uniform(-9, 5, 99)]
    )
    x, y = np.abs(angle), random.permutation(angle)
    with mp.workdps(60):
        exact = {
            "log": (np.log(x), [log(mpf(v)) for v in x]),
            "log1p": (np.log1p(x), [log1p(mpf(v)) for v in x]),
            "log1p below": (
                np.log1p(_INSIDE),
                [log1p(mpf(float(v))) for v in _INSIDE],
            ),
            "arctan2": (
                np.arctan2(angle, y),
                [mp.atan2(mpf(v), mpf(w)) for v, w in zip(angle, y, strict=True)],
            ),
        }
        for name, (found, truth) in exact.items():
            for value, true in zip(found, truth, strict=True):
                unit = mpf(float(np.spacing(abs(float(true)))))
                assert abs(mpf(float(value)) - true) <= 2 * unit, name


def test_what_numpy_repeats_by_itself():
    def run(x, row, column, one, which):
        wide = jnp.broadcast_to(one, x.shape)
        chosen = jnp.where(which, row * x, wide)
        both = lax.select(which > one, wide, jnp.broadcast_to(row, x.shape))
        alone = jnp.broadcast_to(row, x.shape) + wide
        return x + column[:, None], chosen * one, both, alone, wide, lax.max(wide, x)

    x = np.asarray(_GRID[0])
    args = x, x[0], x[:, 0], np.float64(0.25), x > 3
    for own, other in zip(_programs(run, *args)(*args), run(*args), strict=True):
        np.testing.assert_array_equal(own, other)
        assert own.shape == other.shape


def test_what_is_not_read_any_more_is_freed():
    def chain(x):
        for i in range(40):
            x = x * 1.5 + i
        return x

    x = np.ones(1 << 18)
    run = _programs(chain, x)
    tracemalloc.start()
    run(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * x.nbytes


def test_numbers_next_to_zero_are_zero_as_in_compiled_programs():
    def run(x, one):
        return x * one, jnp.log(x), x > 0, jnp.exp(-740 + x), jnp.sum(x), x / 1e-310

    x, one = np.array([1e-310, -3e-320, 5e-324, 2.3e-308]), np.ones(4)
    found, wanted = _programs(run, x, one)(x, one), jax.jit(run)(x, one)
    for i, (own, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(own, other, err_msg=str(i))
    assert np.all(x * one != 0)


@pytest.mark.parametrize("flush", [False, True])
def test_threads_that_flush_subnormal_numbers_already(flush):
    """As XLA's do, from which a program's first question may come."""
    with _subnormal.flushed(flush):
        assert _subnormal.can_flush.__wrapped__()
        assert (np.float64(1e-310) * np.ones(9) > 0).any() != flush


def test_machines_on_which_subnormal_numbers_cannot_be_flushed(monkeypatch):
    monkeypatch.setattr(_subnormal, "_PLACES", {})
    assert not _subnormal.can_flush.__wrapped__()
    with pytest.raises(OSError, match="cannot be flushed"), _subnormal.flushed():
        pass
    monkeypatch.setattr(module, "can_flush", lambda: False)
    assert source_of(jax.make_jaxpr(lambda x: x + 1)(1.0)) is None


def test_what_has_no_rule_is_compiled():
    key = jax.random.key(1)
    closed = jax.make_jaxpr(jax.random.normal)(key)
    assert source_of(closed) is None  # a key as an argument
    other = lambda: jax.random.wrap_key_data(jnp.zeros(4, np.uint32), impl="rbg")
    assert source_of(jax.make_jaxpr(lambda: jax.random.bits(other()))()) is None
    held = jax.make_jaxpr(lambda: jax.random.bits(key))()
    assert source_of(held) is None
    draw = _compilation.jit_on_its_own(lambda key: jax.random.normal(key))
    assert draw(key) == jax.random.normal(key)
    inverse = jax.make_jaxpr(lambda x: jnp.linalg.inv(x))(np.eye(3))
    assert source_of(inverse) is None

    def tells(x):
        jax.debug.print("{}", x)
        return x + 1

    assert source_of(jax.make_jaxpr(tells)(1.0)) is None


@pytest.mark.parametrize("spent", ["before", "in a loop"])
def test_it_is_compiled_when_it_has_taken_as_long(spent, monkeypatch):
    """Programs that are asked often or run long are compiled: the same answer."""
    made = []
    original = _compilation._compiled
    monkeypatch.setattr(
        _compilation,
        "_compiled",
        lambda *args, **named: made.append(1) or original(*args, **named),
    )
    monkeypatch.setattr(_compilation, "_LEAST", 2000.0)

    def count(n):
        return lax.while_loop(lambda x: x < n, lambda x: x + 1.0, 0.0)

    ask = _compilation.jit_on_its_own(count)
    assert ask(jnp.asarray(3.0)) == 3
    assert not made
    if spent == "in a loop":
        assert ask(jnp.asarray(1e6)) == 1e6
    while not made:
        assert ask(jnp.asarray(3.0)) == 3
    assert ask(jnp.asarray(5.0)) == 5
    assert made == [1]


def test_what_is_compiled_at_once_does_not_depend_on_calls_before():
    run = fdp.Gaussian(1.3)
    with _compilation.compiled_at_once():
        compiled = run.bounds(delta=1e-7)
    for _ in range(2):
        run.bounds(delta=1e-6)
    with _compilation.compiled_at_once():
        again = run.bounds(delta=1e-7)
    ends = lambda x: (float(x.lower), float(x.estimate), float(x.upper))
    assert ends(compiled) == ends(again)
    ask = _compilation.jit_on_its_own(lambda x: x + 1)
    with _compilation.compiled_at_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interpreted, "__call__", None)
        assert ask(jnp.asarray(1.0)) == 2


def test_threads_have_work_of_their_own():
    run = _programs(
        lambda n: lax.while_loop(lambda x: x < n, lambda x: x + 1.0, 0.0), 1.0
    )
    given = [(np.float64(20_000), 1e9), (np.float64(1e9), 1e5)] * 2

    def ask(n, work):
        try:
            return float(run(n, work=work)[0])
        except TooLong:
            return None

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, *zip(*given, strict=True)))
    assert found == [20_000, None] * 2


def test_work_is_what_is_run():
    """Each assignment counts, that of many numbers more, and each repetition."""
    long = jnp.zeros(10_000)
    cases = [
        (lambda x: x + 1.0, (1.0,), 1.001),
        (lambda x: x + 1.0, (long,), 11.0),
        (lambda x: lax.fori_loop(0, 7, lambda i, y: y * x, x), (1.0,), 15.0),
        (lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x), (jnp.zeros(5),), 6.0),
    ]
    for fn, args, work in cases:
        left = _interpreted(fn, *args)(args, 1e6)[1]
        np.testing.assert_allclose(1e6 - left, work, rtol=0.3)


def test_interpreted_and_compiled_answers_are_the_same():
    """As far as roundings go; the ends hold them."""
    run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=1000)
    for mechanism in (fdp.Gaussian(1.0), run, fdp.Laplace(1.0).repeat(5)):
        found = mechanism.bounds(delta=1e-5)
        with _compilation.compiled_at_once():
            other = mechanism.bounds(delta=1e-5)
        np.testing.assert_allclose(found.estimate, other.estimate, rtol=1e-12)
        assert found.lower <= other.upper
        assert other.lower <= found.upper
