"""Which compositions have a closed form, behind one interface.

A closed form is written for thresholds eps >= 0 of one direction; a negative threshold
of a direction is a positive one of the other (see `engines`).
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._implicit import implicit_root
from .._internal._roots import least_threshold
from .._internal._special import safe_log
from ..losses import (
    AtomicLoss,
    ComposedLoss,
    GaussianLoss,
    LaplaceLoss,
    ListedPoissonLoss,
    PoissonLoss,
    SubsampledGaussianLoss,
    TwoPointLoss,
)
from . import _atomic, _gaussian, _laplace, _listed, _one_step, _two_point
from ._bounds import Interval, without

_FEW_OUTPUTS = 512
"""The work of exact error rates grows with the square of the number of outputs."""


class AbstractClosedForm(eqx.Module):
    """A privacy profile in closed form, all infinite losses included."""

    @abc.abstractmethod
    def log_delta(self, epsilon: Array) -> Array:
        """Log delta(eps)."""

    @abc.abstractmethod
    def log_rest(self, epsilon: Array) -> Array:
        """log(1 - delta(eps))."""

    @abc.abstractmethod
    def log_alpha(self, epsilon: Array) -> Array:
        """Log P(X > eps)."""

    @abc.abstractmethod
    def epsilon(self, log_delta: Array) -> Array:
        """The least real eps with delta(eps) at most the given one."""

    def log_unsure(self) -> Array | None:
        """Log of what of the infinite losses is only a bound."""

    def lost(self) -> float:
        """By how much 1 - delta may be larger, besides the error of its logarithm."""
        return 0.0

    def mass_error(self) -> Array | float:
        """Relative error of sums of masses, besides that of every closed form."""
        return 0.0

    def loss_error(self, epsilon: Array) -> Array | None:
        """How far a threshold may be off, besides the error of the logarithms."""
        del epsilon

    def logs(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """`log_delta`, `log_rest` and `log_alpha`."""
        return self.log_delta(epsilon), self.log_rest(epsilon), self.log_alpha(epsilon)

    def log_delta_within(
        self, epsilon: Array, error: Array, value: Array
    ) -> tuple[Array, Array]:
        """Log delta(eps - error) and log delta(eps + error), or bounds of them.

        `value` is that in the middle.
        """
        del value
        left, right = stop_gradient((epsilon - error, epsilon + error))
        return self.log_delta(left), self.log_delta(right)

    def _rounding(self, epsilon: Array, end: Array) -> Array:
        """A few units in the last place, near a finite end of the losses."""
        unit = 4 * jnp.finfo(epsilon.dtype).eps
        return stop_gradient(unit * jnp.maximum(jnp.abs(epsilon), jnp.abs(end)))


class GaussianForm(AbstractClosedForm):
    """Any composition of Gaussian mechanisms: mu^2 adds (Dong, Roth, Su 2022)."""

    mu: Float[Array, ""]

    def log_delta(self, epsilon):
        return _gaussian.log_delta(self.mu, epsilon)

    def log_rest(self, epsilon):
        return _gaussian.log_one_minus_delta(self.mu, epsilon)

    def log_alpha(self, epsilon):
        return _gaussian.log_alpha(self.mu, epsilon)

    def epsilon(self, log_delta):
        return _gaussian.epsilon(self.mu, log_delta)


class LaplaceForm(AbstractClosedForm):
    """One Laplace release."""

    mu: Float[Array, ""]

    def log_delta(self, epsilon):
        return _laplace.log_delta(self.mu, epsilon)

    def log_rest(self, epsilon):
        return _laplace.log_one_minus_delta(self.mu, epsilon)

    def log_alpha(self, epsilon):
        return _laplace.log_alpha(self.mu, epsilon)

    def epsilon(self, log_delta):
        return _laplace.epsilon(self.mu, log_delta)

    def loss_error(self, epsilon):
        # Delta falls to zero at mu.
        return self._rounding(epsilon, self.mu)


class TwoPointForm(AbstractClosedForm):
    """Any number of releases of one (epsilon, delta)-DP pair: binomial tails."""

    epsilon0: Float[Array, ""]
    delta0: Float[Array, ""]
    count: Float[Array, ""]

    def log_delta(self, epsilon):
        return _two_point.log_delta(self.epsilon0, self.delta0, self.count, epsilon)

    def log_rest(self, epsilon):
        return _two_point.log_one_minus_delta(
            self.epsilon0, self.delta0, self.count, epsilon
        )

    def log_alpha(self, epsilon):
        return _two_point.log_alpha(self.epsilon0, self.delta0, self.count, epsilon)

    def epsilon(self, log_delta):
        return _two_point.epsilon(self.epsilon0, self.delta0, self.count, log_delta)


class OneStepForm(AbstractClosedForm):
    """One Poisson-subsampled Gaussian release, in one direction."""

    noise_multiplier: Float[Array, ""]
    sampling_prob: Float[Array, ""]
    sign: Float[Array, ""]

    def _parameters(self) -> tuple[Array, Array]:
        return self.noise_multiplier, self.sampling_prob

    def log_delta(self, epsilon):
        return _one_step.log_delta(*self._parameters(), epsilon, self.sign)

    def log_rest(self, epsilon):
        return _one_step.log_one_minus_delta(*self._parameters(), epsilon, self.sign)

    def log_alpha(self, epsilon):
        return _one_step.log_alpha(*self._parameters(), epsilon, self.sign)

    def epsilon(self, log_delta):
        return _epsilon_by_search(self, log_delta)

    def loss_error(self, epsilon):
        # Without the record no loss is larger than -log(1 - q).
        return self._rounding(epsilon, self.sampling_prob)


class AtomicForm(AbstractClosedForm):
    """One release with finitely many outputs, in one direction."""

    atoms: AtomicLoss

    def log_delta(self, epsilon):
        return _atomic.log_delta(self.atoms, epsilon)

    def log_rest(self, epsilon):
        return _atomic.log_rest(self.atoms, epsilon)

    def log_alpha(self, epsilon):
        return _atomic.log_alpha(self.atoms, epsilon)

    def epsilon(self, log_delta):
        return _epsilon_by_search(self, log_delta)

    def log_unsure(self):
        return stop_gradient(self.atoms.log_unsure_masses()[0])

    def lost(self):
        return self.atoms.lost

    def loss_error(self, epsilon):
        return _atomic.loss_error(self.atoms, epsilon)


class ListedForm(AbstractClosedForm):
    """Jumps of a few sizes with listed counts, in one direction."""

    tables: _listed.Tables

    def logs(self, epsilon):
        found = _listed.sums(self.tables, epsilon)
        return found.delta, found.rest, found.alpha

    def log_delta(self, epsilon):
        return _listed.sums(self.tables, epsilon).delta

    def log_rest(self, epsilon):
        return _listed.sums(self.tables, epsilon).rest

    def log_alpha(self, epsilon):
        return _listed.sums(self.tables, epsilon).alpha

    def epsilon(self, log_delta):
        return _epsilon_by_search(self, log_delta)

    def log_unsure(self):
        return stop_gradient(self.tables.log_missing)

    def mass_error(self):
        return self.tables.mass_error

    def loss_error(self, epsilon):
        return _listed.loss_error(self.tables, epsilon)

    def log_delta_within(self, epsilon, error, value):
        # The slope of delta is at most Q(Y > eps).
        left, value = stop_gradient((epsilon - error, value))
        power = _listed.sums(self.tables, left).power
        change = stop_gradient(power + safe_log(error))
        return jnp.minimum(jnp.logaddexp(value, change), 0), without(value, change)


def _epsilon_by_search(form: AbstractClosedForm, log_delta: Array) -> Array:
    constant, target = stop_gradient((form, log_delta))
    # 1 - e^eps <= delta(eps), so the root lies at or above log(1 - delta).
    least = jnp.log1p(-jnp.exp(target))
    tail = lambda e: constant.log_delta(least + e)
    root = least + least_threshold(tail, target, jnp.full_like(target, jnp.inf))
    return implicit_root(_log_delta_residual, root, (form, log_delta), ())


def _log_delta_residual(
    epsilon: Array, args: tuple[AbstractClosedForm, Array], aux: tuple[()]
) -> Array:
    del aux
    form, log_delta = args
    return form.log_delta(epsilon) - log_delta


def closed_form(loss: ComposedLoss, sign: Array) -> AbstractClosedForm | None:
    """The closed form of a composition, or None for want of one."""
    terms, counts = loss.terms, loss.counts
    gaussian = [term for term in terms if isinstance(term, GaussianLoss)]
    if len(gaussian) == len(terms):
        total = jnp.zeros_like(counts[0])
        for term, count in zip(gaussian, counts, strict=True):
            total = total + count * term.precision()
        # sqrt has no derivative at zero; nothing is composed there.
        none = total == 0
        return GaussianForm(jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, total))))
    if len(terms) != 1:
        return None
    term, count = terms[0], counts[0]
    if isinstance(term, TwoPointLoss):
        return TwoPointForm(term.epsilon, term.delta, count)
    if isinstance(term, LaplaceLoss) and loss.single:
        return LaplaceForm(1 / term.noise_multiplier)
    if isinstance(term, SubsampledGaussianLoss) and loss.single:
        return OneStepForm(term.noise_multiplier, term.sampling_prob, sign)
    if isinstance(term, ListedPoissonLoss):
        return ListedForm(_listed.tables(term, count, sign))
    if isinstance(term, PoissonLoss):
        term = term.powered(count).atomic()
    elif not loss.single:
        return None
    if isinstance(term, AtomicLoss):
        other = term.exchanged()
        return AtomicForm(
            jax.tree.map(lambda a, b: jnp.where(sign > 0, a, b), term, other)
        )
    return None


def exact_rates(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> tuple[Interval, Interval] | None:
    """f(alpha) and 1 - f(alpha) of the worst direction where all kinks are known."""
    term = loss.terms[0]
    few = isinstance(term, AtomicLoss) and term.log_p.size <= _FEW_OUTPUTS
    if not (few and loss.single and len(loss.terms) == 1):
        return None
    forms = [closed_form(loss, sign) for sign in signs]
    atoms = tuple(form.atoms for form in forms if isinstance(form, AtomicForm))
    return _atomic.error_rates(atoms, alpha)
