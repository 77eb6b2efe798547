"""Revealed mixtures of losses whose characteristic functions are known."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree

from .._internal._rotation import rotation
from .._internal._special import log1p, safe_log
from ._analytic import (
    FREQUENCY_BLOCK,
    AnalyticLoss,
    CharacteristicBlock,
    is_analytic,
)
from ._revealed import Alternatives, RevealedLoss

_BRANCH = 2.8
"""Angle beyond which the continuous logarithm may differ from the principal one."""
_LIFT = 400.0
_UNKNOWN = 0.5
"""Largest error of a logarithm that the engine still uses; see `_settled`."""


def revealed_mixture(
    groups: tuple[Alternatives, ...], lost: Float[Array, ""], *, idle: bool
) -> RevealedLoss:
    """A mixture for the engines that its losses allow.

    Args:
        groups: The alternatives; their probabilities have sum 1.
        lost: Probability of an outcome that counts as an infinite loss, in [0, 1).
        idle: Whether an alternative is known to release nothing.
    """
    analytic = all(is_analytic(x) for group in groups for x in group.terms)
    kind = AnalyticRevealedLoss if analytic else RevealedLoss
    return kind(groups, lost, idle)


class _Location(eqx.Module):
    places: tuple[tuple[PyTree, ...], ...]
    shares: Float[Array, " n"]
    """Tilted weights, about."""
    most: Float[Array, " n"]
    """Upper bounds of their logarithms."""
    center: Float[Array, ""]


class _Plan(eqx.Module):
    plans: tuple[tuple[PyTree, ...], ...]
    shares: Float[Array, " n"]
    center: Float[Array, ""]


class _Moments(eqx.Module):
    """Moments that the plans give at frequency zero."""

    logs: Float[Array, " n"]
    """Lambda of every alternative, without `lost`."""
    errors: Float[Array, " n"]
    value: Float[Array, ""]
    shares: Float[Array, " n"]
    moved: Float[Array, ""]
    """Bound on the error of `value` that errors of `logs` make."""


class AnalyticRevealedLoss(RevealedLoss, AnalyticLoss):
    """A revealed mixture of analytic losses, for the contour engine as well.

    An alternative that releases nothing does not decay; if that is not known before
    the program is compiled (`idle`), bounds are loose but valid.
    """

    @property
    def decays(self) -> bool:
        return not self.idle and all(
            any(isinstance(x, AnalyticLoss) and x.decays for x in group.terms)
            for group in self.groups
        )

    def locate(self, order):
        self = stop_gradient(self)
        places = tuple(
            tuple(t.locate(order) for t in g.analytic_terms) for g in self.groups
        )
        log_unit = jnp.log(jnp.asarray(jnp.finfo(order.dtype).eps, order.dtype))
        plans = self._plans(places, jnp.zeros_like(order), log_unit)
        found = self._moments(plans)
        most = safe_log(found.shares) + found.errors + found.moved
        center = jnp.sum(found.shares * self._centers(plans))
        return stop_gradient(_Location(places, found.shares, most, center))

    def prepare(self, located, frequency, log_tolerance):
        self = stop_gradient(self)
        plans = self._plans(located.places, frequency, log_tolerance)
        return stop_gradient(_Plan(plans, located.shares, located.center))

    def _plans(self, places: tuple, frequency: Array, log_tolerance: Array) -> tuple:
        return tuple(
            tuple(
                term.prepare(place, frequency, log_tolerance - jnp.log1p(most))
                for term, place, most in zip(
                    group.analytic_terms,
                    own,
                    jnp.max(group.counts, axis=0),
                    strict=True,
                )
            )
            for group, own in zip(self.groups, places, strict=True)
        )

    def _stacked(self, plans: tuple, value: Callable[..., Any]) -> list:
        """Values of all losses under their plans, stacked for every group."""
        return [
            jax.tree.map(
                lambda *x: jnp.stack(x),
                *(value(t, p) for t, p in zip(group.analytic_terms, own, strict=True)),
            )
            for group, own in zip(self.groups, plans, strict=True)
        ]

    def _centers(self, plans: tuple) -> Float[Array, " n"]:
        return self.sums(self._stacked(plans, lambda term, plan: term.center(plan)))

    def _moments(self, plans: tuple) -> _Moments:
        pairs = self._stacked(plans, lambda term, plan: term.log_mgf(plan))
        logs = self.sums([value for value, _ in pairs])
        value, shares = self.weigh(logs)
        unit = jnp.finfo(logs.dtype).eps
        sizes = self.sums([jnp.abs(value) for value, _ in pairs])
        most = 4 + max(len(group.terms) for group in self.groups)
        errors = self.sums([error for _, error in pairs]) + most * unit * sizes
        # |d_i| <= e_i moves the logarithm of sum_i v_i exp(d_i) by at most this.
        moved = log1p(jnp.sum(shares * jnp.expm1(jnp.minimum(errors, 40.0))))
        return _Moments(logs, *stop_gradient((errors,)), value, shares, moved)

    def log_mgf(self, plan):
        found = self._moments(plan.plans)
        unit = jnp.finfo(found.value.dtype).eps
        terms = found.logs.size + 8
        size = jnp.sum(found.shares * jnp.abs(found.logs)) + jnp.abs(found.value)
        rounding = unit * terms * jnp.minimum(1.0, 2 * size) + 4 * unit * size
        return found.value, stop_gradient(found.moved + rounding)

    def center(self, plan):
        return plan.center

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        found = self._moments(plan.plans)

        def block(term: AnalyticLoss, own: PyTree) -> CharacteristicBlock:
            found = term.log_characteristic(own, start, step, count)
            turned = jnp.broadcast_to(found.turned, found.real.shape)
            return dataclasses.replace(found, turned=turned)

        parts = self._stacked(plan.plans, block)
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        unit = jnp.finfo(tau.dtype).eps
        centers = self._centers(plan.plans)[:, None]
        real = self.sums([part.real for part in parts])
        angle = self.sums([part.imag for part in parts])
        angle = angle + tau * (centers - plan.center)
        # phi_i - 1, without forming phi_i.
        versine, sine = rotation(angle)
        modulus = jnp.exp(real)
        level = modulus * (1 + versine)
        versine = jnp.expm1(real) * (1 + versine) + versine
        sine = modulus * sine
        share = found.shares[:, None]
        rise, level, turn = (jnp.sum(share * x, axis=0) for x in (versine, level, sine))
        turned = jnp.abs(angle) + tau * (jnp.abs(centers) + jnp.abs(plan.center))
        own = self._own_errors(parts, real)
        own = own + 4 * unit * modulus * (jnp.abs(real) + turned)
        # Errors of the weights, whose sum is 1, count with phi_i minus any constant.
        weights = jnp.expm1(jnp.minimum(found.errors + found.moved, 40.0))[:, None]
        weights = share * (weights + unit * (found.logs.size + 8))
        own = jnp.sum(share * own, axis=0)
        near = own + jnp.sum(weights * jnp.hypot(versine, sine), axis=0)
        far = own + jnp.sum(weights * modulus, axis=0)
        return _settled(rise, level, turn, *stop_gradient((near, far)))

    def _own_errors(self, parts: list, real: Array) -> Array:
        """Bounds on |phi_i - its computed value|, given log |computed value|.

        A loss's computed factor is off by at most e, relatively, and its logarithm by
        1.4 e up to one half.  Beyond, and where the branch of a power is lost, all that
        is known are the moduli of both: the true one is at most 3 + 2 e times the
        computed one (which may stand on a floor).
        """
        unusable = [(part.error > _UNKNOWN) | part.turned for part in parts]
        exponent = self.sums(
            [
                jnp.where(lost, jnp.log(3 + 2 * part.error), 1.4 * part.error)
                for part, lost in zip(parts, unusable, strict=True)
            ]
        )
        voids = []
        for group, part, lost in zip(self.groups, parts, unusable, strict=True):
            counts = group.counts[:, :, None]
            turned = (counts != jnp.round(counts)) & (jnp.abs(part.imag) > _BRANCH)
            voids.append(jnp.any(((counts > 0) & lost) | turned, axis=1))
        void = jnp.concatenate(voids)
        modulus = jnp.exp(real)
        either = modulus + jnp.exp(jnp.minimum(exponent + real, 40.0))
        off = modulus * jnp.expm1(jnp.minimum(exponent, 40.0))
        return jnp.where(void, either, off)

    def log_envelope(self, located, frequency):
        each = [
            jnp.stack(
                [
                    term.log_envelope(place, frequency)
                    for term, place in zip(group.analytic_terms, own, strict=True)
                ]
            )
            for group, own in zip(self.groups, located.places, strict=True)
        ]
        logs = located.most + jnp.minimum(self.sums(each), 0)
        return jnp.minimum(logsumexp(logs), 0)


def _settled(
    rise: Array, level: Array, turn: Array, near_error: Array, far_error: Array
) -> CharacteristicBlock:
    """The logarithm of phi = 1 + rise + i turn = level + i turn.

    The errors are absolute ones, of the first form and of the second.  Near a zero of
    phi a relative error says nothing.  With an error of E there, 400 E is reported, and
    1/2 as the error of the logarithm: the engine allows for e^0.7 - 1 > 1.0137 times
    that, and with |phi| < 3.5 E both differ by at most 403.5 E = 1.00875 (400 E).
    Powers n >= 1 differ by at most (1 + 0.00875^n) (400 E)^n.
    """
    unit = jnp.finfo(rise.dtype).eps
    excess = 2 * rise + jnp.square(rise) + jnp.square(turn)
    close = excess > -0.5
    square = jnp.square(level) + jnp.square(turn)
    modulus = jnp.sqrt(stop_gradient(square))
    # What underflows is not known either.
    error = jnp.maximum(jnp.where(close, near_error, far_error), 1e-290)
    unknown = error > 0.4 * modulus
    near = 0.5 * log1p(jnp.where(close, excess, 0.0))
    far = 0.5 * jnp.log(jnp.where(close | unknown, 1.0, square))
    real = jnp.where(close, near, far)
    angle = jnp.arctan2(jnp.where(unknown, 0.0, turn), jnp.where(unknown, 1.0, level))
    lifted = jnp.log(_LIFT * jnp.where(unknown, error, 1.0))
    ratio = error / jnp.where(unknown, 1.0, modulus) + 4 * unit * jnp.hypot(real, angle)
    void = jnp.where(lifted < 0, _UNKNOWN, 1.0)
    return CharacteristicBlock(
        jnp.where(unknown, jnp.minimum(lifted, 0.0), real),
        angle,
        stop_gradient(jnp.where(unknown, void, ratio)),
    )
