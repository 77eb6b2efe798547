r"""Revealed mixtures of compositions: one of several, at random, and which is told.

With probabilities p_i that do not depend on the data, the supports of the alternatives
are disjoint, so everything that is an expectation of the likelihood ratio adds:
delta = sum_i p_i delta_i and, for alternative i made of n_ij releases of loss j,

    E_P[(dQ/dP)^w] = (1 - lost) sum_i p_i exp(sum_j n_ij Lambda_j(w)).

An outcome that is left out has the probability `lost` and counts as an infinite loss.
Tilted, the alternatives have the weights v_i in proportion to
p_i exp(sum_j n_ij Lambda_j(w)), and the normalized characteristic function is
phi = sum_i v_i prod_j phi_j^{n_ij}.
"""

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, PyTree

from .._internal._rotation import rotation
from .._internal._special import log1mexp, log1p, safe_log
from ._base import FREQUENCY_BLOCK, AbstractLoss, AnalyticLoss, CharacteristicBlock
from ._composed import ComposedLoss

_BRANCH = 2.8
"""Angle beyond which the continuous logarithm may differ from the principal one."""
_LIFT = 400.0
_UNKNOWN = 0.5
"""Largest error of a logarithm that the engine still uses; see `_settled`."""


class Alternatives(eqx.Module):
    """Compositions of the same losses with different counts, and their shares."""

    terms: tuple[AbstractLoss, ...]
    counts: Float[Array, "n k"]
    probs: Float[Array, " n"]

    @property
    def analytic_terms(self) -> tuple[AnalyticLoss, ...]:
        """The terms, for the spectral engine."""
        return cast(tuple[AnalyticLoss, ...], self.terms)

    def absorbed(self) -> "Alternatives":
        """The same with counts of 0 and 1 of losses whose powers are of their own kind.

        Every alternative then has losses of its own, and no power is fractional.
        """
        terms, columns = [], []
        for j, term in enumerate(self.terms):
            own = self.counts[:, j]
            some = own > 0
            powers = [term.powered(count) for count in jnp.where(some, own, 1.0)]
            kept = [power for power in powers if power is not None]
            terms += kept or [term]
            columns += list(jnp.diag(jnp.where(some, 1.0, 0.0))) if kept else [own]
        return Alternatives(tuple(terms), jnp.stack(columns, axis=1), self.probs)


def single_losses(
    terms: tuple[AbstractLoss, ...], counts: tuple[Array, ...]
) -> list[tuple[AbstractLoss, Array]]:
    """The losses that are no mixtures, in order, with the most releases of each."""
    found = []
    for term, count in zip(terms, counts, strict=True):
        if isinstance(term, RevealedLoss):
            for group in term.groups:
                most = tuple(count * jnp.max(group.counts, axis=0))
                found += single_losses(group.terms, most)
        else:
            found.append((term, count))
    return found


def revealed_mixture(
    groups: tuple[Alternatives, ...], lost: Float[Array, ""], *, idle: bool
) -> "RevealedLoss":
    """A mixture for the engines that its losses allow.

    Args:
        groups: The alternatives; their probabilities have sum 1.
        lost: Probability of an outcome that counts as an infinite loss, in [0, 1).
        idle: Whether an alternative is known to release nothing.
    """
    analytic = all(isinstance(x, AnalyticLoss) for group in groups for x in group.terms)
    kind = AnalyticRevealedLoss if analytic else RevealedLoss
    return kind(groups, lost, idle)


