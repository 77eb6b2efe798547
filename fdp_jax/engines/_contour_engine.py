"""The contour engine: sums over the nodes of pairs, along one line per direction."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root
from .._internal._interval import Interval, log_complement
from .._internal._shapes import kinds_of
from ..losses import ComposedLoss, NormalMixtures
from ._bounds import Profile, largest_loss, worst_of
from ._interface import AbstractEngine, AbstractPlan
from ._line_mesh import RIGHT, SHIFTS, Terms, capped, chernoff_mesh, prepared
from ._line_queries import line_at, see, solve
from ._line_slopes import log_value
from ._lines import Line, line_of


def _terms(loss: ComposedLoss) -> Terms:
    """All parts of a composition as one stack, in the direction "remove"."""
    known = [term.normal_mixtures() for term in loss.terms]
    parts = [x for x in known if x is not None]
    assert len(parts) == len(known)
    width = max(pairs.centers.shape[1] for pairs, _ in parts)

    def padded(pairs: NormalMixtures) -> NormalMixtures:
        more = width - pairs.centers.shape[1]
        # Components of no weight, where there is one anyway.
        again = jnp.repeat(pairs.centers[:, :1], more, axis=1)
        return NormalMixtures(
            jnp.concatenate([pairs.centers, again], axis=1),
            jnp.pad(pairs.weights, ((0, 0), (0, 0), (0, more))),
        )

    counts = [own * count for (_, own), count in zip(parts, loss.counts, strict=True)]
    if len(parts) == 1:
        return Terms(parts[0][0], counts[0])
    stacks = [padded(pairs) for pairs, _ in parts]
    pairs = jax.tree.map(lambda *x: jnp.concatenate(x), *stacks)
    return Terms(pairs, jnp.concatenate(counts))


def _directed(terms: Terms, sign: Array) -> Terms:
    pairs = jax.vmap(lambda pair: pair.directed(sign))(terms.pairs)
    return Terms(pairs, terms.counts)


class ContourPlan(AbstractPlan):
    """A line for one direction, or several stacked ones."""

    sign: Float[Array, "..."]
    line: Line

    def profile(self, loss, epsilons):
        found = _seen(loss, self.line, epsilons)
        terms = _directed(_terms(loss), self.sign)
        estimate = log_value(terms, epsilons, self.line)
        value = jnp.where(
            jnp.isneginf(estimate), stop_gradient(found[0].estimate), estimate
        )
        return _profile(loss, self.line, found, value, epsilons)

    def search(self, loss, epsilons, least):
        found = _seen(loss, self.line, epsilons)
        return _profile(loss, self.line, found, found[0].estimate, epsilons), self


def _seen(loss: ComposedLoss, line: Line, epsilons: Array) -> tuple[Interval, Array]:
    found = see(stop_gradient(line), stop_gradient(epsilons))
    return Interval(found.log_lower, found.log_value, found.log_upper), found.log_alpha


def _profile(
    loss: ComposedLoss,
    line: Line,
    found: tuple[Interval, Array],
    estimate: Array,
    epsilons: Array,
) -> Profile:
    value, log_alpha = found
    middle = line.shift < 0
    beyond = epsilons >= stop_gradient(largest_loss(loss, line.sign))
    value = Interval(value.lower, estimate, value.upper)
    none = jnp.full_like(value.lower, -jnp.inf)
    nothing = beyond & ~middle
    value = value.map(lambda x: jnp.where(nothing, none, x))
    rest = value.map_down(log_complement)
    pick = lambda a, b: jnp.where(middle, a, b)
    return Profile(
        jax.tree.map(pick, rest, value),
        jax.tree.map(pick, value, rest),
        jnp.where(beyond, -jnp.inf, log_alpha),
    )


class ContourEngine(AbstractEngine):
    """One line through the mesh of Chernoff bounds, and one table along it."""

    name: ClassVar[str] = "contour"
    anchored: ClassVar[bool] = True

    def serves(self, loss):
        return pairs_in(loss) > 0

    def plan(self, loss, signs, anchor, gap):
        line = _plan(*stop_gradient((loss, signs, anchor)))
        return ContourPlan(signs, line)

    def epsilon(self, loss, signs, target):
        fixed = stop_gradient((loss, signs, target.finite, target.slack))
        found, line, worst = _search(*fixed)
        args = loss.without_ends(), target.finite[worst]
        aux = signs[worst], line
        estimate = implicit_root(_residual, found.estimate, args, aux)
        return Interval(found.lower, estimate, found.upper)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        return _threshold(*stop_gradient((loss, sign, log_alpha, log_not_alpha)))


def pairs_in(loss: ComposedLoss) -> int:
    """The number of pairs of Gaussian noise; 0 if there are others."""
    leaves, structure = jax.tree.flatten(loss.terms)
    return _pairs_of_kind(structure, kinds_of(leaves))


@functools.lru_cache(256)
def _pairs_of_kind(structure: Any, kinds: tuple[tuple[Any, Any], ...]) -> int:
    nodes = lambda x: [t.normal_mixtures() for t in jax.tree.unflatten(structure, x)]
    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
        found = jax.eval_shape(nodes, shapes)
    return 0 if None in found else sum(counts.shape[0] for _, counts in found)


def _residual(
    epsilon: Array, args: tuple[ComposedLoss, Array], aux: tuple[Array, Line]
) -> Array:
    (loss, log_delta), (sign, line) = args, aux
    terms = _directed(_terms(loss), sign)
    return log_value(terms, epsilon[None], line)[0] - log_delta


@one_by_one
def _plan(loss: ComposedLoss, signs: Array, anchor: Array) -> Line:
    terms = _terms(loss)

    one = lambda sign: line_at(prepared(terms, sign), sign, anchor)
    return lax.map(one, signs)


@one_by_one
def _search(
    loss: ComposedLoss, signs: Array, targets: Array, slacks: Array
) -> tuple[Interval, Line, Array]:
    """The epsilon of the worst direction, its line, and which that is."""
    terms = _terms(loss)

    def one(direction: tuple[Array, Array, Array]) -> tuple[Interval, Line]:
        sign, target, slack = direction
        stack = capped(prepared(terms, sign), target)
        line = line_of(stack, sign, target, inverse=True)
        return solve(line, target, slack), line

    found, lines = lax.map(one, (signs, targets, slacks))
    most = largest_loss(loss, signs)
    upper = jnp.minimum(found.upper, most)
    worst = worst_of(found.estimate, signs)
    pick = lambda x: lax.dynamic_index_in_dim(x, worst, keepdims=False)
    line = jax.tree.map(pick, lines)
    ends = jnp.max(found.lower), jnp.max(upper)
    estimate = jnp.clip(found.estimate[worst], *ends)
    return Interval(ends[0], estimate, ends[1]), line, worst


@one_by_one
def _threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error and the scale there, about.

    Laplace's method on the mesh, with the kernel 1/(1+z) of P(X > eps), or for large
    errors 1/z of the exchanged pair's Q(Y > -eps).
    """
    terms = _terms(loss)
    small = log_alpha < log_not_alpha
    side = jnp.where(small, sign, -sign)
    mesh = chernoff_mesh(prepared(terms, side))
    upper, variance = mesh.upper, mesh.variance
    order = jnp.where(small, 1 + SHIFTS, SHIFTS)
    target = jnp.where(small, log_alpha, log_not_alpha)
    fits = jnp.where(small, order > 0, RIGHT)
    size = jnp.where(fits, order, 1.0)
    width = variance * size * size + 1
    rough = (upper - 0.5 * jnp.log(2 * np.pi * width) - target) / size
    rough = jnp.where(fits, rough, jnp.inf)
    best = jnp.argmin(rough)
    deviation = jnp.sqrt(variance[best])
    reach = jnp.where(deviation > 0, deviation, jnp.inf)
    epsilon = jnp.where(small, rough[best], -rough[best])
    return epsilon, jnp.minimum(1 / (1 + jnp.abs(jnp.asarray(SHIFTS)[best])), reach)
