"""Losses of discrete mechanisms: nothing but point masses, and closed forms for them.

delta(eps) of one release is the sum of (q - e^eps p)_+ over the outputs, straight in
e^eps between two losses.  All terms are positive, so logarithms of sums keep their
relative accuracy.
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float

from .._internal._arithmetic import ULP
from .._internal._interval import Interval
from .._internal._logs import log_add
from .._internal._special import log1mexp, log_sum_exp, safe_log
from .._internal._tolerances import ATOM_MASS, LEAST_QUOTIENT
from ._cells import Atoms, Cells
from ._closed_form import AbstractClosedForm
from ._closed_transform import ClosedTransformLoss, principal_logs
from ._loss_moments import excess, moments_of

FEW_OUTPUTS = 512
"""The work of exact error rates grows with the square of the number of outputs."""


class AtomicLoss(ClosedTransformLoss):
    """The loss of two probability vectors over the same outputs.

    Probabilities may be zero: their logarithm is then -inf.
    """

    decays: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    log_p: Float[Array, " k"]
    log_q: Float[Array, " k"]
    unit: Float[Array, ""] | None = None
    """A number of which every finite loss is a multiple, if there is one."""
    missing: tuple[Float[Array, ""], Float[Array, ""]] | None = None
    """Logarithms of bounds on the masses under Q and P of outputs left out; those
    count as infinite losses."""
    lost: float = eqx.field(static=True, default=0.0)
    """Bound on the mass of outputs without any loss that rounding may have lost: by
    so much 1 - delta may be larger."""
    symmetric: bool = eqx.field(static=True, default=False)
    loss: Float[Array, " k"] | None = None
    """log_q - log_p where that is known without cancellation."""
    mass_error: Float[ArrayLike, ""] = ATOM_MASS
    """Bound on the relative error of any of the probabilities."""
    loss_error: Float[ArrayLike, ""] | None = None
    """Bound on the error of `loss`, where that is not a quotient of the masses."""

    @classmethod
    def of_probabilities(
        cls, p: Float[Array, " k"], q: Float[Array, " k"]
    ) -> "AtomicLoss":
        """From the probabilities, which may be next to equal."""
        log_p, log_q = safe_log(p), safe_log(q)
        near = (jnp.abs(q - p) < 0.5 * p) & (p > LEAST_QUOTIENT)
        ratio = jnp.where(near, (q - p) / jnp.where(near, p, 1.0), 0.0)
        common = (p > 0) & (q > 0)
        far = jnp.where(common, log_q, 0.0) - jnp.where(common, log_p, 0.0)
        return cls(log_p, log_q, loss=jnp.where(near, jnp.log1p(ratio), far))

    def _common(self) -> Bool[Array, " k"]:
        return jnp.isfinite(self.log_p) & jnp.isfinite(self.log_q)

    def _losses(self) -> Float[Array, " k"]:
        """Losses of the outputs that both members have; 0 for the others."""
        common = self._common()
        log_p, log_q = (jnp.where(common, x, 0) for x in (self.log_p, self.log_q))
        loss = log_q - log_p if self.loss is None else self.loss
        return jnp.where(common, loss, 0)

    def _rounding(self) -> Float[Array, " k"]:
        """Bound on the rounding of the losses, without derivative."""
        size = jnp.abs(self._losses())
        if self.loss is None:
            size = size + jnp.abs(self.log_p) + jnp.abs(self.log_q)
        return stop_gradient(ULP * size) + 0.5 * self.range_error()

    @property
    def transforms(self) -> bool:
        # A sum over all outputs at every frequency.
        return self.missing is None and self.log_p.size <= FEW_OUTPUTS

    def _tilted(self, order: Array) -> tuple[Array, Array, Array, Array]:
        """Lambda at orders, the tilted masses, the losses, and Lambda's rounding."""
        common, loss = self._common(), self._losses()
        log_p = jnp.where(common, self.log_p, 0)
        logs = jnp.where(common, log_p + order[:, None] * loss, -jnp.inf)
        value = logsumexp(logs, axis=1)
        weight = jnp.exp(logs - value[:, None])
        # Every logarithm is rounded, and so is their sum.
        sizes = 2 * jnp.abs(log_p) + 2 * jnp.abs(order[:, None] * loss)
        rounding = 2 * ULP * (4 + jnp.sum(weight * sizes, axis=1) + jnp.abs(value))
        return value, weight, loss, stop_gradient(rounding)

    def moments(self, order):
        value, weight, loss, rounding = self._tilted(order)
        mean = weight @ loss
        square = jnp.sum(weight * jnp.square(loss - mean[:, None]), axis=1)
        return value + rounding, mean, square

    def relative_error(self, plan):
        slip = jnp.max(self._rounding()) * (1 + jnp.abs(plan.order))
        return stop_gradient(jnp.asarray(self.mass_error) + slip)

    def log_mgf(self, plan):
        (value,), _, _, (rounding,) = self._tilted(plan.order[None])
        return value, rounding

    def log_transform(self, plan, tau):
        _, (weight,), loss, (rounding,) = self._tilted(plan.order[None])
        angle = tau[:, None] * (loss - plan.center)
        real, imag = jnp.cos(angle) @ weight, jnp.sin(angle) @ weight
        # Errors of the losses turn an angle as well.
        turned = tau * (jnp.abs(plan.center) + weight @ jnp.abs(loss))
        size = (rounding + tau * (weight @ self._rounding())) / ULP
        return principal_logs(real, imag, jnp.zeros_like(tau), 1 + turned + size)

    def fastest_turn(self, plan):
        loss = jnp.where(self._common(), self._losses() - plan.center, 0)
        return jnp.max(jnp.abs(loss))

    def cells(self, low, high):
        return Cells.none(low, high)

    def atoms(self):
        log_mass = jnp.where(self._common(), self.log_p, -jnp.inf)
        return Atoms(self._losses(), log_mass, stop_gradient(self.mass_error))

    def lattice(self):
        return self.unit

    def trimmed(self, count):
        if self.unit is None or self.log_p.size <= count:
            return None
        # The others have no finite loss, if none is missing.
        common = self._common()
        place = jnp.arange(common.size)
        first = jnp.min(jnp.where(common, place, common.size - count))
        first = jnp.minimum(first, common.size - count)
        last = jnp.max(jnp.where(common, place, 0))
        log_p, log_q = (
            lax.dynamic_slice(x, (first,), (count,)) for x in (self.log_p, self.log_q)
        )
        loss = self.loss
        if loss is not None:
            loss = lax.dynamic_slice(loss, (first,), (count,))
        few = dataclasses.replace(self, log_p=log_p, log_q=log_q, loss=loss)
        return few, last < first + count

    def exchanged(self) -> "AtomicLoss":
        """The loss of the exchanged pair."""
        missing = None if self.missing is None else self.missing[::-1]
        loss = None if self.loss is None else -self.loss
        return dataclasses.replace(
            self, log_p=self.log_q, log_q=self.log_p, missing=missing, loss=loss
        )

    def loss_range(self):
        common, loss = self._common(), self.atoms().loss
        rounding = jnp.where(common, self._rounding(), 0)
        least = jnp.min(jnp.where(common, loss - rounding, jnp.inf))
        most = jnp.max(jnp.where(common, loss + rounding, -jnp.inf))
        # With nothing in common every loss is infinite.
        none = ~jnp.any(common)
        return jnp.where(none, 0, least), jnp.where(none, 0, most)

    def range_error(self):
        known = self.loss_error
        if known is None:
            known = 4 * jnp.maximum(self.mass_error - ATOM_MASS, 0)
        return stop_gradient(jnp.asarray(known, self.log_p.dtype))

    def log_finite_masses(self):
        common = self._common()
        exact = self.missing is None and self.lost == 0

        def rest(infinite: Array, logs: Array) -> Array:
            # A sum of its own where little is left: 1 - e^x is rounding then.
            little = (infinite > -0.5) & exact
            left = log1mexp(-jnp.minimum(jnp.where(little, -1.0, infinite), 0))
            return jnp.where(little, jnp.minimum(log_sum_exp(logs, common), 0), left)

        pairs = zip(self.log_infinite_masses(), (self.log_q, self.log_p), strict=True)
        upper, lower = (rest(*pair) for pair in pairs)
        return upper, lower

    def log_infinite_masses(self):
        gone = ~self._common()
        found = [log_sum_exp(x, gone) for x in (self.log_q, self.log_p)]
        if self.missing is not None:
            found = map(jnp.logaddexp, found, self.missing)
        upper, lower = found
        return upper, lower

    def log_truncated_masses(self):
        return super().log_truncated_masses() if self.missing is None else self.missing

    in_closed_form: ClassVar[str] = "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        return term.form(sign)

    def form(self, sign: Float[Array, ""]) -> "AtomicForm":
        """The closed form of one release in one direction."""
        choose = lambda a, b: jnp.where(sign > 0, a, b)
        return AtomicForm(jax.tree.map(choose, self, self.exchanged()))

    def loss_moments(self, sign):
        atoms = self.atoms()
        finite = jnp.isfinite(atoms.log_mass)
        loss = jnp.where(finite, sign * atoms.loss, 0.0)
        log_p = self.log_p if sign > 0 else self.log_q
        masses = jnp.where(finite, jnp.exp(jnp.where(finite, log_p, 0.0)), 0.0)
        found = moments_of(loss, masses, masses @ excess(loss))
        infinite = jnp.broadcast_arrays(*self.log_infinite_masses())
        whole = jnp.all(jnp.stack(infinite) == -jnp.inf)
        return jax.tree.map(lambda x: jnp.where(whole, x, jnp.inf), found)


