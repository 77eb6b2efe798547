"""Equations of traced programs as NumPy expressions."""

import abc
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ._numpy_random import KEY, drawing, is_key, is_numeric

SAME = "{0}"
"""The expression of what changes nothing."""
_TEMPLATES = {
    "add": "{0} + {1}",
    "add_any": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "abs": "abs({0})",
    "square": "{0} * {0}",
    "one_minus_square": "(1 + {0}) * (1 - {0})",
    "rsqrt": "1 / sqrt({0})",
    "logistic": "expit({0})",
    "erf_inv": "erfinv({0})",
    "lgamma": "gammaln({0})",
    "igamma": "gammainc({0}, {1})",
    "igammac": "gammaincc({0}, {1})",
    "regularized_incomplete_beta": "betainc({0}, {1}, {2})",
    "unvmap_any": "any({0})",
    "unvmap_all": "all({0})",
    "unvmap_max": "max({0})",
    "is_finite": "isfinite({0})",
    "max": "maximum({0}, {1})",
    "min": "minimum({0}, {1})",
    "clamp": "minimum(maximum({1}, {0}), {2})",
    "sign": "where({0} == 0, {0}, sign({0}))[()]",
    "rem": "fmod({0}, {1})",
    "pow": "power({0}, {1})",
    "atan2": "arctan2({0}, {1})",
    "nextafter": "nextafter({0}, {1})",
    "complex": "complex({0}, {1})",
    "real": "{0}.real",
    "imag": "{0}.imag",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt_to": "ordered({0}) < ordered({1})",
    "le_to": "ordered({0}) <= ordered({1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "~{0}",
    "shift_left": "{0} << {1}",
    "shift_right_arithmetic": "{0} >> {1}",
    "stop_gradient": SAME,
    "copy": SAME,
    "copy_p": SAME,
    "random_wrap": "wrapped({0})",
    "random_unwrap": "unwrapped({0})",
    "threefry2x32": "threefry({0}, {1}, {2}, {3})",
}
_SAME_NAME = (
    "exp exp2 expm1 log log1p log2 sqrt cbrt sin cos tan sinh cosh tanh floor ceil "
    "conj erf erfc digamma"
)
_TEMPLATES |= {name: f"{name}({{0}})" for name in _SAME_NAME.split()}
_INVERSE = "asin acos atan asinh acosh atanh"
_TEMPLATES |= {name: f"arc{name[1:]}({{0}})" for name in _INVERSE.split()}
_BY_PARAMETERS = {
    "integer_pow": "whole_power({{0}}, {y})",
    "select_n": "choose({{0}}, ({rest}))",
    "polynomial": "horner({every})",
    "bitcast_convert_type": "{{0}}.view({kind})",
    "shift_right_logical": "({{0}}.view({unsigned}) >> {{1}}).astype({kind})",
    "transpose": "{{0}}.transpose({permutation})",
    "rev": "flip({{0}}, {dimensions})",
    "tile": "tile({{0}}, {reps})",
    "dynamic_slice": "window({{0}}, {slice_sizes}, {rest})",
    "dynamic_update_slice": "updated({every})",
    "concatenate": "concatenate(({every},), {dimension})",
    "stack": "stack(({every},), {axis})",
    "unstack": "tuple(moveaxis({{0}}, {axis}, 0))",
    "pad": "padded({{0}}, {{1}}, {padding_config})",
    "empty2": "zeros({out}, {kind})",
    "iota_2x32_shape": "places({shape})",
    "reduce_sum": "add.reduce({{0}}, {axes}, {kind})",
    "reduce_prod": "multiply.reduce({{0}}, {axes}, {kind})",
    "reduce_max": "maximum.reduce({{0}}, {axes})",
    "reduce_min": "minimum.reduce({{0}}, {axes})",
    "reduce_and": "logical_and.reduce({{0}}, {axes})",
    "reduce_or": "logical_or.reduce({{0}}, {axes})",
    "argmax": "argmax({{0}}, {axes[0]}).astype({kind})",
    "argmin": "argmin({{0}}, {axes[0]}).astype({kind})",
    "cumsum": "accumulated(add, {{0}}, {axis}, {reverse})",
    "cumprod": "accumulated(multiply, {{0}}, {axis}, {reverse})",
    "cummax": "accumulated(maximum, {{0}}, {axis}, {reverse})",
    "cummin": "accumulated(minimum, {{0}}, {axis}, {reverse})",
    "cumlogsumexp": "accumulated(logaddexp, {{0}}, {axis}, {reverse})",
    "top_k": "largest({{0}}, {k}, {axis}, {kinds[1]})",
    "sort": "sorted({num_keys}, {dimension}, {every})",
    "optimization_barrier": "({every},)",
}
"""Formats of an equation's parameters, its operands (`rest` without the first one), the
shape of its result and the kinds of all its results; what comes out is a format again.
"""
_SCATTERED = {
    "scatter": None,
    "scatter-add": "add",
    "scatter-mul": "multiply",
    "scatter-max": "maximum",
    "scatter-min": "minimum",
}
_GATHER = (
    "offset_dims collapsed_slice_dims start_index_map start_indices_batching_dims "
    "operand_batching_dims"
)
_SCATTER = (
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims "
    "scatter_indices_batching_dims operand_batching_dims"
)
_ELEMENTWISE = (
    "add add_any sub mul div rem max min pow atan2 nextafter clamp select_n "
    "eq ne lt le gt ge and or xor"
)
_BY_ELEMENT = frozenset(_ELEMENTWISE.split())
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
"""Primitives that run another program once, and the parameter that holds it."""
SLOW = {"erf_inv", "threefry2x32"}
"""What takes NumPy ten times as long as a product, at least."""
_MODES = {"FILL_OR_DROP": "drop", "CLIP": "clip", "PROMISE_IN_BOUNDS": "clip"}
_WIDE = "float64", "complex128"
_SMALL = 4096
"""Numbers up to which copying them takes less time than a view."""


