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

import dataclasses
from collections.abc import Callable, Iterable
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, PyTree

from .._internal._special import log1mexp, log1p, log_weighted_sum
from ._analytic import AnalyticLoss
from ._base import AbstractLoss, Ends
from ._composed import ComposedLoss
from ._mixed_form import Components, MixedForm, stacked


class Alternatives(eqx.Module):
    """Compositions of the same losses with different counts, and their shares."""

    terms: tuple[AbstractLoss, ...]
    counts: Float[Array, "n k"]
    probs: Float[Array, " n"]
    single: bool = eqx.field(static=True, default=False)
    """Whether each is known to be at most one release."""

    def composed(self, counts: Iterable[Array] = ()) -> ComposedLoss:
        """The alternative of some counts."""
        return ComposedLoss(self.terms, tuple(counts), single=self.single)

    @property
    def analytic_terms(self) -> tuple[AnalyticLoss, ...]:
        """The terms, for the contour engine."""
        return cast(tuple[AnalyticLoss, ...], self.terms)

    def absorbed(self) -> "Alternatives":
        """These alternatives, with powers of losses in place of counts where known.

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
        return dataclasses.replace(
            self, terms=tuple(terms), counts=jnp.stack(columns, axis=1)
        )

    def idle(self) -> Bool[Array, " n"]:
        """Whether an alternative releases nothing."""
        return jnp.all(self.counts == 0, axis=1)

    def components(self, sign: Float[Array, ""], kept: Float[Array, ""]) -> Components:
        """Those that release something, by their closed forms in one direction."""
        idle = self.idle()
        counts = jnp.where(idle[:, None], 1.0, self.counts)
        forms = jax.vmap(lambda c: self.composed(c).closed_form(sign))(counts)
        weights = jnp.where(idle, 0.0, kept * self.probs)
        return Components(forms, weights, jnp.zeros_like(weights))


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
        return self._mixed([[x.moments(order) for x in g.terms] for g in self.groups])

    def rough_moments(self, order):
        each = [[x.rough_moments(order) for x in g.terms] for g in self.groups]
        found = self._mixed([[(x[0], *x[2:]) for x in own] for own in each])
        return found[0], *found

    def _mixed(self, each: list[list[tuple]]) -> tuple[Array, Array, Array]:
        """Moments from those of all losses."""
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
        infinite = jnp.any(used & (logs == jnp.inf))
        far = log_weighted_sum(probs, logs)
        small = jnp.max(jnp.where(used, jnp.abs(logs), 0)) < 0.5
        growth = jnp.sum(probs * jnp.expm1(jnp.where(small, logs, 0)))
        value = jnp.where(small, log1p(growth), far) + log1p(-self.lost)
        # The cap is for those of probability zero, which may have any moment.
        shares = probs * jnp.exp(jnp.minimum(logs - far, 709.0))
        return jnp.where(infinite, jnp.inf, value), shares

    def range_error(self):
        return jnp.max(self._composed(lambda loss: loss.range_error()))

    def ends(self):
        each = self._composed(lambda loss: loss.calculated_ends())
        used = self.probs() > 0
        low, high = each.loss_range
        weights = jnp.append((1 - self.lost) * self.probs(), self.lost)
        infinite, truncated = (
            log_weighted_sum(weights, jnp.pad(logs, ((0, 1), (0, 0))))
            for logs in (each.log_infinite, each.log_truncated)
        )
        return Ends(
            (
                jnp.min(jnp.where(used, low, jnp.inf)),
                jnp.max(jnp.where(used, high, -jnp.inf)),
            ),
            log1mexp(-jnp.minimum(infinite, 0)),
            infinite,
            # What is left out among the rest.
            truncated,
        )

    def loss_range(self):
        return self.ends().loss_range

    def log_finite_masses(self):
        return tuple(self.ends().log_finite)

    def log_infinite_masses(self):
        return tuple(self.ends().log_infinite)

    def log_truncated_masses(self):
        return tuple(self.ends().log_truncated)

    def _composed(self, value: Callable[[ComposedLoss], PyTree]) -> PyTree:
        """A value of every alternative as a composition."""
        each = [
            jax.vmap(lambda c, g=group: value(g.composed(c)))(group.counts)
            for group in self.groups
        ]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *each)

    def tabulated(self):
        groups = tuple(
            dataclasses.replace(g, terms=tuple(t.tabulated() for t in g.terms))
            for g in self.groups
        )
        return dataclasses.replace(self, groups=groups)

    @property
    def in_closed_form(self):
        each = [group.composed().has_closed_form for group in self.groups]
        return "one release" if all(each) else "nothing"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        kept = 1 - term.lost
        parts = stacked(group.components(sign, kept) for group in term.groups)
        idle = jnp.concatenate([group.idle() for group in term.groups])
        return MixedForm(
            parts,
            nothing=kept * jnp.sum(jnp.where(idle, term.probs(), 0)),
            told=term.lost,
            # Probabilities may be upper bounds.
            excess=stop_gradient(jnp.maximum(jnp.sum(term.probs()) - 1, 0)),
            slip=jnp.zeros_like(kept),
        )


def _summed(counts: Float[Array, "n k"], values: Float[Array, "k ..."]) -> Array:
    """Sums of values, as many of each as counts, with 0 inf = 0."""
    total = jnp.tensordot(counts, jnp.where(jnp.isinf(values), 0, values), axes=1)
    used = (counts > 0).astype(values.dtype)
    for infinity in (jnp.inf, -jnp.inf):
        number = jnp.tensordot(used, (values == infinity).astype(used.dtype), axes=1)
        total = jnp.where(number > 0, infinity, total)
    return total
