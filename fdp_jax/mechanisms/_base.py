"""What is released: mechanisms, their neighbors and their two directions."""

import abc
import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._internal import _checks
from .._internal._precision import (
    accounts_in_float64,
    float_dtype,
    outside_transformations,
)
from ..curves import AbstractGuarantee, Bounds, Curve
from ..curves._bounds import (
    DELTA,
    EPSILON,
    LOGARITHM,
    Range,
    bayes_error_range,
    beta_range,
    between,
    intersection,
    tpr_range,
)
from ..curves._curve import make_curve
from ..curves._doubts import is_loose
from ..curves._queries import (
    bayes_error_bounds,
    delta_bounds,
    epsilon_bounds,
    log_delta_bounds,
    profile_bounds,
    traced_direction,
)
from ..curves._tradeoff import error_rate_bounds
from ..engines import METHODS, can_split
from ..losses import AUTO, ComposedLoss, Method
from ._listed import LISTING_METHODS, listed


class _Query(AbstractGuarantee):
    """Answers by the engines, for the direction of the concrete class."""

    _warns = True

    @abc.abstractmethod
    def _subject(self) -> tuple["AbstractMechanism", str, Method]:
        """The mechanism, the direction to ask for, and the engine."""

    def using(self, method: str, *, points: int | None = None) -> "View":
        """The same guarantee by a given engine.

        Args:
            method: "closed_form"; "spectral" (contour integrals); "grid" (discretized
                losses composed by FFT); or "auto", the default of every query: the
                first of these that serves.  "auto" asks the grid engine as well where
                bounds by contours or by a list of counts come out loose, but only
                outside of transformations: under `jax.jit` an engine must be named.
            points: For "grid": how many grid points, a power of two from 2^10 to 2^26;
                2^17 if not given ("auto" takes 2^13 where they hold the lattice of
                discrete noise).  What the certificate allows for falls with the
                square, time and memory grow in proportion: for very many releases.

        Returns:
            An object with the same queries.

        Raises:
            ValueError: If there is no such engine, or (from a query) if it is not
                available for this composition.
        """
        _checks.choice("method", method, METHODS)
        if points is not None:
            _check_points(method, points)
        mechanism, direction, _ = self._subject()
        named = Method(method) if points is None else Method(method, int(points))
        return View(mechanism, direction, named)

    def _ask(
        self, query, value: Any, *, again: Callable[[], Range] | None = None
    ) -> Any:
        """The engine's answer; with the range of the answer, of two if need be."""
        mechanism, direction, method = self._subject()
        mechanism.require_complete()
        mechanism = mechanism.simplified()
        narrow = float_dtype() == jnp.float32
        direction = traced_direction(direction)
        ask = functools.partial(query, direction=direction, narrow=narrow)
        found = _answer(ask, mechanism, value, method, again=again)
        if again is None or method.name != "auto" or not is_loose(found):
            return found
        if _has_fraction(mechanism):
            down, up = (
                _answer(ask, _rounded(mechanism, end), value, method, again=again)
                for end in (np.floor, np.ceil)
            )
            return between(found, down, up, again())
        return found

    def _epsilon_bounds(self, delta: Any) -> Bounds:
        return self._ask(epsilon_bounds, delta, again=lambda: EPSILON)

    def _delta_bounds(self, epsilon: Any) -> Bounds:
        return self._ask(delta_bounds, epsilon, again=lambda: DELTA)

    def _log_delta_bounds(self, epsilon: Any) -> Bounds:
        return self._ask(log_delta_bounds, epsilon, again=lambda: LOGARITHM)

    def _profile_bounds(self, epsilon: Any) -> tuple[Bounds, Bounds]:
        """Of log delta and log(1 - delta)."""
        log_delta, log_rest = self._ask(profile_bounds, epsilon)
        _, _, method = self._subject()
        spectral = method.name == "auto" and log_delta.method == "spectral"
        if spectral and is_loose(log_delta):
            log_delta = self._log_delta_bounds(epsilon)
        return log_delta, log_rest

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return self._ask(error_rate_bounds, alpha)

    def _rate_bounds(self, alpha: Any, *, power: bool) -> Bounds:
        def query(*args: Any, **options: Any) -> Bounds:
            return error_rate_bounds(*args, **options)[power]

        known = tpr_range if power else beta_range
        return self._ask(query, alpha, again=lambda: known(jnp.asarray(alpha)))

    def _bayes_error_bounds(self, prior: Any) -> Bounds:
        known = lambda: bayes_error_range(jnp.asarray(prior))
        return self._ask(bayes_error_bounds, prior, again=known)


