"""From a mechanism to what compiled programs are asked about.

This is the only place that decides which engine answers and what is done about a loose
answer.  Some of that depends on numbers (whether a short list of counts will do,
whether a count is whole).  Where these are traced, the program has to hold everything
that may be needed, and what remains loose stays loose.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._internal._concrete import (
    ahead_of_time,
    behind,
    evaluates_at_once,
    holds_anywhere,
    is_traced,
    outside_transformations,
)
from .._internal._host import closes_over_traced, may_ask_the_host, whole_programs
from .._internal._place import device
from .._internal._precision import in_float64
from .._internal._shapes import kinds_of
from ..curves import (
    DELTA,
    AbstractGuarantee,
    Bounds,
    Curve,
    ProfilePoint,
    Range,
    Subject,
    between,
    certainty,
    common_profile,
    curve_by_rows,
    delta_of,
    epsilon_bounds,
    intersection,
    is_loose,
    is_nearly_tight,
    is_vague,
    leaves_doubt,
    make_curve,
    profiles,
    signs_of,
    within,
)
from ..engines import can_split, is_bracketed, route
from ..losses import (
    AUTO,
    ComposedLoss,
    CompoundPoissonLoss,
    GaussianLoss,
    Method,
    PoissonLoss,
    SubsampledGaussianLoss,
    listed_jumps,
    listed_outputs,
    separated,
    short_lists,
)
from ._fields import has_whole_steps

if TYPE_CHECKING:
    from ._base import AbstractMechanism, _Query

KnownSteps = tuple[float | None, float | None]
"""Sampling probability and number of equal steps, as far as they are known."""

_FINER = 4 * Method.points
_OFTEN = 2.0
"""Participations from which on the contour is tight more often than not."""
_JUMPS = PoissonLoss, CompoundPoissonLoss
_LISTING_METHODS = "auto", "closed_form"
_Answer = TypeVar("_Answer", Bounds, ProfilePoint)


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A guarantee, by the engine that is asked first and by others."""

    first: Subject
    whole: Subject
    """The first subject, unless that is by a list of counts."""
    known_steps: KnownSteps = (None, None)
    """What is known of the mechanism's steps; see `AbstractMechanism.known_steps`."""
    attained: "AbstractMechanism | None" = None
    """Where lower bounds of what is leaked come from, if not from the losses."""
    whole_steps: bool = False
    """Whether no derivative is in a number of steps, and none of them is a part."""

    def settled(
        self,
        ask: Callable[[AbstractGuarantee], Bounds],
        known: Callable[[], Range],
        *,
        upper: bool,
    ) -> Bounds:
        """The answer to a question, of several engines if need be.

        Args:
            ask: The question, put to a guarantee.
            known: What is true of its answer anyway.
            upper: Whether the upper end is the one on the private side.
        """
        combine = lambda one, other: intersection(one, other, known())
        found = self._answer(ask, lambda x: x, combine, known)
        auto = self._method.name == "auto"
        if auto and is_loose(found) and _has_parts(self.whole.composed):
            ways = (np.floor, np.ceil) if upper else (np.ceil, np.floor)
            below, above = (
                self._rounded(way)._answer(ask, lambda x: x, combine) for way in ways
            )
            found = between(found, below, above, known())
        everybody = _unsampled(self.whole) if auto and is_loose(found) else None
        if everybody is None:
            return found
        return within(found, ask(everybody), known(), upper=upper)

    def profile(self, epsilon: Any) -> ProfilePoint:
        """The privacy profile, of several engines if need be."""
        return self._answer(lambda g: g._profile(epsilon), delta_of, common_profile)

    def profiles(self, epsilon: Any) -> ProfilePoint:
        """The profiles of both directions, each at a threshold of its own."""
        signs = signs_of(self.whole.composed, "both")
        ask = lambda g: profiles(g.composed, signs, epsilon)
        return self._answer(ask, delta_of, common_profile)

    def curve(self, positions: np.ndarray) -> Curve:
        """The whole guarantee on a grid, see `make_curve`, by the first engine."""
        curves: list[Curve] = []
        with whole_programs(self._method != AUTO):
            for subject in self._by_first(lambda: certainty(curves[-1]), rare=0.1):
                curves.append(make_curve(subject.composed, positions))
        return curves[-1]

    def many_points(self, positions: np.ndarray, least: Any) -> Curve | None:
        """The curve down to delta = least by few lines, if the contour is asked first.

        Args:
            positions: As of `curve_by_rows`.
            least: The delta.
        """
        if not by_contour(self.known_steps, self.whole.composed):
            return None
        loss = _by(self.whole, Method("contour", split=False)).composed
        reach = epsilon_bounds(loss, least, signs=signs_of(loss, "both"))
        return curve_by_rows(loss, positions, reach.upper)

    @property
    def _method(self) -> Method:
        return self.whole.composed.method

    def _answer(
        self,
        ask: Callable[[AbstractGuarantee], _Answer],
        judged: Callable[[_Answer], Bounds],
        combine: Callable[[_Answer, _Answer], _Answer],
        known: Callable[[], Range] = lambda: DELTA,
    ) -> _Answer:
        """The common part of the answers of one engine after the other."""
        answers: list[_Answer] = []
        with whole_programs(self._method != AUTO):
            for subject in self._ladder(lambda: judged(answers[-1]), known):
                found = ask(subject)
                answers.append(combine(answers[-1], found) if answers else found)
        return answers[-1]

    def _ladder(
        self, so_far: Callable[[], Bounds], known: Callable[[], Range]
    ) -> Iterator[Subject]:
        """Whom to ask, each only if all those before leave doubt.

        The contour engine, without and with the law split by its largest step.  Then
        the grid; a finer one, too, where four times as many points, a sixteenth of the
        width, are all that it takes.
        """
        whole, composed, first = self.whole, self.whole.composed, self.first
        auto = self._method.name == "auto"
        yield from self._by_first(so_far, known)
        closed = first is whole and route(composed) == "closed_form"
        if not auto or closed or not composed.on_grid or not self._asks_on(so_far()):
            return
        if can_split(composed) and _has_parts(composed):
            return  # an interpolation, of which the grid knows nothing
        if first is not whole or route(composed) == "contour":
            yield _by(whole, Method("grid"))
        # Bounds of a pair that only dominates are no closer than those of what does it.
        finer = self.attained is None and not is_bracketed(composed)
        if finer and is_nearly_tight(so_far()):
            yield _by(whole, Method("grid", points=_FINER))

    def _asks_on(self, found: Bounds) -> bool:
        """Whether an answer leaves doubt that the grid may clear up.

        Derivatives by themselves are looked at, too, though not in numbers of steps;
        batches are not: one row would bring all of them to the grid.  Their rows ask
        the host one by one instead.
        """
        looks = self.whole_steps and not is_traced(found.status)
        return (outside_transformations() or looks) and leaves_doubt(found)

    def _by_first(
        self,
        so_far: Callable[[], Bounds],
        known: Callable[[], Range] = lambda: DELTA,
        *,
        rare: float = 1.0,
    ) -> Iterator[Subject]:
        """The first engine; from the smaller program first, where that will do.

        Where the answer cannot be looked at (inside of `jax.jit`), the program has to
        hold all that may be needed.

        Args:
            so_far: The answer of those before.
            known: What is true of it anyway.
            rare: Times that a record takes part, below which the law will be split.
                Fewer for curves: nodes of a law that is split make the largest program.
        """
        subject, composed = self.first, self.first.composed
        looks = evaluates_at_once()
        splits = composed.method.split and can_split(composed)
        if splits and not (is_rare(self.known_steps, rare) or _moves_once(composed)):
            spared = needs_no_splitting(self.known_steps, composed)
            if looks or spared:
                yield _by(subject, dataclasses.replace(composed.method, split=False))
                found = so_far()
                if not looks or not (leaves_doubt(found) or is_vague(found, known())):
                    return
        yield subject

    def _rounded(self, to_whole: Callable[[np.ndarray], np.ndarray]) -> "Resolved":
        """The subjects with whole numbers of steps, rounded down and up."""
        composed = self.whole.composed
        counts = tuple(to_whole(np.asarray(count)) for count in composed.counts)
        return _resolved(
            dataclasses.replace(
                composed,
                counts=counts,
                single=bool(sum(counts) <= 1),
            ),
            self.whole.direction,
        )


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A guarantee of known numbers, whose losses the next question needs, too."""

    key: tuple[Any, ...]
    guarantee: "_Query" = dataclasses.field(compare=False)


def resolve(guarantee: "_Query") -> Resolved:
    """The losses of a mechanism or view, before anything is compiled.

    Raises:
        ValueError: If a parameter is not set.
    """
    leaves, structure = jax.tree.flatten(guarantee)
    if is_traced(leaves) or not outside_transformations():
        return _losses_of(guarantee)
    return _known_losses(_Asked((structure, device(), *map(_value, leaves)), guarantee))


def _value(leaf: Any) -> tuple[Any, ...]:
    """A leaf as part of a key: a number, an array or any other object."""
    random = jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(leaf) if random else leaf)
    return type(leaf), leaf if array.dtype.hasobject else array.dumps()


_known_losses = functools.lru_cache(16)(lambda asked: _losses_of(asked.guarantee))


def _losses_of(guarantee: "_Query") -> Resolved:
    mechanism, direction, method = _simplest(guarantee)
    steps = mechanism.known_steps()
    loss = short_lists(_loss_of(mechanism)).gathered()
    asked = dataclasses.replace(loss, method=method), direction, steps
    found = _resolved(*asked, mechanism.attained())
    whole = float(steps[1] or 0.5).is_integer() or has_whole_steps(mechanism)
    return dataclasses.replace(found, whole_steps=whole)


def has_ladder(guarantee: "_Query") -> bool:
    """Whether several engines would answer, by plain calls.

    An engine that was named is part of the program, as a closed form is.
    """
    if not may_ask_the_host():
        return False
    mechanism, _, method = _simplest(guarantee)
    if method != AUTO or closes_over_traced(guarantee):
        return False
    return route(loss_like(mechanism)) != "closed_form"


def _simplest(guarantee: "_Query") -> tuple["AbstractMechanism", str, Method]:
    """The mechanism in its simplest form, the direction and the engine."""
    mechanism, direction, method = guarantee._subject()
    mechanism.require_complete()
    return mechanism.simplified().alone(direction), direction, method


def loss_like(mechanism: "AbstractMechanism") -> ComposedLoss:
    """The loss without its numbers, for facts that none of them decides."""
    leaves, structure = jax.tree.flatten(mechanism)
    return _loss_of_kind(structure, kinds_of(leaves))


@functools.lru_cache(256)
def _loss_of_kind(structure: Any, kinds: tuple[tuple[Any, Any], ...]) -> ComposedLoss:
    with jax.enable_x64(True):
        leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kinds]
        return jax.eval_shape(lambda x: jax.tree.unflatten(structure, x).loss(), leaves)


def by_contour(steps: KnownSteps, composed: ComposedLoss) -> bool:
    """Whether one line will do: where records take part often enough, if known."""
    return route(composed) == "contour" and not is_rare(steps, _OFTEN)


def is_rare(steps: KnownSteps, times: float) -> bool:
    """Whether a record is known to take part less often than so many times."""
    prob, num_steps = steps
    return prob is not None and num_steps is not None and prob * num_steps < times


def needs_no_splitting(steps: KnownSteps, composed: ComposedLoss) -> bool:
    """Whether a mechanism's known numbers say that its law need not be split."""
    prob, num_steps = steps
    if prob is None or num_steps is None or not can_split(composed):
        return False
    step: Any = composed.terms[0]  # of a loss that can be split
    return step.decays_soon(prob, num_steps)


