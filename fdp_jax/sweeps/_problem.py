"""What is computed for one configuration, traced or with known numbers."""

import dataclasses
import hashlib
import inspect
import re
from types import CodeType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from .._internal._calls import suggestion
from .._internal._compilation import foreign_classes, is_foreign
from .._internal._host import whole_programs
from ..calibration import AbstractTarget
from ..curves import AbstractGuarantee, Status, is_wide
from ..engines import can_split
from ..losses import AUTO
from ..mechanisms import AbstractMechanism, View, by_contour, resolve
from ._queries import Query, Row, call, parameters_of

REFUSALS = (
    *(ValueError, ArithmeticError),
    *(eqx.EquinoxRuntimeError, jax.errors.JaxRuntimeError),
)
"""What a configuration is refused by; anything else is a mistake in the program."""
_ENDS = "lower", "upper"
_NONE = np.float64(np.nan)
CONTOUR, UNSPLIT, WHOLE = "contour", "unsplit", "whole"
"""Programs for a question: along one line; without the split law; with all there is."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A mechanism for each configuration, and what is asked about it."""

    source: Any
    """A function of columns, or a mechanism whose fields they fill."""
    queries: tuple[Query, ...]
    gradients: tuple[str, ...]
    """Columns with respect to which the estimates are differentiated."""

    def require_use(self, names: tuple[str, ...]) -> None:
        """Refuses columns that nothing asks for: mostly slips of the pen.

        Raises:
            ValueError: If there are some.
        """
        own = isinstance(self.source, AbstractGuarantee)
        used = _fields_of(self.source) if own else parameters_of(self.source)
        for some in (used, *(query.uses() for query in self.queries)):
            if some is None:
                return
            names = tuple(name for name in names if name not in some)
        if names:
            right = suggestion(names[0], used or ())
            raise ValueError(
                f"no question or mechanism has a use for the columns {list(names)}"
                + (f": did you mean {right}?" if right else "")
            )

    def build(self, row: Row) -> AbstractGuarantee | None:
        """The mechanism of a configuration.

        Raises:
            TypeError: If the function returns something else.
        """
        if isinstance(self.source, AbstractGuarantee):
            fields = _fields_of(self.source)
            given = {name: x for name, x in row.items() if name in fields}
            return dataclasses.replace(self.source, **given)
        found = call(self.source, row)
        if found is not None and not isinstance(found, AbstractGuarantee):
            raise TypeError(
                f"a sweep's function must return a mechanism, got {found!r}"
            )
        return found

    def answers(self, row: Row, stage: str = WHOLE) -> dict[str, Any]:
        """All answers, and the derivatives of their estimates.

        Args:
            row: A configuration.
            stage: Whom to ask; see `stages_of`.
        """
        moving = {name: jnp.asarray(row[name], float) for name in self.gradients}

        def every(moving: Row) -> tuple[dict[str, Any], dict[str, Any]]:
            with _checks.handed_over(lambda wrong, message: None):
                return self._every(row | moving, stage)

        if not moving:
            return every(moving)[1]
        slopes, found = jax.jacrev(every, has_aux=True)(moving)
        for label, by_name in slopes.items():
            found |= {f"{label}_by_{name}": x for name, x in by_name.items()}
        return found

    def _every(self, row: Row, stage: str) -> tuple[dict[str, Any], dict[str, Any]]:
        guarantee = _asked_by(stage, self.build(row))
        smooth, found = {}, {}
        for query in self.queries:
            for part, value in query.ask(guarantee, row).items():
                found[f"{query.label}_{part}" if part else query.label] = value
                if part in ("", "estimate"):
                    smooth[query.label] = value
        return smooth, found

    def checks(self, row: Row) -> tuple[Any, list[tuple[Any, str]]]:
        """Flags of faults of a traced configuration, with the messages.

        Also the mechanism and all targets, which say what is being asked.
        """
        found: list[tuple[Any, str]] = []
        keep = lambda wrong, message: found.append((wrong, message))
        # A query may be a function, which is asked here already.
        with _checks.handed_over(keep), whole_programs():
            guarantee = self.build(row)
            subjects = [query.check(guarantee, row) for query in self.queries]
        return (guarantee, subjects), found

    def with_known(self, row: Row) -> dict[str, np.ndarray] | str:
        """The answers of a plain call, or why there are none."""
        try:
            with jax.enable_x64(True):
                found = self.answers(row)
        except REFUSALS as error:
            return " ".join(str(error).split())
        return {name: np.asarray(value) for name, value in found.items()}

    def in_doubt(self, answers: dict[str, Any]) -> Any:
        """Whether more than one engine should be asked."""
        doubt = jnp.asarray(False)
        for label in [q.label for q in self.queries if f"{q.label}_status" in answers]:
            # A calibration has no ends, by which there were nothing to gain.
            lower, upper = (answers.get(f"{label}_{x}", _NONE) for x in _ENDS)
            loose = answers[f"{label}_status"] != Status.TIGHT
            doubt = doubt | jnp.any(loose & is_wide(lower, upper))
        return doubt


def _fields_of(source: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(source))


