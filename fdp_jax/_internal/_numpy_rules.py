"""Equations of traced programs as NumPy expressions."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._numpy_random import KEY, drawing, is_key

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
    "exp exp2 expm1 log log1p sqrt cbrt sin cos tan sinh cosh tanh floor ceil "
    "conj erf erfc digamma"
)
_TEMPLATES |= {name: f"{name}({{0}})" for name in _SAME_NAME.split()}
_INVERSE = "asin acos atan asinh acosh atanh"
_TEMPLATES |= {name: f"arc{name[1:]}({{0}})" for name in _INVERSE.split()}
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
_WIDE = "float64", "complex128"
_SMALL = 4096
"""Numbers up to which copying them takes less time than a view."""


class Unknown(Exception):
    """A primitive that has no rule."""


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in atom.aval.shape)


def _kind(atom: Any) -> str:
    return KEY if is_key(atom) else str(atom.aval.dtype).replace("bool", "bool_")


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in values)


def is_numeric(atom: Any) -> bool:
    """Whether NumPy has such numbers: no random keys, and no short floats."""
    return getattr(atom.aval.dtype, "kind", "V") in "biufc"


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
        Unknown: If there is no rule for it.
    """
    name, own = eqn.primitive.name, eqn.params
    first: Any = eqn.invars[0] if eqn.invars else None
    last, function, constant = eqn.outvars[0], writer.function, writer.constant
    known = all(is_numeric(x) or is_key(x) for x in eqn.outvars)
    if own.get("out_dtype") is not None or not known:
        raise Unknown(name)
    if name in _TEMPLATES:
        return _TEMPLATES[name]
    every = ", ".join(f"{{{i}}}" for i in range(len(eqn.invars)))
    dtype = _kind(last)
    match name:
        case "div":
            return "{0} / {1}" if dtype[0] in "fc" else "quotient({0}, {1})"
        case "integer_pow":
            return f"whole_power({{0}}, {own['y']})"
        case "round":
            even = int(own["rounding_method"]) == 1
            return "rint({0})" if even else "half_away({0})"
        case "shift_right_logical":
            return f"({{0}}.view({'u' + dtype.lstrip('u')}) >> {{1}}).astype({dtype})"
        case "select_n" if first.aval.dtype == bool:
            alike = {_shape(x) for x in eqn.invars[1:]} == {_shape(last)}
            scalar = alike and not _shape(first)
            return "({2} if {0} else {1})" if scalar else "where({0}, {2}, {1})"
        case "select_n":
            return f"choose({{0}}, ({every[5:]}))"
        case "convert_element_type":
            pair = first.aval.dtype.kind, last.aval.dtype.kind
            if first.aval.dtype == last.aval.dtype:
                return SAME
            if pair[0] == "f" and pair[1] in "iu":
                return f"to_int({{0}}, {dtype})"
            real = ".real" if pair[0] == "c" and pair[1] != "c" else ""
            return f"{{0}}{real}.astype({dtype})"
        case "bitcast_convert_type":
            if first.aval.dtype.itemsize != last.aval.dtype.itemsize:
                raise Unknown(name)
            return f"{{0}}.view({dtype})"
        case "reshape" if own["dimensions"] is not None:
            moved = f"{{0}}.transpose({_ints(own['dimensions'])})"
            return f"{moved}.reshape({_shape(last)})"
        case "reshape" | "squeeze" | "expand_dims":
            shape, only = _shape(last), ", ".join("0" for _ in _shape(first))
            if shape == _shape(first):
                return SAME
            return f"{{0}}.reshape({shape})" if shape else f"{{0}}[{only}]"
        case "transpose":
            return f"{{0}}.transpose({_ints(own['permutation'])})"
        case "rev":
            return f"flip({{0}}, {_ints(own['dimensions'])})"
        case "slice":
            steps = own["strides"] or (1,) * len(own["start_indices"])
            parts = zip(own["start_indices"], own["limit_indices"], steps, strict=True)
            return f"{{0}}[{', '.join(f'{a}:{b}:{s}' for a, b, s in parts)}]"
        case "dynamic_slice" if len(_shape(first)) == 1:
            return f"short_window({{0}}, {int(own['slice_sizes'][0])}, {{1}})"
        case "dynamic_slice":
            return f"window({{0}}, {_ints(own['slice_sizes'])}{every[3:]})"
        case "dynamic_update_slice":
            return f"updated({every})"
        case "concatenate":
            return f"concatenate(({every},), {own['dimension']})"
        case "stack":
            if not _shape(first):
                return f"array(({every},))"
            return f"stack(({every},), {own['axis']})"
        case "unstack":
            return f"tuple(moveaxis({{0}}, {own['axis']}, 0))"
        case "pad":
            config = tuple(_ints(c) for c in own["padding_config"])
            return f"padded({{0}}, {{1}}, {config})"
        case "empty2":
            return f"zeros({_shape(last)}, {dtype})"
        case "iota_2x32_shape":
            return f"places({_ints(own['shape'])})"
        case "iota":
            shape, dim = _ints(own["shape"]), int(own["dimension"])
            inner = [1] * len(shape)
            inner[dim] = shape[dim]
            along = f"arange({shape[dim]}, dtype={dtype}).reshape({tuple(inner)})"
            return f"broadcast_to({along}, {shape})"
        case "reduce_sum" | "reduce_prod":
            op = "add" if name == "reduce_sum" else "multiply"
            return f"{op}.reduce({{0}}, {_ints(own['axes'])}, {dtype})"
        case "reduce_max" | "reduce_min" if 0 not in _shape(first):
            op = "maximum" if name == "reduce_max" else "minimum"
            return f"{op}.reduce({{0}}, {_ints(own['axes'])})"
        case "reduce_and" | "reduce_or" if dtype == "bool_":
            return f"logical_{name[7:]}.reduce({{0}}, {_ints(own['axes'])})"
        case "argmax" | "argmin" if 0 not in _shape(first):
            (axis,) = _ints(own["axes"])
            return f"{name}({{0}}, {axis}).astype({dtype})"
        case "cumsum" | "cumprod" | "cummax" | "cummin" | "cumlogsumexp":
            ops = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
            op = ops.get(name[3:], "logaddexp")
            return f"accumulated({op}, {{0}}, {own['axis']}, {own['reverse']})"
        case "reduce" if _only_adds(own["jaxpr"].jaxpr):
            half, axes = len(eqn.outvars), _ints(own["dimensions"])
            sums = [
                f"add.reduce({{{i}}}, {axes}) + {{{half + i}}}" for i in range(half)
            ]
            return f"({', '.join(sums)},)"
        case "top_k" if dtype[0] == "f":
            return f"largest({{0}}, {own['k']}, {own['axis']}, {_kind(eqn.outvars[1])})"
        case "split":
            cuts = _ints(np.cumsum(own["sizes"])[:-1])
            return f"tuple(split({{0}}, {cuts}, {own['axis']}))"
        case "sort":
            return f"sorted({own['num_keys']}, {own['dimension']}, {every})"
        case "dot_general":
            (left, right), (batch, _) = own["dimension_numbers"]
            if np.result_type(*(x.aval.dtype for x in eqn.invars)) != last.aval.dtype:
                raise Unknown(name)  # a sum of more digits
            if not batch:
                return f"tensordot({{0}}, {{1}}, {(_ints(left), _ints(right))})[()]"
            return _einsum(own["dimension_numbers"], eqn)
        case "gather" if is_numeric(first):
            dims = own["dimension_numbers"]
            gone = _ints(dims.collapsed_slice_dims) + _ints(dims.operand_batching_dims)
            where = _ints(dims.start_index_map), _ints(dims.operand_batching_dims)
            where = (*where, _ints(dims.start_indices_batching_dims))
            rest = _ints(dims.offset_dims), gone, where, _ints(own["slice_sizes"])
            fill = constant(
                _fill(own["fill_value"], first.aval.dtype), first.aval.dtype
            )
            how = f"{_mode(own)!r}, {fill}"
            if _takes(rest, eqn):
                return f"taken({{0}}, {{1}}, {gone[0]}, {how})"
            return f"gathered({{0}}, {{1}}, {str(rest)[1:-1]}, {how})"
        case "scatter" | "scatter-add" | "scatter-mul" | "scatter-max" | "scatter-min":
            dims = own["dimension_numbers"]
            gone = _ints(dims.inserted_window_dims) + _ints(dims.operand_batching_dims)
            where = (
                _ints(dims.scatter_dims_to_operand_dims),
                _ints(dims.operand_batching_dims),
                _ints(dims.scatter_indices_batching_dims),
            )
            rest = (_ints(dims.update_window_dims), gone), where
            ops = {
                "-add": "add",
                "-mul": "multiply",
                "-max": "maximum",
                "-min": "minimum",
            }
            how = f"{str(rest)[1:-1]}, {_mode(own)!r}"
            return f"scattered({ops.get(name[7:])}, {every}, {how})"
        case "fft" if len(own["fft_lengths"]) == 1 and dtype in _WIDE:
            kind, (length,) = int(own["fft_type"]), own["fft_lengths"]
            return f"transformed({kind}, {int(length)}, {{0}})"
        case "qr" if not own["pivoting"]:
            how = "complete" if own["full_matrices"] else "reduced"
            return f"tuple(linalg.qr({{0}}, '{how}'))"
        case "platform_index":
            fits = [p is None or "cpu" in p for p in own["platforms"]]
            return f"{dtype}({fits.index(True)})"
        case "optimization_barrier":
            return f"({every},)"
        case "while":
            test = function(own["cond_jaxpr"])
            body = function(own["body_jaxpr"])
            counts = f"{own['cond_nconsts']}, {own['body_nconsts']}"
            return f"loop({test}, {body}, {writer.work(test, body)}, {counts}, {every})"
        case "scan":
            split = int(own["num_consts"]), int(own["num_carry"])
            kinds = tuple((_shape(v)[1:], _kind(v)) for v in eqn.outvars[split[1] :])
            body = function(own["jaxpr"])
            how = f"{int(own['length'])}, {own['reverse']}, {split}, {kinds}"
            return f"scan({body}, {writer.work(body)}, {how}, {every})"
        case "cond":
            branches = ", ".join(map(function, own["branches"]))
            return f"branch({{0}}, ({branches},){every[3:]})"
    raise Unknown(name)