@ahead_of_time
@in_float64(cast_out=False)
def _loss_of(mechanism: "AbstractMechanism") -> ComposedLoss:
    """The loss, with known numbers wherever the mechanism's are known."""
    return mechanism.loss()


def _resolved(
    composed: ComposedLoss,
    direction: str,
    steps: KnownSteps = (None, None),
    attained: "AbstractMechanism | None" = None,
) -> Resolved:
    whole = Subject(composed, direction)
    counted = _with_closed_form(composed)
    first = whole if counted is composed else Subject(counted, direction)
    return Resolved(first, whole, steps, attained)


def _with_closed_form(composed: ComposedLoss) -> ComposedLoss:
    """The loss with a closed form, if its numbers are such that it has one."""
    kinds = {type(term) for term in composed.terms}
    if composed.method.name not in _LISTING_METHODS:
        return composed
    if kinds == {SubsampledGaussianLoss} and len(composed.terms) == 1:
        return _separated(composed, *composed.terms)
    if kinds <= set(_JUMPS):
        return _listed(composed)
    if composed.has_closed_form or is_traced(composed.counts):
        return composed
    with jax.enable_x64(True):
        return listed_outputs(composed) or composed


def _separated(composed: ComposedLoss, term: Any) -> ComposedLoss:
    """The loss of steps with so little noise that they tell who took part."""
    if not evaluates_at_once():
        return composed
    with jax.enable_x64(True):
        some, found = separated(term, composed.counts[0])
        # By NumPy, where nothing is compiled.
        separate = not holds_anywhere(~(some if is_traced(some) else np.asarray(some)))
    return dataclasses.replace(composed, terms=(found,)) if separate else composed