# NumPy takes longer to print a kind than the rest of a rule.
_printed = functools.cache(lambda kind: str(kind).replace("bool", "bool_"))
_whole = functools.lru_cache(1024)(lambda shape: tuple(map(int, shape)))


class Unknown(KeyError):
    """A primitive that has no rule."""


def _shape(atom: Any) -> tuple[int, ...]:
    return _whole(atom.aval.shape)


def _kind(atom: Any) -> str:
    return KEY if is_key(atom) else _printed(atom.aval.dtype)


def _plain(value: Any) -> Any:
    """A parameter as it is printed: whole numbers and tuples of them as Python's."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return int(value) if isinstance(value, np.integer) else value


def _is_beyond(name: str, eqn: Any) -> bool:
    """Whether NumPy does something else with operands of such a kind or shape."""
    if name in {"reduce_max", "reduce_min", "argmax", "argmin"}:
        return 0 in _shape(eqn.invars[0])
    if name in {"reduce_and", "reduce_or"}:
        return _kind(eqn.outvars[0]) != "bool_"
    return name == "top_k" and _kind(eqn.outvars[0])[0] != "f"


class AbstractWriter(abc.ABC):
    """Names that expressions refer to."""

    @abc.abstractmethod
    def function(self, closed: Any) -> str:
        """The function that runs a traced program."""

    @abc.abstractmethod
    def constant(self, value: Any, dtype: Any) -> str:
        """A number or an array."""

    @abc.abstractmethod
    def work(self, *functions: str) -> float:
        """The work of some functions, without what they repeat."""


def expression(eqn: Any, writer: AbstractWriter) -> str:
    """An equation as an expression: a format of the names that it reads.

    A tuple, also of one, where the primitive has several results.

    Raises:
        KeyError: If there is no rule for it.
    """
    name = eqn.primitive.name
    known = eqn.params.get("out_dtype") is None and all(
        is_numeric(x) or is_key(x) for x in eqn.outvars
    )
    if not known or _is_beyond(name, eqn):
        raise Unknown(name)
    if name in _TEMPLATES:
        return _TEMPLATES[name]
    first: Any = eqn.invars[0] if eqn.invars else None
    last, function, constant = eqn.outvars[0], writer.function, writer.constant
    dtype, shape = _kind(last), _shape(last)
    own = {key: _plain(value) for key, value in eqn.params.items()}
    operands = [f"{{{i}}}" for i in range(len(eqn.invars))]
    every, rest = ", ".join(operands), ", ".join(operands[1:])
    match name:
        case "div":
            return "{0} / {1}" if dtype[0] in "fc" else "quotient({0}, {1})"
        case "round":
            even = int(own["rounding_method"]) == 1
            return "rint({0})" if even else "half_away({0})"
        case "select_n" if first.aval.dtype == bool:
            alike = {_shape(x) for x in eqn.invars[1:]} == {shape}
            scalar = alike and not _shape(first)
            return "({2} if {0} else {1})" if scalar else "where({0}, {2}, {1})"
        case "convert_element_type":
            pair = first.aval.dtype.kind, last.aval.dtype.kind
            if first.aval.dtype == last.aval.dtype:
                return SAME
            if pair[0] == "f" and pair[1] in "iu":
                return f"to_int({{0}}, {dtype})"
            real = ".real" if pair[0] == "c" and pair[1] != "c" else ""
            return f"{{0}}{real}.astype({dtype})"
        case "bitcast_convert_type" if (
            first.aval.dtype.itemsize != last.aval.dtype.itemsize
        ):
            raise Unknown(name)
        case "reshape" if own["dimensions"] is not None:
            return f"{{0}}.transpose({own['dimensions']}).reshape({shape})"
        case "reshape" | "squeeze" | "expand_dims":
            only = ", ".join("0" for _ in _shape(first))
            if shape == _shape(first):
                return SAME
            return f"{{0}}.reshape({shape})" if shape else f"{{0}}[{only}]"
        case "slice":
            steps = own["strides"] or (1,) * len(own["start_indices"])
            parts = zip(own["start_indices"], own["limit_indices"], steps, strict=True)
            return f"{{0}}[{', '.join(f'{a}:{b}:{s}' for a, b, s in parts)}]"
        case "dynamic_slice" if len(_shape(first)) == 1:
            return f"short_window({{0}}, {own['slice_sizes'][0]}, {{1}})"
        case "stack" if not _shape(first):
            return f"array(({every},))"
        case "iota":
            dim = own["dimension"]
            inner = tuple(n if i == dim else 1 for i, n in enumerate(shape))
            along = f"arange({shape[dim]}, dtype={dtype}).reshape({inner})"
            return f"broadcast_to({along}, {shape})"
        case "reduce" if _only_adds(own["jaxpr"].jaxpr):
            half, axes = len(eqn.outvars), own["dimensions"]
            sums = [
                f"add.reduce({{{i}}}, {axes}) + {{{half + i}}}" for i in range(half)
            ]
            return f"({', '.join(sums)},)"
        case "split":
            cuts = tuple(np.cumsum(own["sizes"])[:-1].tolist())
            return f"tuple(split({{0}}, {cuts}, {own['axis']}))"
        case "dot_general":
            (left, right), (batch, _) = own["dimension_numbers"]
            if np.result_type(*(x.aval.dtype for x in eqn.invars)) != last.aval.dtype:
                raise Unknown(name)  # a sum of more digits
            # One number is summed here: BLAS would wait for threads of its own.
            if not batch and shape:
                return f"tensordot({{0}}, {{1}}, {(left, right)})[()]"
            return _einsum(own["dimension_numbers"], eqn)
        case "gather" if is_numeric(first):
            offset, gone, where = _windows(eqn, _GATHER)
            places = offset, gone, where, own["slice_sizes"]
            kind = first.aval.dtype
            how = f"{_mode(own)!r}, {constant(_fill(own['fill_value'], kind), kind)}"
            return f"gathered({{0}}, {{1}}, {str(places)[1:-1]}, {how})"
        case _ if name in _SCATTERED:
            window, gone, where = _windows(eqn, _SCATTER)
            how = f"{(window, gone)}, {where}, {_mode(own)!r}"
            return f"scattered({_SCATTERED[name]}, {every}, {how})"
        case "fft" if len(own["fft_lengths"]) == 1 and dtype in _WIDE:
            kind, (length,) = int(own["fft_type"]), own["fft_lengths"]
            return f"transformed({kind}, {int(length)}, {{0}})"
        case "platform_index":
            fits = [p is None or "cpu" in p for p in own["platforms"]]
            return f"{dtype}({fits.index(True)})"
        case "while":
            test, body = function(own["cond_jaxpr"]), function(own["body_jaxpr"])
            how = writer.work(test, body), own["cond_nconsts"], own["body_nconsts"]
            return f"loop({test}, {body}, {str(how)[1:-1]}, {every})"
        case "scan":
            # From JAX 0.11 on, a tree of what goes in.
            parts = own["ft_in"].unpack() if "ft_in" in own else ()
            sizes = tuple(map(len, parts)) or (own["num_consts"], own["num_carry"])
            split = sizes[:2]
            kinds = tuple((_shape(v)[1:], _kind(v)) for v in eqn.outvars[split[1] :])
            body = function(own["jaxpr"])
            how = f"{int(own['length'])}, {own['reverse']}, {split}, {kinds}"
            return f"scan({body}, {writer.work(body)}, {how}, {every})"
        case "cond":
            branches = ", ".join(map(function, own["branches"]))
            return f"branch({{0}}, ({branches},){every[3:]})"
    kinds = [_kind(x) for x in eqn.outvars]
    others = {"unsigned": f"u{dtype.lstrip('u')}", "kind": dtype, "kinds": kinds}
    return _BY_PARAMETERS[name].format(
        **{**own, **others, "every": every, "rest": rest, "out": shape}
    )


def _windows(eqn: Any, names: str) -> tuple[tuple, tuple, tuple]:
    """The windows' dimensions, those they do not keep, and where their places go."""
    numbers = eqn.params["dimension_numbers"]
    kept, gone, mapped, own, batch = (
        _plain(getattr(numbers, name)) for name in names.split()
    )
    return kept, (*gone, *batch), (mapped, batch, own)