def called_by(eqn: Any) -> Any:
    """The program that an equation runs once; None if it is none."""
    return eqn.params.get(CALLS.get(eqn.primitive.name, "")) or drawing(eqn)


def repetition(eqn: Any) -> tuple[str, str]:
    """`broadcast_in_dim`: an array with as many dimensions, and that repeated."""
    (first,), (last,) = eqn.invars, eqn.outvars
    shape, dims = _shape(last), _ints(eqn.params["broadcast_dimensions"])
    inner = [1] * len(shape)
    for dim, n in zip(dims, _shape(first), strict=True):
        inner[dim] = n
    narrow = _shape(first) if len(dims) in (0, len(shape)) else tuple(inner)
    repeat = "spread" if np.prod(shape) <= _SMALL else "broadcast_to"
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
    if value is None and dtype.kind in "fc":
        value = np.nan
    elif value is None:
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        value = True if info is None else info.max if dtype.kind == "u" else info.min
    return np.asarray(value, dtype)


def _takes(numbers: tuple, eqn: Any) -> bool:
    """Whether a gather takes whole rows along one axis, and leaves the others there."""
    offset, gone, where, sizes = numbers
    if len(gone) != 1 or where != (gone, (), ()):
        return False
    (axis,), shape = gone, _shape(eqn.invars[0])
    lanes = len(_shape(eqn.invars[1])) - 1
    rest = [i if i < axis else i + lanes - 1 for i in range(len(shape)) if i != axis]
    whole = [1 if i == axis else n for i, n in enumerate(shape)]
    return list(sizes) == whole and list(offset) == rest


def _only_adds(inner: Any) -> bool:
    """Whether a reduction adds its arrays up, each by itself."""
    half = len(inner.outvars)
    sides = inner.invars[:half], inner.invars[half:], inner.outvars
    wanted = [("add", *x) for x in zip(*sides, strict=True)]
    return wanted == [(e.primitive.name, *e.invars, *e.outvars) for e in inner.eqns]


def _mode(own: dict[str, Any]) -> str:
    """The treatment of windows that do not fit: "clip" moves them."""
    mode = str(own["mode"]).rpartition(".")[-1]
    modes = {"FILL_OR_DROP": "drop", "CLIP": "clip", "PROMISE_IN_BOUNDS": "clip"}
    if mode not in modes:
        raise Unknown(mode)
    return modes[mode]


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