def _listed(composed: ComposedLoss) -> ComposedLoss:
    """The loss by a list of counts, if it is known jumps of sizes with a short list."""
    if is_traced(composed):
        return composed
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        powers, one = composed.absorbed(), (jnp.ones(()),)
        pairs = zip(powers.terms, powers.counts, strict=True)
        parts = [term.jumps_and_variance() for term, count in pairs if count > 0]
        columns = zip(*(x[1:] for x in parts if x is not None), strict=True)
        jumps = [np.ravel(np.concatenate(x)) for x in columns]
        term = listed_jumps(*jumps) if jumps else None
    if term is None:
        return composed
    return ComposedLoss((term,), one, single=True, method=composed.method)


def _moves_once(composed: ComposedLoss) -> bool:
    """Whether something is differentiated in a single step's number of steps.

    Its value has a closed form, which tells nothing of more steps.
    """
    counts = composed.counts
    if not (evaluates_at_once() and is_traced(counts)):
        return False
    with jax.enable_x64(True):
        return any(holds_anywhere(count == 1) for count in behind(counts))


def _unsampled(subject: Subject) -> Subject | None:
    """The steps of sampled Gaussian noise in which everybody takes part.

    It has a closed form and leaks no less: whoever sees an output of it can replace it,
    with probability 1 - q, by noise alone.
    """
    composed = subject.composed
    known = [x for x in composed.terms if isinstance(x, SubsampledGaussianLoss)]
    if not known or len(known) < len(composed.terms):
        return None
    terms = tuple(GaussianLoss(term.noise_multiplier) for term in known)
    whole = dataclasses.replace(composed, terms=terms, ends=None)
    return Subject(whole, subject.direction)


def _by(subject: Subject, method: Method) -> Subject:
    composed = dataclasses.replace(subject.composed, method=method)
    return Subject(composed, subject.direction)


def _has_parts(composed: ComposedLoss) -> bool:
    """Whether a known number of steps is not a whole one."""
    if is_traced(composed.counts):
        return False
    counts = [np.asarray(count) for count in _absorbed(composed).counts]
    return any(count != np.round(count) for count in counts)


_absorbed = in_float64(cast_out=False)(ComposedLoss.absorbed)
