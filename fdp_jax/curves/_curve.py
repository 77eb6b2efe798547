"""A guarantee as data: the profile on a shared grid, with certified interpolation.

The grid is eps_k, that is priors sigmoid(eps_k), that is slopes -e^{eps_k} of f.
With gamma = e^eps, delta is convex in gamma: chords of upper bounds are upper bounds,
and each node is a supporting line 1 - delta_k - gamma_k alpha of f.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .. import engines
from .._internal._picture import Lines
from .._internal._precision import in_float64
from ..losses import ComposedLoss
from ._bounds import DELTA, Bounds
from ._grid_curve import GridCurve
from ._guarantee import AbstractGuarantee
from ._nodes import place, profile_at, profile_by_rows
from ._queries import ProfilePoint, bounds_of, signs_of
from .logs import log_subtract

_LOG_LEAST = -34.5
"""log of the delta at which the grid ends, about 1e-15."""


class Curve(AbstractGuarantee):
    """Both directions on one grid; queries hold for the worse of the two."""

    remove: GridCurve
    add: GridCurve

    @property
    def both(self) -> GridCurve:
        """The guarantee under both directions: the larger delta at every threshold."""
        return _worse(self.remove, self.add)

    def _drawn(self) -> Lines:
        return self.remove._drawn() + self.add._drawn()

    def _solve(self, delta: Any) -> Bounds:
        return self.both._solve(delta)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        return self.both._profile(epsilon)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return self.both._error_rate_bounds(alpha)


@in_float64(cast_out=False)
def make_curve(loss: ComposedLoss, positions: Float[ArrayLike, " k"]) -> Curve:
    """Evaluates a loss on a grid that reaches down to delta about 1e-15.

    `positions` rise from 0 to 1; the thresholds of a direction lie closer near 0.
    """
    signs = signs_of(loss, "both")
    reach = engines.span(loss, signs, jnp.asarray(_LOG_LEAST, float))
    grid = stop_gradient(reach * place(jnp.asarray(positions)))
    halves = jax.lax.map(lambda sign: profile_at(loss, sign, grid), signs)
    return _of_halves(grid, halves)


@in_float64(cast_out=False)
def curve_by_rows(
    loss: ComposedLoss, positions: Float[ArrayLike, "r k"], reach: Float[Array, ""]
) -> Curve:
    """As `make_curve`, at so many thresholds that those of a row share a plan."""
    rows = stop_gradient(reach * place(jnp.asarray(positions)))
    one = lambda sign: profile_by_rows(loss, sign, rows)
    return _of_halves(rows.ravel(), jax.lax.map(one, signs_of(loss, "both")))


def _of_halves(grid: Array, halves: engines.Profile) -> Curve:
    remove = jax.tree.map(lambda x: x[0], halves)
    add = jax.tree.map(lambda x: x[-1], halves)
    return Curve(_join(grid, remove, add), _join(grid, add, remove))


@in_float64(cast_out=False)
def certainty(curve: Curve) -> Bounds:
    """Bounds of delta and of 1 - delta at all nodes, with their status."""
    halves = curve.remove, curve.add
    logs = [log for x in halves for log in (x.log_delta_grid, x.log_rest_grid)]
    each = [log.exponential() for log in logs]
    found = jax.tree.map(lambda *x: jnp.concatenate(x), *each)
    return bounds_of(found, jnp.zeros((), bool), DELTA)


@in_float64(cast_out=False)
def pessimistic(curve: Curve) -> Curve:
    """The curve of a pair that is only known to dominate: maybe nothing is leaked."""

    def without(half: GridCurve) -> GridCurve:
        none = engines.no_release(half.epsilon_grid)
        delta, rest = half.log_delta_grid, half.log_rest_grid
        return dataclasses.replace(
            half,
            log_delta_grid=dataclasses.replace(delta, lower=none.log_delta.lower),
            log_rest_grid=dataclasses.replace(rest, upper=none.log_rest.upper),
        )

    return Curve(without(curve.remove), without(curve.add))


def _join(grid: Array, own: engines.Profile, other: engines.Profile) -> GridCurve:
    """A whole curve from thresholds >= 0 of a direction and of the exchanged one."""

    def glue(left: Array, right: Array) -> Array:
        return jnp.concatenate([left[:0:-1], right])

    both = lambda left, right: jax.tree.map(glue, left, right)
    # At -e the two errors of a test change places.
    own_beta = log_subtract(own.log_rest.estimate, own.log_alpha + grid)
    other_beta = log_subtract(other.log_rest.estimate, other.log_alpha + grid)
    return GridCurve(
        epsilon_grid=jnp.concatenate([-grid[:0:-1], grid]),
        log_delta_grid=both(other.log_delta.reflected(grid), own.log_delta),
        log_rest_grid=both(other.log_rest.shifted(-grid), own.log_rest),
        log_alpha_grid=stop_gradient(glue(other_beta, own.log_alpha)),
        log_beta_grid=stop_gradient(glue(other.log_alpha, own_beta)),
    )


@in_float64(cast_out=False)
def _worse(first: GridCurve, second: GridCurve) -> GridCurve:
    larger = first.log_delta_grid.estimate >= second.log_delta_grid.estimate
    return GridCurve(
        epsilon_grid=first.epsilon_grid,
        log_delta_grid=jax.tree.map(
            jnp.maximum, first.log_delta_grid, second.log_delta_grid
        ),
        log_rest_grid=jax.tree.map(
            jnp.minimum, first.log_rest_grid, second.log_rest_grid
        ),
        log_alpha_grid=jnp.where(larger, first.log_alpha_grid, second.log_alpha_grid),
        log_beta_grid=jnp.where(larger, first.log_beta_grid, second.log_beta_grid),
        symmetric=True,
    )
