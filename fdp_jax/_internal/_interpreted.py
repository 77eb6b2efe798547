"""Traced programs as NumPy source: a first answer without the compiler.

XLA takes half a millisecond and more for every operation of a program, NumPy some
microseconds to run it.  A program that is asked a few times is run sooner than it is
compiled: see `_compilation`.  Same operations, same precision; sums are in another
order, and elementary functions are NumPy's, of the accuracy that the ledger of
tolerances allows for.
"""

import itertools
import marshal
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np

from ._numpy_operations import give, left, names, spend
from ._numpy_random import is_numeric
from ._numpy_rules import (
    SAME,
    SLOW,
    AbstractWriter,
    Unknown,
    called_by,
    expression,
    repeats_alone,
    repetition,
)
from ._subnormal import can_flush, flushed

_INLINE = 12
"""Equations up to which a called program stands where it is called."""
_Name = int | str
"""A value of a function that is being written, or the name of a constant."""
_Step = tuple[list[int], str, list[_Name], bool, float]
"""What is assigned, an expression, what it reads, whether it is a tuple; its work."""


class _Writer(AbstractWriter):
    """Writes functions, one for each program that is called or repeated."""

    def __init__(self):
        self.text: list[str] = []
        self.constants: dict[str, Any] = {}
        self.size = 0
        self._known: dict[Any, tuple[str, Any]] = {}
        self._work: dict[str, float] = {}
        self._repeated: dict[_Name, _Name] = {}
        """Of an array, what it repeats as NumPy does by itself."""

    def constant(self, value: Any, dtype: Any) -> str:
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            raise Unknown("constant")
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.tobytes()) if array.ndim == 0 else id(value)
        if key not in self._known:
            name = f"k{len(self.constants)}"
            self.constants[name] = array[()]
            self._known[key] = name, value
        return self._known[key][0]

    def function(self, closed: Any) -> str:
        """The name of the function that runs a traced program."""
        if id(closed) not in self._known:
            # Kept, so that no other one takes its address.
            name = f"f{len(self._known)}"
            self._known[id(closed)] = name, closed
            self._write(name, closed)
        return self._known[id(closed)][0]

    def work(self, *functions: str) -> float:
        return sum(self._work[name] for name in functions)

    def _write(self, name: str, closed: Any) -> None:
        outer, self._repeated = self._repeated, {}
        count = itertools.count()
        args = [next(count) for _ in closed.jaxpr.invars]
        every: list[_Step] = []
        outs = self._flatten(closed, args, every, count)
        self._repeated = outer
        steps, last = _needed(every, outs)
        # Names are given anew as soon as nobody reads them, which frees memory.
        names, free, made = {x: f"a{x}" for x in args}, [], itertools.count()
        head = f"def {name}({', '.join(names.values())}):"
        shown = lambda x: names[x] if isinstance(x, int) else x
        lines = []
        for i, (own, template, ins, several, _) in enumerate(steps):
            text = template.format(*map(shown, ins))
            free += {names[x] for x in ins if isinstance(x, int) and last[x] == i}
            for x in own:
                names[x] = free.pop() if free else f"x{next(made)}"
            targets = ", ".join(names[x] for x in own)
            lines.append(f"    {targets}{',' * several} = {text}")
            free += [names[x] for x in own if x not in last]
        self.size += len(lines)
        self._work[name] = round(sum(step[-1] for step in steps), 3)
        result = f"    return ({''.join(f'{shown(x)}, ' for x in outs)})"
        self.text.append("\n".join([head, *lines, result]))

    def _flatten(
        self, closed: Any, args: list[Any], steps: list[_Step], count: Iterator[int]
    ) -> list[_Name]:
        """All equations with called programs in their places; the names of results."""
        jaxpr = getattr(closed, "jaxpr", closed)
        names: dict[Any, _Name] = dict(zip(jaxpr.invars, args, strict=True))
        consts = getattr(closed, "consts", ())
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            names[var] = self.constant(value, var.aval.dtype)

        def read(atom: Any) -> _Name:
            kind: Any = atom.aval
            known = isinstance(atom, jec.Literal)
            return self.constant(atom.val, kind.dtype) if known else names[atom]

        for eqn in jaxpr.eqns:
            ins: list[_Name] = [read(x) for x in eqn.invars]
            own = eqn.outvars
            inner = called_by(eqn)
            body = getattr(inner, "jaxpr", inner)
            called = inner is not None
            if called and (body is inner or len(body.eqns) <= _INLINE):
                outs = self._flatten(inner, ins, steps, count)
                names.update(zip(own, outs, strict=True))
                continue
            if eqn.effects:
                raise Unknown(eqn.primitive.name)
            if not own:
                continue
            size = max([math.prod(v.aval.shape) for v in (*eqn.invars, *own)])
            work = 1 + size / (100 if eqn.primitive.name in SLOW else 1000)
            if called:
                name = self.function(inner)
                work = self.work(name)
                reads = ", ".join(f"{{{i}}}" for i in range(len(ins)))
                template = f"{name}({reads})"
            elif eqn.primitive.name == "broadcast_in_dim":
                narrow, template = repetition(eqn)
                if narrow != SAME:
                    steps.append(([next(count)], narrow, ins, False, 1.0))
                    ins = [*steps[-1][0]]
            else:
                template = expression(eqn, self)
            if template == SAME:
                names[own[0]] = ins[0]
                continue
            if repeats_alone(eqn, [x in self._repeated for x in ins]):
                ins = [self._repeated.get(x, x) for x in ins]
            values = [next(count) for _ in own]
            names.update(zip(own, values, strict=True))
            if eqn.primitive.name == "broadcast_in_dim":
                self._repeated[values[0]] = ins[0]
            several = called or eqn.primitive.multiple_results
            steps.append((values, template, ins, several, work))
        return [read(x) for x in jaxpr.outvars]