class RevealedLoss(AbstractLoss):
    """The loss of a revealed mixture of compositions; see the module."""

    groups: tuple[Alternatives, ...]
    lost: Float[Array, ""]
    idle: bool = eqx.field(static=True)

    @property
    def symmetric(self) -> bool:
        return all(term.symmetric for term in self._terms())

    @property
    def on_grid(self) -> bool:
        return all(term.on_grid for term in self._terms())

    @property
    def whole(self) -> Bool[Array, ""]:
        """Whether all counts are whole numbers."""
        own = [jnp.all(g.counts == jnp.round(g.counts)) for g in self.groups]
        inner = [t.whole for t in self._terms() if isinstance(t, RevealedLoss)]
        return jnp.all(jnp.stack(own + inner))

    def _terms(self) -> list[AbstractLoss]:
        return [term for group in self.groups for term in group.terms]

    def probs(self) -> Float[Array, " n"]:
        """Probabilities of all alternatives, given that none was left out."""
        return jnp.concatenate([group.probs for group in self.groups])

    def sums(self, values: list[Array]) -> Array:
        """Sums over the releases of every alternative, from one value per loss.

        Args:
            values: One for each group: its losses' values, stacked.

        Returns:
            The sums of all groups, with a leading axis for the alternatives.
        """
        each = zip(self.groups, values, strict=True)
        return jnp.concatenate([_summed(group.counts, value) for group, value in each])

    def moments(self, order):
        each = [[term.moments(order) for term in g.terms] for g in self.groups]
        logs, means, squares = (
            self.sums([jnp.stack([x[i] for x in own]) for own in each])
            for i in range(3)
        )
        value, share = jax.vmap(self.weigh, in_axes=1, out_axes=(0, 1))(logs)
        # Beyond the last finite moment the alternative without one says where it lies.
        beyond = value == jnp.inf
        used = self.probs()[:, None] > 0
        worst = jnp.argmax(jnp.where(used, logs, -jnp.inf), axis=0)[None]
        steep, bent = (jnp.take_along_axis(x, worst, 0)[0] for x in (means, squares))
        means, squares = (
            jnp.where(jnp.isfinite(x) & ~beyond, x, 0) for x in (means, squares)
        )
        mean = jnp.sum(share * means, axis=0)
        square = jnp.sum(share * (squares + jnp.square(means - mean)), axis=0)
        return value, jnp.where(beyond, steep, mean), jnp.where(beyond, bent, square)

    def weigh(self, logs: Float[Array, " n"]) -> tuple[Array, Float[Array, " n"]]:
        """Lambda and the tilted weights, from the alternatives' own Lambda."""
        probs = self.probs()
        used = probs > 0
        peak = jnp.max(jnp.where(used, logs + safe_log(probs), -jnp.inf))
        peak = stop_gradient(peak)
        infinite, peak = peak == jnp.inf, jnp.minimum(peak, jnp.finfo(peak.dtype).max)
        # The cap is for those of probability zero, which may have any moment.
        scaled = jnp.exp(jnp.minimum(logs - peak, 709.0))
        total = jnp.sum(probs * scaled)
        far = peak + jnp.log(total)
        small = jnp.max(jnp.where(used, jnp.abs(logs), 0)) < 0.5
        growth = jnp.sum(probs * jnp.expm1(jnp.where(small, logs, 0)))
        value = jnp.where(small, log1p(growth), far) + log1p(-self.lost)
        return jnp.where(infinite, jnp.inf, value), probs * scaled / total

    def cells(self, low, high):
        raise NotImplementedError("a mixture of compositions has no cells")

    def loss_range(self):
        each = self._composed(lambda loss: loss.loss_range())
        used = self.probs() > 0
        low = jnp.min(jnp.where(used, each[0], jnp.inf))
        high = jnp.max(jnp.where(used, each[1], -jnp.inf))
        return low, high

    def log_finite_masses(self):
        upper, lower = self.log_infinite_masses()
        return log1mexp(-jnp.minimum(upper, 0)), log1mexp(-jnp.minimum(lower, 0))

    def log_infinite_masses(self):
        one = jnp.ones_like(self.lost)
        upper, lower = (
            self._composed(lambda loss, s=sign: loss.log_infinite_mass(s))
            for sign in (one, -one)
        )
        return self._mean_log(upper), self._mean_log(lower)

    def log_unsure_masses(self):
        # What is left out among the rest.
        one = jnp.ones_like(self.lost)
        upper, lower = (
            self._composed(lambda loss, s=sign: loss.log_unsure_mass(s))
            for sign in (one, -one)
        )
        return self._mean_log(upper), self._mean_log(lower)

    def _mean_log(self, logs: Array) -> Array:
        """Log of the infinite mass, also where it is too tiny for a number."""
        logs = logs + safe_log(self.probs()) + log1p(-self.lost)
        peak = stop_gradient(jnp.maximum(jnp.max(logs), -1e5))
        found = safe_log(jnp.sum(jnp.exp(logs - peak))) + peak
        none = jnp.all(jnp.isneginf(logs))
        lost = safe_log(self.lost)
        both = jnp.logaddexp(jnp.where(none, -1e5, found), jnp.maximum(lost, -1e5))
        both = jnp.where(jnp.isneginf(lost), found, both)
        return jnp.where(none, lost, both)

    def _composed(self, value: Callable[[ComposedLoss], PyTree]) -> PyTree:
        """A value of every alternative as a composition."""

        def one(group: Alternatives, counts: Array) -> PyTree:
            return value(ComposedLoss(group.terms, tuple(counts)))

        each = [
            jax.vmap(lambda c, g=group: one(g, c))(group.counts)
            for group in self.groups
        ]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *each)

    def tabulated(self):
        groups = tuple(
            Alternatives(
                tuple(t.tabulated() for t in group.terms), group.counts, group.probs
            )
            for group in self.groups
        )
        return type(self)(groups, self.lost, self.idle)