def called_by(eqn: Any) -> Any:
    """The program that an equation runs once; None if it is none."""
    own = eqn.params.get("_prim")
    if own is not None:
        return _expanded(own)
    return eqn.params.get(CALLS.get(eqn.primitive.name, "")) or drawing(eqn)


def _expanded(own: Any) -> Any:
    """The program of a function of JAX that has rules of its own, from 0.12 on."""
    if hasattr(own, "traced"):
        return own.traced.jaxpr
    flat = lambda *x: jax.tree.leaves(own.expand(*jax.tree.unflatten(own.in_tree, x)))
    with jax.enable_x64(True):
        return jax.make_jaxpr(flat)(*own.in_avals_flat)


def repetition(eqn: Any) -> tuple[str, str]:
    """`broadcast_in_dim`: an array with as many dimensions, and that repeated."""
    (first,), (last,) = eqn.invars, eqn.outvars
    shape, dims = _shape(last), eqn.params["broadcast_dimensions"]
    sizes = dict(zip(dims, _shape(first), strict=True))
    inner = tuple(sizes.get(i, 1) for i in range(len(shape)))
    narrow = _shape(first) if len(dims) in (0, len(shape)) else inner
    repeat = "spread" if math.prod(shape) <= _SMALL else "broadcast_to"
    return (
        SAME if narrow == _shape(first) else f"{{0}}.reshape({narrow})",
        SAME if narrow == shape else f"{repeat}({{0}}, {shape})",
    )