def _common(atoms: AtomicLoss) -> tuple[Array, Array, Array]:
    """Finite losses, and logarithms of their masses under Q and P (-inf for none)."""
    found = atoms.atoms()
    # Not log_mass + loss, of which large numbers may cancel.
    log_q = jnp.where(jnp.isneginf(found.log_mass), -jnp.inf, atoms.log_q)
    return found.loss, log_q, found.log_mass


def candidates(directions: "tuple[AtomicForm, ...]") -> Float[Array, " m"]:
    """All thresholds at which the larger of the directions' profiles may have a kink.

    The losses, and where two profiles cross between neighboring losses.
    """
    losses = jnp.sort(jnp.concatenate([_losses(form.atoms) for form in directions]))
    if len(directions) == 1:
        return losses
    scale = jnp.exp(losses)
    one, two = (jnp.exp(form.log_delta(losses)) for form in directions)
    gap = one - two
    left, right = gap[:-1], gap[1:]
    cross = left * right < 0
    share = jnp.where(cross, left / jnp.where(cross, left - right, 1), 0)
    middle = safe_log(scale[:-1] + share * (scale[1:] - scale[:-1]))
    return jnp.concatenate([losses, jnp.where(cross, middle, losses[:-1])])


def _losses(atoms: AtomicLoss) -> Array:
    """The losses of outputs that both members have; others repeat one of those."""
    loss, _, log_p = _common(atoms)
    return jnp.where(jnp.isneginf(log_p), loss[jnp.argmax(log_p)], loss)