_MARKED = "relation", "monotonic", "num_categories", "size"


def _mark(mechanism: Any) -> Any:
    """No leaf, or one without entries, for the options that are not the default."""
    stated = [
        f"{field.name}={getattr(mechanism, field.name)}"
        for field in dataclasses.fields(mechanism)
        if field.name in _MARKED and field.metadata.get("static")
        if getattr(mechanism, field.name) != field.default
    ]
    if not stated:
        return ()
    return np.zeros((0, 1 + zlib.crc32(", ".join(stated).encode()) % 65_521))


def _check_points(method: str, points: int) -> None:
    power = isinstance(points, int) and points > 0 and points & (points - 1) == 0
    if not (power and 1 << 10 <= points <= 1 << 26):
        raise ValueError(
            f"points must be a power of two from 2**10 to 2**26, got {points!r}"
        )
    if method != "grid":
        raise ValueError(f"points are for method 'grid', got method {method!r}")


def _answer(
    ask: Callable[..., Bounds],
    mechanism: "AbstractMechanism",
    value: Any,
    method: Method,
    *,
    again: Callable[[], Range] | None,
) -> Bounds:
    """By the engine of choice, and by the grid where the answer is loose."""
    first = listed(mechanism) if method.name in LISTING_METHODS else mechanism
    found = _sooner(ask, first, value, method)
    if again is None or method.name != "auto":
        return found
    more = found.method == "spectral" or first is not mechanism
    if more and is_loose(found) and jax.eval_shape(mechanism.loss).on_grid:
        other = ask(mechanism, value, method=Method("grid"))
        return intersection(found, other, again())
    return found


def _sooner(ask: Callable[..., Any], subject: Any, value: Any, method: Method) -> Any:
    """The engine's answer, from the smaller program where that is tight.

    Where the answer cannot be looked at, the program has to hold all there is.
    """
    if not (accounts_in_float64() and outside_transformations()):
        return ask(subject, value, method=method)
    found = ask(subject, value, method=dataclasses.replace(method, split=False))
    answers = found if isinstance(found, tuple) else (found,)
    if not any(map(is_loose, answers)):
        return found
    if not can_split(jax.eval_shape(subject.loss)):
        return found
    return ask(subject, value, method=method)


def _has_fraction(mechanism: "AbstractMechanism") -> bool:
    """Whether a loss, known now, is composed a number of times that is not whole.

    Then its guarantee is an interpolation, of which the grid knows nothing.
    """
    counts = mechanism.loss().absorbed().counts
    return any(float(count) != round(float(count)) for count in counts)


def _rounded(
    mechanism: "AbstractMechanism", to_whole: Callable[[np.ndarray], np.ndarray]
) -> "AbstractMechanism":
    """The same with whole numbers of steps, of which some may be more or less."""

    def one(path: tuple, leaf: Any) -> Any:
        names = [getattr(key, "name", "") for key in path]
        return to_whole(np.asarray(leaf)) if "num_steps" in names else leaf

    return jax.tree_util.tree_map_with_path(one, mechanism).simplified()