def _summed(counts: Float[Array, "n k"], values: Float[Array, "k ..."]) -> Array:
    """Sums of values, as many of each as counts, with 0 inf = 0."""
    total = jnp.tensordot(counts, jnp.where(jnp.isinf(values), 0, values), axes=1)
    used = (counts > 0).astype(values.dtype)
    for infinity in (jnp.inf, -jnp.inf):
        number = jnp.tensordot(used, (values == infinity).astype(used.dtype), axes=1)
        total = jnp.where(number > 0, infinity, total)
    return total


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
    """What the plans give at frequency zero."""

    logs: Float[Array, " n"]
    """Lambda of every alternative, without `lost`."""
    errors: Float[Array, " n"]
    value: Float[Array, ""]
    shares: Float[Array, " n"]
    moved: Float[Array, ""]
    """Bound on the error of `value` that errors of `logs` make."""


class AnalyticRevealedLoss(RevealedLoss, AnalyticLoss):
    """The same of losses that are all analytic, for the spectral engine as well.

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

    def relative_error(self, plan):
        each = self._stacked(plan.plans, lambda term, p: term.relative_error(p))
        grown = jnp.expm1(jnp.minimum(self.sums(each), 40.0))
        return jnp.sum(plan.shares * grown)

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
        parts = self._stacked(
            plan.plans, lambda term, p: term.log_characteristic(p, start, step, count)
        )
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
        1.4 e up to one half.  Beyond, and where the branch of a fractional power is
        lost, all that is known are the moduli of both: the true one is at most 3 + 2 e
        times the computed one (which may stand on a floor).
        """
        exponents, voids = [], []
        for group, part in zip(self.groups, parts, strict=True):
            unusable = part.error > _UNKNOWN
            most = jnp.where(unusable, jnp.log(3 + 2 * part.error), 1.4 * part.error)
            exponents.append(jnp.tensordot(group.counts, most, axes=1))
            fractional = group.counts != jnp.round(group.counts)
            turned = jnp.abs(part.imag) > _BRANCH
            void = (group.counts > 0)[:, :, None] & unusable
            void = void | (fractional[:, :, None] & turned)
            voids.append(jnp.any(void, axis=1))
        exponent, void = jnp.concatenate(exponents), jnp.concatenate(voids)
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
