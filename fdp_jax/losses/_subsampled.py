"""Poisson subsampling of any dominating pair, and the closed form of one release.

With the mixture Q' = (1 - q) P + q Q and e^t = 1 + (e^x - 1) / q, the likelihood ratio
of Q' and P exceeds e^x exactly where that of Q and P exceeds e^t.  The profile of a
single release is therefore a multiple of the profile d of the pair itself in the same
direction (Balle, Barthe and Gaboardi 2018; with the record removed d is that of (Q, P)
and x = eps, with the record added that of (P, Q) and x = -eps):

    remove:  delta(eps) = q d(t),                       P(X' > eps) = P(X > t),
    add:     delta(eps) = (1 - (1 - q) e^eps) d(-t),
             P(X' > eps) = (1 - q) d(-t) + e^{-t - eps} Q(-X > -t).

The second line is the first one reflected, delta(-e) = 1 - e^-e + e^-e delta'(e), and
the last one is the power of its test, d(-t) + e^-t Q(-X > -t), mixed with the error.
With F for the factor of d, 1 - delta = (1 - d) + (1 - F) d.  All of this only adds
positive numbers and holds exactly: the error is that of the pair's own closed form and
of t, which is as ill-conditioned next to the least loss, e^x = 1 - q, as delta itself.
`SubsampledForm.loss_error` allows for the rounding of a threshold there.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._logs import LOG_2, log_add
from .._internal._special import log1mexp, log1p
from ._base import AbstractLoss, outward
from ._cells import Atoms, Cells
from ._closed_form import AbstractClosedForm
from ._mass import MassLoss


class SubsampledLoss(MassLoss):
    """P as it is, Q' = (1 - q) P + q Q: the loss is log(1 - q + q e^X).

    Zhu, Dong, Wang (2022), Theorem 11, for adding or removing one record: with
    beta = (alpha - 1 + q) / q, H_alpha(Q' || P) = q H_beta(Q || P).
    """

    loss: AbstractLoss
    sampling_prob: Float[Array, ""]

    symmetric: ClassVar[bool] = False

    def cells(self, low, high):
        inner_low, inner_high = self._inner(low), self._inner(high)
        cells = self.loss.cells(inner_low, inner_high)
        width = inner_high - inner_low
        unit = 8 * jnp.finfo(width.dtype).eps
        size = jnp.minimum(jnp.abs(inner_low), jnp.abs(inner_high))
        moved = stop_gradient(
            jnp.where(width > 0, unit * (1 + size) / jnp.where(width > 0, width, 1), 0)
        )
        return Cells(cells.log_mass, self._outer(cells.loss), cells.error + moved)

    def atoms(self):
        atoms = self.loss.atoms()
        _, lost = self.loss.log_infinite_masses()
        # What only P could release, Q' can now.
        whole = self.sampling_prob >= 1
        least = log1p(-jnp.where(whole, 0.5, self.sampling_prob))
        lost = jnp.where(whole, -jnp.inf, lost)
        return Atoms(
            jnp.append(self._outer(atoms.loss), least),
            jnp.append(atoms.log_mass, lost),
            atoms.error,
        )

    def lattice(self):
        return None

    def edges(self):
        if isinstance(self.loss, MassLoss):
            return self._outer(self.loss.edges())
        return super().edges()

    def loss_range(self):
        least, most = map(self._outer, self.loss.loss_range())
        _, lost = self.loss.log_infinite_masses()
        whole = self.sampling_prob >= 1
        bottom = log1p(-jnp.where(whole, 0.5, self.sampling_prob))
        least = jnp.where(jnp.isneginf(lost) | whole, least, bottom)
        return outward(least, most, units=8)

    def log_finite_masses(self):
        upper, lower = self.loss.log_finite_masses()
        whole = self.sampling_prob >= 1
        part = jnp.where(whole, 0.5, self.sampling_prob)
        some = jnp.where(whole, upper, log1p(part * jnp.expm1(upper)))
        return some, jnp.where(whole, lower, 0.0)

    def log_infinite_masses(self):
        upper, lower = self.loss.log_infinite_masses()
        whole = self.sampling_prob >= 1
        return upper + jnp.log(self.sampling_prob), jnp.where(whole, lower, -jnp.inf)

    def log_truncated_masses(self):
        # Of P all of them, in `atoms` or not.
        upper, lower = self.loss.log_truncated_masses()
        return upper + jnp.log(self.sampling_prob), lower

    def has_closed_form(self, kinds, *, single):
        return kinds == 1 and single and self.loss.has_closed_form(1, single=True)

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        base = term.loss.closed_form((term.loss,), counts, sign)
        return SubsampledForm(base, term.sampling_prob, sign)

    def _outer(self, loss: Array) -> Array:
        """log(1 - q + q e^x)."""
        large = loss > 1
        near = log1p(self.sampling_prob * jnp.expm1(jnp.where(large, 0, loss)))
        rest = (1 - self.sampling_prob) * jnp.exp(-jnp.where(large, loss, 1))
        far = loss + jnp.log(self.sampling_prob + rest)
        return jnp.where(large, far, near)

    def _inner(self, loss: Array) -> Array:
        """The x with log(1 - q + q e^x) = `loss`; -inf where there is none.

        Also within rounding of log(1 - q): all that lies below has that loss.
        """
        q = self.sampling_prob
        large = loss > 1
        change = jnp.expm1(jnp.where(large, 0, loss)) / q
        reached = change > -1 + 8 * jnp.finfo(change.dtype).eps
        near = log1p(jnp.where(reached, change, 0))
        rest = log1p(-(1 - q) * jnp.exp(-jnp.where(large, loss, 1)))
        far = jnp.where(jnp.isposinf(loss), 0, loss) - jnp.log(q) + rest
        far = jnp.where(jnp.isposinf(loss), jnp.inf, far)
        return jnp.where(large, far, jnp.where(reached, near, -jnp.inf))


class SubsampledForm(AbstractClosedForm):
    """One release of a sampled record, in one direction."""

    base: AbstractClosedForm
    """The closed form of the release itself, in the same direction."""
    sampling_prob: Float[Array, ""]
    """In (0, 1]."""
    sign: Float[Array, ""]

    def log_delta(self, epsilon):
        inside, log_factor, threshold = self._placed(epsilon)
        value = log_factor + self.base.log_delta(threshold)
        return jnp.where(inside, value, self._outside(epsilon)[0])

    def logs(self, epsilon):
        inside, log_factor, threshold = self._placed(epsilon)
        log_delta, log_rest, log_alpha = self.base.logs(threshold)
        remove, kept = self.sign > 0, log1p(-self.sampling_prob) + log_delta
        safe = jnp.where(inside, epsilon, 0)
        log_delta = log_factor + log_delta
        log_rest = log_add(log_rest, kept + jnp.where(remove, 0, safe))
        # For the relative accuracy of a logarithm next to zero.
        small = jnp.minimum(log_delta, -LOG_2)
        log_rest = jnp.where(log_delta < -LOG_2, log1p(-jnp.exp(small)), log_rest)
        mixed = log_add(kept, log_alpha + (threshold - safe))
        log_alpha = jnp.where(remove, log_alpha, jnp.minimum(mixed, 0))
        found = log_delta, log_rest, log_alpha
        choose = lambda x, y: jnp.where(inside, x, y)
        return jax.tree.map(choose, found, self._outside(epsilon))

    def log_truncated(self):
        return self.base.log_truncated()

    def lost(self):
        return self.base.lost()

    def mass_error(self):
        return self.base.mass_error()

    def loss_error(self, epsilon):
        # Without the record no loss is larger than -log(1 - q).  A loss changes less
        # than that of the pair itself.
        rounding = self._rounding(epsilon, self.sampling_prob)
        inner = self.base.loss_error(self._placed(epsilon)[2])
        return rounding if inner is None else rounding + inner

    def _placed(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """Whether losses pass eps both ways, log F and the base pair's threshold."""
        q, kept = self.sampling_prob, log1p(-self.sampling_prob)
        x = self.sign * epsilon
        inside = jnp.isfinite(x) & (x > kept)
        x = jnp.where(inside, x, 0)
        log_gap = log1mexp(x - kept)
        # Exact around zero; for large |t| it would overflow, or cancel.
        change = jnp.expm1(jnp.minimum(x, 30)) / q
        near = (change > -0.5) & (x < 30)
        far = x - jnp.log(q) + log_gap
        threshold = jnp.where(near, log1p(jnp.where(near, change, 0)), far)
        log_factor = jnp.where(self.sign > 0, jnp.log(q), log_gap)
        return inside, log_factor, self.sign * threshold

    def _outside(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """`logs` where all losses are larger than eps, or none is."""
        all_larger = (epsilon < 0) & ((self.sign > 0) | jnp.isinf(epsilon))
        log_delta = log1mexp(jnp.where(all_larger, -epsilon, 0))
        log_rest = jnp.where(all_larger, epsilon, 0)
        return log_delta, log_rest, jnp.where(all_larger, 0, -jnp.inf)