def stages_of(guarantee: Any) -> tuple[str, ...]:
    """Programs to ask in turn, each about what the one before leaves in doubt.

    The contour is for an accelerator: it has hardly a loop whose length depends on
    numbers, so that a batch goes in step.  What others answer is asked of the CPU.
    """
    if not isinstance(guarantee, AbstractMechanism | View):
        return (UNSPLIT,)
    composed = resolve(guarantee).first.composed
    wanted = {
        CONTOUR: composed.method == AUTO and by_contour((None, None), composed),
        UNSPLIT: True,
        WHOLE: composed.method.split and can_split(composed),
    }
    return tuple(stage for stage, serves in wanted.items() if serves)


def _asked_by(stage: str, guarantee: Any) -> Any:
    """The guarantee, answered by the program of a stage."""
    if stage == WHOLE or not isinstance(guarantee, AbstractMechanism | View):
        return guarantee
    if stage == CONTOUR:
        return guarantee.using("contour", split=False)
    _, _, method = guarantee._subject()
    return guarantee.using("auto", split=False) if method.name == "auto" else guarantee


class Fingerprint(NamedTuple):
    """A name for a question."""

    text: str
    whole: bool
    """Whether the same name is the same question with certainty."""


def fingerprint(problem: Problem, moving: tuple[str, ...], static: Row) -> Fingerprint:
    """A name for what is asked, the same in every process .

    What was traced of the user's functions says what they compute; where they cannot be
    traced, their code does.
    """
    with jax.enable_x64(True):
        return _fingerprint(problem, moving, static)


def _fingerprint(problem: Problem, moving: tuple[str, ...], static: Row) -> Fingerprint:
    text = lambda x: _text_of(x) if isinstance(x, str | np.ndarray) else ""
    parts = [f"{problem.gradients} {moving}"] + [
        f"{x.label} {x.argument} {text(x.value)} {dict(x.options)}"
        for x in problem.queries
    ]
    codes = [problem.source, *(query.value for query in problem.queries)]
    try:
        traced, classes = _traced_parts(problem, moving, static)
        # What a mechanism keeps as a function was not traced, nor what its class does.
        whole = not any(" at 0x" in part or "<function" in part for part in traced)
        whole = whole and not classes
        parts += [*traced, *sorted(map(_code_of_class, classes))]
    except Exception:  # Python itself decides on these numbers
        whole = False
    if not whole:
        parts += [_code_of(function) for function in codes]
    text = "\0".join(re.sub(r" at 0x[0-9a-f]+", "", part) for part in parts)
    return Fingerprint(hashlib.sha256(text.encode()).hexdigest(), whole)


def _traced_parts(
    problem: Problem, moving: tuple[str, ...], static: Row
) -> tuple[list[str], set[type]]:
    """The mechanism and all targets as programs of the columns; and users' classes."""
    rest: list[Any] = []

    def leaves(numbers: Row) -> list[Any]:
        (guarantee, asked), _ = problem.checks(numbers | static)
        known = guarantee, asked, _own_loss(guarantee)
        arrays, others = eqx.partition(known, eqx.is_array)
        rest.append(others)
        return jax.tree.leaves(arrays)

    number = jax.ShapeDtypeStruct((), np.float64)
    traced = jax.make_jaxpr(leaves)(dict.fromkeys(moving, number))
    consts = [_text_of(np.asarray(x)) for x in traced.consts]
    known, structure = jax.tree.flatten(rest)
    texts = [_text_of(x) for x in known]
    parts = [str(traced.jaxpr), *consts, f"{structure} {texts}"]
    return parts, set(foreign_classes(structure, known))


def _own_loss(guarantee: Any) -> Any:
    """The loss of a mechanism in which a user's classes take part: it may have more."""
    mechanism = isinstance(guarantee, AbstractMechanism)
    if mechanism and any(foreign_classes(jax.tree.structure(guarantee))):
        return guarantee.loss()
    return None


def _text_of(value: Any) -> str:
    """Text of a value, of all parts of code too, the same in every process."""
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{value.dtype}{value.shape}{digest}"
    if isinstance(value, CodeType):
        parts = [_text_of(x) for x in value.co_consts]
        return f"{value.co_code.hex()} {parts} {value.co_names}"
    if isinstance(value, frozenset):
        # The order in a set of texts is another one in every process.
        return repr(sorted(map(repr, value)))
    return repr(value)


def _code_of(function: Any) -> str:
    """Text of all parts of a function, closed-over values included."""
    code = getattr(function, "__code__", None)
    if code is None and isinstance(function, AbstractTarget | AbstractGuarantee):
        return repr(function)
    if code is None:
        return getattr(function, "__qualname__", repr(function))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    inner = [_code_of(x) if callable(x) else _text_of(x) for x in cells]
    return f"{_text_of(code)} {inner} {function.__defaults__}"


def _code_of_class(kind: type) -> str:
    """The names of a class and its bases, and the code of those that are users' own."""
    parts = []
    for base in kind.__mro__:
        parts.append(f"{base.__module__}.{base.__qualname__}")
        for name, value in vars(base).items() if is_foreign(base) else ():
            plain = inspect.unwrap(getattr(value, "fget", None) or value)
            if hasattr(plain, "__code__"):
                parts.append(f"{name} {_code_of(plain)}")
    return " ".join(parts)
