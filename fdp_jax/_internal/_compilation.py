"""Programs that compile sooner where nothing else is being compiled."""

import contextlib
import contextvars
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.monitoring
import numpy as np
from jaxtyping import PyTree

from ._interpreted import Interpreted, Source, source_of
from ._numpy_operations import TooLong
from ._place import device, on_cpu
from ._program_cache import calls_back, folder, is_off, key_of, load, store
from ._setting import setting
from ._signature import Signature
from ._subnormal import can_flush
from ._waiting import waiting

OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_prefer_vector_width": 512}
"""XLA's older code generator for CPUs, which compiles hundreds of small loops in 40 %
of the time, and vectors as wide as there are: 10 % of the time more to compile, 20 %
less to run (jaxlib 0.10.2)."""


_PER_OPERATION, _LEAST = 600.0, 50_000.0
"""Work (`_numpy_operations.spend`, about 2 microseconds) up to which a program is
interpreted, for each operation and of the smallest one: about as long as compiling it
takes, so that a first answer costs twice that at most, about."""
_SWITCH = "FDP_JAX_INTERPRET"
"""Of the environment: "off" compiles every program at its first call."""
_AT_ONCE = contextvars.ContextVar("at once", default=False)
"""Whether programs are compiled before their first call."""
_MAKING = threading.RLock()
"""Held while a program is compiled or read: threads that need the same one would each
make it, with a gigabyte of memory for one of the larger ones."""
_KNOWN = {"builtins", "collections", "fdp_jax", "equinox", "jax", "jaxlib", "numpy"}
"""Packages whose versions or sources are part of the name of a program."""
_MOST_PROGRAMS = 1024
"""Signatures of one function that are remembered; the bound only stops growth."""


_HITS = [0]
"""Programs that JAX's own cache had."""


def _count_hits(event: str, **_: Any) -> None:
    _HITS[0] += event == "/jax/compilation_cache/cache_hits"


jax.monitoring.register_event_listener(_count_hits)


def compiled_at_once() -> contextlib.AbstractContextManager[None]:
    """A context in which nothing is interpreted.

    Answers then do not depend, in their last digits, on what was asked before.
    """
    return setting(_AT_ONCE, True)


def options_here() -> dict[str, Any]:
    """The options, on a CPU, of those that this jaxlib knows."""
    return _options() if on_cpu() else {}


@functools.cache
def _options() -> dict[str, Any]:
    known = {name: x for name, x in OPTIONS.items() if _is_known(name, x)}
    return {"compiler_options": known} if known else {}


def _is_known(name: str, value: Any) -> bool:
    """Whether this jaxlib has such an option; 0.11 has no other fusion emitters."""
    try:
        jax.jit(lambda x: x, compiler_options={name: value})(0.0)
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True