class AbstractMechanism(_Query):
    """A mechanism under a stated neighboring relation.

    Queries on the mechanism itself hold for both directions of the relation;
    `.remove` and `.add` look at one each.  Numeric parameters are leaves: they may be
    traced, differentiated and batched with `jax.vmap`.

    `equinox.tree_serialise_leaves` writes the leaves alone.  So that what was saved
    under another relation (or for another number of categories, ...) is refused by
    `equinox.tree_deserialise_leaves` rather than taken for this mechanism, options
    other than the default ones leave a mark among the leaves: an array without entries,
    whose shape says which they are.  The class itself leaves none.
    """

    _static_options: Any = eqx.field(init=False, repr=False, default=())
    """The mark, the first leaf: what stands there in a file without one is a number."""

    def __check_init__(self):
        object.__setattr__(self, "_static_options", _mark(self))

    if TYPE_CHECKING:  # a field of this class would come before all others
        relation: ClassVar[Any]
        """The `NeighboringRelation` that the parameters and the guarantee refer to."""

    @abc.abstractmethod
    def loss(self) -> ComposedLoss:
        """The privacy loss of the dominating pair, direction "remove"."""

    def require_complete(self) -> None:
        """Raises `ValueError` if a parameter was left open, for `calibrate` to find."""
        for field in dataclasses.fields(self):
            name = field.name
            if not field.metadata.get("static") and getattr(self, name) is None:
                raise ValueError(
                    f"{name} of {type(self).__name__} is not set: give it a value, or "
                    f"find one with calibrate(..., solve_for={name!r})"
                )

    def simplified(self) -> "AbstractMechanism":
        """An equal mechanism with the simplest structure that concrete counts allow.

        A single release often has a closed form; whether there is one must be known
        before the numbers are traced.
        """
        return self

    def known_counts(self) -> Float[np.ndarray, "3 k"] | None:
        """Of nothing but Poisson counts the rates under P and Q and the size of jumps.

        None if it is something else or not all are known.

        In the order of its loss's terms and of their sizes.
        """
        return None

    def releases_once(self) -> bool:
        """Whether this is a single release, whatever the parameters."""
        return True

    def group(self, size: int) -> "AbstractMechanism":
        """The same mechanism against `size` records changed in the same way.

        For Poisson-subsampled Gaussians, additive noise and compositions of these this
        is the exact pair; otherwise the trade-off function 1 - (1 - f)^(size), size
        times composed as a function (Dong, Roth, Su 2022, Theorem 2.14).

        Args:
            size: Number of records, 1 to 64.

        Returns:
            A mechanism, whose relation counts groups.

        Raises:
            ValueError: If size is not a whole number from 1 to 64, or the group's
                guarantee is not available.
        """
        size = _checks.whole("size", size, 1, 64)
        return self if size == 1 else self._group(size)

    def _group(self, size: int) -> "AbstractMechanism":
        from ._group import Group

        return Group(self, size)

    def _subject(self):
        return self, "both", AUTO

    @property
    def remove(self) -> "View":
        """With the record (Q) against without (P): dp-accounting's pmf_remove."""
        return View(self, "remove")

    @property
    def add(self) -> "View":
        """Without the record against with it: the pair exchanged."""
        return View(self, "add")

    def repeat(self, num_steps: Any) -> "AbstractMechanism":
        """This mechanism, run `num_steps` times on the same data.

        Args:
            num_steps: Number of independent releases, at least 0.  Real numbers are
                allowed for Gaussian and Poisson-subsampled Gaussian mechanisms, where
                they interpolate the guarantee smoothly; others take whole numbers.

        Returns:
            The composition, a mechanism.

        Raises:
            ValueError: If num_steps is negative or NaN.
        """
        from ._composed import Composition

        return Composition((self,), (num_steps,))

    def curve(self, *, num_points: int = 129) -> Curve:
        """The whole guarantee on a shared grid, as certified data.

        Args:
            num_points: Thresholds eps >= 0 in each direction (static, at least 8);
                there are as many negative ones.

        Returns:
            A `Curve`, with the queries of a mechanism.

        Raises:
            ValueError: If num_points is too small or a parameter is not set.
        """
        if num_points < 8:
            raise ValueError(f"num_points must be at least 8, got {num_points}")
        self.require_complete()
        return make_curve(listed(self.simplified()), np.linspace(0.0, 1.0, num_points))


class View(_Query):
    """A mechanism's guarantee in one direction, or by a given engine."""

    mechanism: AbstractMechanism
    direction: str = eqx.field(static=True)
    method: Method = eqx.field(static=True, default=AUTO)

    def __check_init__(self):
        _checks.choice("direction", self.direction, ("remove", "add", "both"))

    def _subject(self):
        return self.mechanism, self.direction, self.method