def _needed(
    every: list[_Step], outs: list[_Name]
) -> tuple[list[_Step], dict[int, int]]:
    """The steps that results depend on, and which of them reads a value last."""
    wanted, steps = {x for x in outs if isinstance(x, int)}, []
    for step in reversed(every):
        if not wanted.isdisjoint(step[0]):
            steps.append(step)
            wanted |= {x for x in step[2] if isinstance(x, int)}
    steps.reverse()
    last = {x: i for i, step in enumerate(steps) for x in step[2]}
    ends = {x: len(steps) for x in outs}
    return steps, {x: i for x, i in (last | ends).items() if isinstance(x, int)}


class Source(NamedTuple):
    """A program as code and constants."""

    code: bytes
    constants: dict[str, Any]
    entry: str
    size: int
    """Operations, those of repeated parts once."""
    work: float
    """Work of those that are not repeated, see `spend`."""


def source_of(closed: jec.ClosedJaxpr) -> Source | None:
    """A traced program for NumPy.

    None if some primitive of it has no rule, or this machine cannot calculate alike.
    """
    writer = _Writer()
    if not (can_flush() and all(map(is_numeric, closed.jaxpr.invars))):
        return None
    try:
        entry = writer.function(closed)
    except (KeyError, AttributeError, ValueError):
        # No rule, or another JAX names parameters or holds programs otherwise.
        return None
    code = compile("\n".join(writer.text), "<traced>", "exec")
    work = writer.work(entry)
    return Source(marshal.dumps(code), writer.constants, entry, writer.size, work)


class Interpreted:
    """A traced program that runs in NumPy."""

    def __init__(self, source: Source):
        known = names() | source.constants
        exec(marshal.loads(source.code), known)
        self._run, self.size = known[source.entry], source.size
        self._work = source.work

    def __call__(self, args: Sequence[Any], work: float) -> tuple[list[Any], float]:
        """The results, and what is left of the work that it may do.

        Raises:
            TooLong: If that is not enough.
        """
        give(work)
        spend(self._work)
        with np.errstate(all="ignore"), flushed():
            return list(self._run(*[np.asarray(x)[()] for x in args])), left()