def jit_on_its_own(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`eqx.filter_jit` for calls from outside all transformations.

    Only those may have options of their own, which JAX refuses inside another program,
    and only those are kept on disk for the next process: see `_program_cache`.
    """
    known: dict[Any, Callable[..., Any]] = {}
    name = _lasting_name(fn)
    jitted_for = functools.cache(lambda *_: eqx.filter_jit(fn, **options_here()))

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        jitted = jitted_for(device())
        if not _is_plain():
            return jitted(*args, **kwargs)
        signature, arrays = Signature.of((args, kwargs))
        key = (device(), signature, *((x.shape, x.dtype) for x in arrays))
        if key not in known:
            with _MAKING, waiting():
                if len(known) >= _MOST_PROGRAMS:
                    known.clear()
                if key not in known:  # another thread may have made it meanwhile
                    known[key] = _program(fn, name, signature, arrays) or jitted
        program = known.get(key, jitted)
        if program is not jitted and all(map(_is_here, arrays)):
            return program(arrays)
        return jitted(*args, **kwargs)

    return wrapped


def compiled_for(
    devices: Sequence[Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    name: str | None,
) -> Callable[..., Any]:
    """A function that runs so often that its speed counts most, from disk or compiled.

    Args:
        devices: What it runs on.
        fn: The function.
        args: What it will be given, as shapes that say where they lie.
        name: What it computes, the same in every process, so that it need not be traced
            to be found on disk; None if only its text says so.
    """
    options = options_here()
    jitted = jax.jit(fn, keep_unused=True, **options)
    if not _is_plain() or folder() is None:
        return jitted
    # Of devices only the number is in the text of a program.
    parts = str([device.id for device in devices]), str(options)
    key = None if name is None else key_of("name", name, *parts)
    found = None if key is None else load(key, devices)
    if found is not None:
        return found[0]
    traced = jitted.trace(*args)
    if calls_back(traced.jaxpr.jaxpr):
        return jitted
    return _compiled(traced.lower(), key, parts, devices=devices)


def _compiled(
    lowered: Any,
    key: str | None,
    parts: Sequence[str],
    *,
    beside: Any = None,
    devices: Sequence[Any] | None = None,
) -> Callable[..., Any]:
    """A compiled program, from disk or for it.

    What JAX's own cache had is not kept: written once more (jaxlib 0.10.2), it lacks
    functions.

    Args:
        lowered: The program.  All its arguments must be kept: its text does not have
            those that are not used, and would be that of another program.
        key: Its name; None if only its text says what it is.
        parts: What it depends on besides.
        beside: What is kept with it.
        devices: Those it runs on; the default one if None.
    """
    if key is None and folder() is not None:
        # The text does not name what goes in and comes out.
        trees = str(lowered.in_tree), str(lowered.out_tree)
        key = key_of("text", lowered.as_text(), *trees, *parts)
    found = None if key is None else load(key, devices)
    if found is not None and found[0] is not None:
        return found[0]
    hits, compiled = _HITS[0], lowered.compile()
    if key is not None and _HITS[0] == hits:
        store(key, compiled, beside)
    return compiled


def _circumstances() -> tuple[str, str]:
    """Options and device of a plain call's program."""
    return str(options_here()), str(device().id)


def struct_of(array: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype, without weak type, which would only split the caches."""
    aval = jax.typeof(array)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _lasting_name(fn: Callable[..., Any]) -> str | None:
    """The name of a function of this package that is the same in every process.

    None for functions that hold on to something: their names do not say what.
    """
    inner = inspect.unwrap(fn)
    if not isinstance(inner, types.FunctionType) or inner.__closure__ is not None:
        return None
    ours = inner.__module__.split(".")[0] == "fdp_jax"
    nested = "<" in inner.__qualname__
    return f"{inner.__module__}.{inner.__qualname__}" if ours and not nested else None


def _program(
    fn: Callable[..., Any], name: str | None, signature: Signature, arrays: list[Any]
) -> Callable[..., Any] | None:
    """The function of arrays alone; None if it has no program.

    Interpreted until it is worth compiling, from disk or for it.  The structure of what
    it returns is found out by tracing it, and kept with it.
    """
    key, (structure, static) = None, signature
    if not (name is None or folder() is None or any(foreign_classes(*signature))):
        kinds = [f"{x.dtype}{x.shape}" for x in arrays]
        kinds = [str(structure), *map(repr, static), *kinds]
        key = key_of(name, *kinds, *_circumstances())
    trace = functools.cache(lambda: _traced(fn, signature, arrays))

    def lower() -> Any:
        traced, _ = trace()
        trace.cache_clear()
        return traced.lower()

    compiled, beside = (key and load(key)) or (None, None)
    if beside is None:
        traced, skeleton = trace()
        if calls_back(traced.jaxpr.jaxpr):
            return None
        beside = skeleton, source_of(traced.jaxpr)
        if beside[1] is not None and key is not None:
            store(key, None, beside)
    skeleton, source = beside
    program = compiled or _Sooner(source, lower, key=key, beside=(skeleton, None))
    result, _ = Signature.of(skeleton)
    return lambda leaves: result.rebuild(program(leaves))


class _Sooner:
    """A program that is interpreted for as long as compiling it would take."""

    def __init__(
        self,
        source: Source | None,
        lower: Callable[[], Any],
        *,
        key: str | None = None,
        beside: Any = None,
    ):
        # A source on disk may have been written where subnormal numbers can be flushed.
        self._own, self._left = None, 0.0
        if source is not None and not is_off(_SWITCH) and can_flush():
            self._own = Interpreted(source)
            self._left = _LEAST + source.size * _PER_OPERATION
        self._lower, self._key, self._beside = lower, key, beside
        self._compiled: Callable[..., list[Any]] | None = None

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        own = None if _AT_ONCE.get() or self._left <= 0 else self._own
        if self._compiled is None and own is not None:
            try:
                with waiting():
                    found, self._left = own(args, self._left)
            except TooLong:
                self._left = 0.0
            else:
                with jax.enable_x64(True):
                    return jax.device_put(found)
        if self._compiled is None:
            with _MAKING, waiting():
                if self._compiled is None:
                    self._compiled = _compiled(
                        self._lower(), self._key, _circumstances(), beside=self._beside
                    )
        return self._compiled(list(args))


def _traced(
    fn: Callable[..., Any], signature: Signature, arrays: Sequence[Any]
) -> tuple[Any, PyTree]:
    """A program of arrays, and the skeleton of its result."""
    results = []

    def flat(leaves: list[Any]) -> list[Any]:
        args, kwargs = signature.rebuild(leaves)
        result, found = Signature.of(fn(*args, **kwargs))
        results.append(result.skeleton)
        return found

    jitted = jax.jit(flat, keep_unused=True, **options_here())
    return jitted.trace(list(map(struct_of, arrays))), results[-1]


def _is_plain() -> bool:
    """Whether programs are compiled here and now for the CPU, without any extras."""
    # Pyright does not see the flags, which JAX adds to its configuration on import.
    config: Any = jax.config
    extras = config.jax_disable_jit, config.jax_debug_nans, config.jax_debug_infs
    return on_cpu() and not any(extras)


def _is_here(leaf: Any) -> bool:
    """Whether an array is where programs run, or goes there by itself."""
    return isinstance(leaf, np.ndarray) or leaf.devices() == {device()}


def foreign_classes(structure: Any, leaves: Iterable[Any] = ()) -> Iterator[type]:
    """The classes in a tree that may be others in the next process, of the same names.

    Those of this package and of the libraries that it is made with are covered by the
    name of a program; a user's are not.
    """
    for value in constituents(structure, leaves):
        kind = value if isinstance(value, type) else type(value)
        if is_foreign(kind):
            yield kind


def constituents(structure: Any, leaves: Iterable[Any] = ()) -> Iterator[Any]:
    """The leaves and all that is static in a tree, down to what these consist of."""
    for leaf in leaves:
        yield from _parts_of(leaf)
    node = structure.node_data()
    if node is not None:
        yield from _parts_of(node)
    for child in structure.children():
        yield from constituents(child)


def _parts_of(value: Any) -> Iterator[Any]:
    yield value
    parts = list(value.values()) if isinstance(value, dict) else value
    for part in parts if isinstance(parts, list | tuple) else ():
        yield from _parts_of(part)


def is_foreign(kind: type) -> bool:
    """Whether a class is neither this package's nor of a library it is made with."""
    return kind.__module__.split(".")[0] not in _KNOWN