def repeats_alone(eqn: Any, repeated: Sequence[bool]) -> bool:
    """Whether NumPy would repeat those operands of an operation that are repeated.

    It does if an operand is as large as the result by itself.
    """
    name, shape = eqn.primitive.name, _shape(eqn.outvars[0])
    if not (any(repeated) and name in _BY_ELEMENT):
        return False
    pairs = zip(eqn.invars, repeated, strict=True)
    whole = [_shape(x) == shape and not again for x, again in pairs]
    # A choice by one number is not made by element.
    return any(whole) and (name != "select_n" or _shape(eqn.invars[0]) == shape)


def _fill(value: Any, dtype: Any) -> Any:
    """The value of a gather outside, by default JAX's."""
    if value is None:
        least = np.iinfo(dtype).min if dtype.kind == "i" else np.nan
        value = np.iinfo(dtype).max if dtype.kind == "u" else least
    return np.asarray(value, dtype)


def _only_adds(inner: Any) -> bool:
    """Whether a reduction adds its arrays up, each by itself."""
    half = len(inner.outvars)
    sides = inner.invars[:half], inner.invars[half:], inner.outvars
    wanted = [("add", *x) for x in zip(*sides, strict=True)]
    return wanted == [(e.primitive.name, *e.invars, *e.outvars) for e in inner.eqns]


def _mode(own: dict[str, Any]) -> str:
    """The treatment of windows that do not fit: "clip" moves them."""
    return _MODES[str(own["mode"]).rpartition(".")[-1]]


def _einsum(numbers: Any, eqn: Any) -> str:
    (left, right), (batch, batch_right) = numbers
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    one = [next(letters) for _ in _shape(eqn.invars[0])]
    other = [next(letters) for _ in _shape(eqn.invars[1])]
    for i, j in zip((*left, *batch), (*right, *batch_right), strict=True):
        other[j] = one[i]
    own = [x for i, x in enumerate(one) if i not in (*left, *batch)]
    more = [x for i, x in enumerate(other) if i not in (*right, *batch_right)]
    out = "".join([*(one[i] for i in batch), *own, *more])
    return f"einsum('{''.join(one)},{''.join(other)}->{out}', {{0}}, {{1}})"