class ErrorPair(eqx.Module):
    """Type II error and power of a test."""

    alpha: Float[Array, "..."]
    beta: Float[Array, "..."]
    tpr: Float[Array, "..."]


def error_rates(
    directions: "tuple[AtomicForm, ...]", log_alpha: Float[Array, ""]
) -> tuple[Interval, Interval]:
    """Logs of f(alpha) and 1 - f(alpha) of the worst direction, for 0 < alpha < 1.

    f(alpha) = max over eps of 1 - delta(eps) - e^eps alpha, whose kinks are known: the
    maximum is at one of them.  There f joins two vertices of the directions' trade-off
    functions, which have the derivatives of every order.
    """
    fixed, level = stop_gradient((directions, log_alpha))
    thresholds = candidates(fixed)
    rests = jnp.exp(jnp.stack([form.log_rest(thresholds) for form in fixed]))
    powers = jnp.exp(jnp.stack([form.log_delta(thresholds) for form in fixed]))
    used = jnp.exp(jnp.minimum(thresholds + level, 700))
    best = jnp.argmin(jnp.max(powers, axis=0) + used)
    epsilon, rest = thresholds[best], rests[:, best]
    # Errors of the masses and of a crossing's place: see `AtomicForm.loss_error`.
    slip = 4 * jnp.max(jnp.stack([form.slip(epsilon) for form in fixed]))
    # And of alpha, whose share of 1 - f(alpha) is at most 1.
    slip = slip + 4 * ULP * (1 + jnp.abs(level))
    active = rest <= jnp.min(rest) + slip
    tests = [_tests_at(form.atoms, epsilon, slip) for form in directions]
    tests = jax.tree.map(lambda *x: jnp.stack(x), *tests)
    first = jnp.argmin(jnp.where(active, stop_gradient(tests.alpha[:, 0]), jnp.inf))
    last = jnp.argmax(jnp.where(active, stop_gradient(tests.alpha[:, 1]), -jnp.inf))
    low = jax.tree.map(lambda x: x[first, 0], tests)
    high = jax.tree.map(lambda x: x[last, 1], tests)
    width = high.alpha - low.alpha
    share = (jnp.exp(log_alpha) - low.alpha) / jnp.where(width > 0, width, 1)
    share = jnp.where(width > 0, share, 0)
    beta = (1 - share) * low.beta + share * high.beta
    tpr = (1 - share) * low.tpr + share * high.tpr
    value, power = stop_gradient((beta, tpr))
    # What was left out counts for the attacker, in the lower bound of beta alone.
    truncated = jnp.max(jnp.exp(jnp.stack([form.log_truncated() for form in fixed])))
    lost = max(form.lost() for form in fixed)
    return (
        Interval(value - slip, beta, value + slip + truncated + lost).map(safe_log),
        Interval(power * (1 - slip) - truncated, tpr, power * (1 + slip)).map(safe_log),
    )


def _tests_at(atoms: AtomicLoss, epsilon: Array, slip: Array) -> ErrorPair:
    """The tests that reject losses above a threshold, without and with those at it."""
    loss, log_q, log_p = _common(atoms)
    fixed = stop_gradient(loss)
    rejected = jnp.stack([fixed > epsilon + slip, fixed >= epsilon - slip])
    total = lambda logs, chosen: jnp.exp(log_sum_exp(logs, chosen))
    p, q = (jnp.broadcast_to(x, rejected.shape) for x in (log_p, log_q))
    infinite = jnp.exp(atoms.log_infinite_masses()[0])
    return ErrorPair(
        total(p, rejected), total(q, ~rejected), total(q, rejected) + infinite
    )


class AtomicForm(AbstractClosedForm):
    """One release with finitely many outputs, in one direction."""

    atoms: AtomicLoss

    def logs(self, epsilon):
        loss, log_q, log_p = _common(self.atoms)
        gap = loss - epsilon[..., None]
        above = gap > 0
        gains = log_q + log1mexp(jnp.where(above, gap, 1.0))
        gain = log_sum_exp(gains, above & jnp.isfinite(log_q))
        # Outputs of one pair member alone included.
        log_delta = log_add(gain, self.atoms.log_infinite_masses()[0])
        # The sum of min(q, e^eps p).
        parts = jnp.where(above, log_p + epsilon[..., None], log_q)
        log_rest = log_sum_exp(parts, jnp.isfinite(parts))
        log_alpha = log_sum_exp(jnp.broadcast_to(log_p, above.shape), above)
        return jnp.minimum(log_delta, 0), jnp.minimum(log_rest, 0), log_alpha

    def log_truncated(self):
        return stop_gradient(self.atoms.log_truncated_masses()[0])

    def lost(self):
        return self.atoms.lost

    def mass_error(self):
        return jnp.asarray(stop_gradient(self.atoms.mass_error))

    def loss_error(self, epsilon):
        """Largest change of a loss near a threshold by errors of masses and rounding.

        Each mass is within `mass_error`, so delta(eps) is at most the one calculated at
        eps minus this number, up to that relative error, and at least the one at eps
        plus it; where losses are no quotients of the masses, their own errors will do.
        From the largest loss on there is nothing to be wrong about.
        """
        slip = self.slip(epsilon)
        # Of the largest loss as well, if it is one of those that are not known exactly.
        uncertain = 0 if self.atoms.loss_error is None else slip
        largest = stop_gradient(jnp.max(_losses(self.atoms)))
        return jnp.where(epsilon >= largest + uncertain, 0, slip)

    def slip(self, epsilon: Array) -> Array:
        """`loss_error` wherever the largest loss is."""
        size = jnp.max(jnp.abs(_losses(self.atoms))) + jnp.abs(epsilon)
        rounding = 8 * ULP * (1 + size)
        apart = self.atoms.loss_error
        apart = 2 * jnp.asarray(self.atoms.mass_error) if apart is None else apart
        return rounding + stop_gradient(apart)

    def error_rates(self, other, log_alpha, log_tnr):
        if self.atoms.log_p.size > FEW_OUTPUTS:
            return None
        return error_rates((self,) if other is None else (self, other), log_alpha)
