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
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float

from .._internal._arithmetic import ULP
from .._internal._interval import Interval
from .._internal._logs import log_add
from .._internal._roots import bisect
from .._internal._rotation import rotation
from .._internal._special import log1mexp, log_sum_exp, safe_log
from .._internal._tolerances import ATOM_MASS, LEAST_QUOTIENT
from ._cells import Atoms, Cells
from ._closed_form import AbstractClosedForm
from ._closed_transform import ClosedTransformLoss, principal_logs
from ._loss_moments import excess, moments_of

FEW_OUTPUTS, MOST_OUTPUTS = 512, 2048
"""The work of transforms grows with the square of the number of outputs."""


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
            masses = jnp.abs(self.log_p) + jnp.abs(self.log_q)
            size = size + jnp.where(self._common(), masses, 0)
        return stop_gradient(ULP * size) + 0.5 * self.range_error()

    @property
    def transforms(self) -> bool:
        # A sum over all outputs at every frequency.
        return self.log_p.size <= MOST_OUTPUTS

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

    def rough_moments(self, order):
        found = self.moments(order)
        return found[0] + self._slip(order), *found

    def _slip(self, order: Array) -> Array:
        """The relative error of E_P[(dQ/dP)^w] by those of masses and losses."""
        slip = jnp.max(self._rounding()) * (1 + jnp.abs(order))
        return stop_gradient(jnp.asarray(self.mass_error) + slip)

    def log_mgf(self, plan):
        value, _, _, rounding = self._tilted(plan.order[None])
        return value[0], rounding[0] + self._slip(plan.order)

    def log_transform(self, plan, tau):
        _, (weight,), loss, (rounding,) = self._tilted(plan.order[None])
        versine, sine = rotation(tau[:, None] * (loss - plan.center))
        real, imag = (1 + versine) @ weight, sine @ weight
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
        if self.log_p.size <= count:
            return None
        # The others have no mass, if none is missing.
        some = jnp.isfinite(self.log_p) | jnp.isfinite(self.log_q)
        place = jnp.arange(some.size)
        first = jnp.min(jnp.where(some, place, some.size - count))
        first = jnp.minimum(first, some.size - count)
        last = jnp.max(jnp.where(some, place, 0))
        part = lambda x: lax.dynamic_slice(x, (first,), (count,))
        log_p, log_q = part(self.log_p), part(self.log_q)
        loss = None if self.loss is None else part(self.loss)
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

        infinite = self.log_infinite_masses()
        return rest(infinite[0], self.log_q), rest(infinite[1], self.log_p)

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
        return terms[0].form(sign)

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


def _losses(atoms: AtomicLoss) -> Array:
    """The losses of outputs that both members have; others repeat one of those."""
    loss, _, log_p = _common(atoms)
    return jnp.where(jnp.isneginf(log_p), loss[jnp.argmax(log_p)], loss)


class Tests(eqx.Module):
    """Error rates of the tests that accept the outputs of the k least losses.

    All of them are sums of positive terms, and keep their relative accuracy.
    """

    alpha: Float[Array, "..."]
    tnr: Float[Array, "..."]
    beta: Float[Array, "..."]
    tpr: Float[Array, "..."]

    @classmethod
    def of(cls, form: "AtomicForm") -> "tuple[Float[Array, ' n'], Tests]":
        """The losses in order, without derivative, and the tests of all k."""
        _, *logs = _common(form.atoms)
        losses = stop_gradient(_losses(form.atoms))
        order = jnp.argsort(losses)
        q, p = (jnp.exp(jnp.maximum(x, _NOTHING))[order] for x in logs)
        gone_q, gone_p = (jnp.exp(x) for x in form.atoms.log_infinite_masses())
        below = lambda x: jnp.cumsum(jnp.append(jnp.zeros(1, x.dtype), x))
        above = lambda x: below(x[::-1])[::-1]
        tests = cls(above(p), gone_p + below(p), below(q), gone_q + above(q))
        return losses[order], tests


_NOTHING = -800.0
"""Logarithm of a mass that underflows."""


def error_rates(
    directions: "tuple[AtomicForm, ...]", log_alpha: Array, log_tnr: Array
) -> tuple[Interval, Interval]:
    """Logs of f(alpha) and 1 - f(alpha) of the worst direction, for 0 < alpha < 1.

    f is the lower hull of the points (alpha_k, beta_k) of the tests that accept the k
    least losses: next to alpha a chord of two of them, which has the derivatives of
    every order.  The chord is a test of a type I error of at most alpha: f is not above
    it.  With any slope t, f(alpha) is at least the least beta_k + t (alpha_k - alpha),
    and the power at most the largest tpr_k + t (alpha - alpha_k).  This holds whichever
    chord and slope were found; t is that of the chord, but for a factor 1 -+ 2 g.

    Rates are known up to a relative error g, and so are these ends.  Let c be the
    chord's beta and alpha = alpha_k + d.  For d < 0 both terms are positive.  For d > 0
    they cancel, but beta_k is at least c + t d, so (1 - g) beta_k - (1 - 2 g) t d is at
    least (1 - g) c.  An error r alpha of alpha, or r (1 - alpha) where sums of accepted
    masses tell alpha better, moves both by t times that, but the power is at least
    t alpha, and beta at least t (1 - alpha).  The powers go alike.

    Args:
        directions: One release in one direction or in both.
        log_alpha: Log alpha.
        log_tnr: log(1 - alpha).
    """
    found = [Tests.of(form) for form in directions]
    losses, tests = jax.tree.map(lambda *x: jnp.stack(x), *found)
    fixed, forms = stop_gradient((tests, directions))
    # Of the masses, of their logarithms, and of a sum of so many in any order.
    rounding = forms[0].mass_error() + ULP * (1000 + losses.shape[1])
    # With losses out of order a threshold rejects more than a test, or less, and gains
    # no more by it than this part of either error.
    size = jnp.max(jnp.abs(losses))
    error = 2 * rounding + 4 * forms[0].slip(size)
    # Masses that underflow are missing in the sums.
    least = jnp.finfo(losses.dtype).tiny
    masses = jnp.stack(_common(forms[0].atoms)[1:]) - jnp.log(least)
    faint = least * jnp.sum(jnp.where(masses < 0, jnp.exp(masses), 0))
    left_out = jnp.stack([jnp.stack(x.atoms.log_truncated_masses()) for x in forms])
    (missed, missed_p), lost = jnp.exp(jnp.max(left_out, axis=0)), forms[0].lost()

    # A place is alpha, or alpha - 1: whichever is known better.
    logs = jnp.stack([log_alpha, log_tnr])
    places = jnp.exp(logs) * np.array([1.0, -1.0])
    apart = jnp.abs(places) * (4 * rounding + 4 * ULP * jnp.abs(logs)) + faint + least
    apart = stop_gradient(apart.at[1].add(missed_p + lost))
    better = jnp.argmin(apart)
    place_of = lambda tests: jnp.stack([tests.alpha, -tests.tnr])[better]
    # At alpha, at more of it, and at less.
    levels = places[better] + apart[better] * np.array([0.0, 2.0, -2.0])

    method = "compare_all" if losses.shape[1] <= FEW_OUTPUTS else "scan"

    def best(tests: Tests, threshold: Array, side: float) -> Tests:
        """The tests at thresholds, of the better direction with places on that side."""
        index = jax.vmap(lambda x: jnp.searchsorted(x, threshold, method=method))(
            losses
        )
        tests = jax.tree.map(lambda x: jnp.take_along_axis(x, index, 1), tests)
        place = place_of(tests)
        errors = jnp.where(jnp.max(tests.beta, axis=0) < 0.5, tests.beta, -tests.tpr)
        value = errors + jnp.exp(threshold) * place
        value = jnp.where(side * (place - edge) < 0, jnp.inf, stop_gradient(value))
        chosen = jnp.argmin(value, axis=0)[None]
        return jax.tree.map(lambda x: jnp.take_along_axis(x, chosen, 0)[0], tests)

    # Tests of one alpha, but for rounding, are not told apart.
    level = stop_gradient(levels)
    edge = level - apart[better]
    end = jnp.full_like(level, jnp.minimum(size + 1, 700.0))
    thresholds = bisect(lambda x: edge - place_of(best(fixed, x, 0.0)), -end, end)
    high, low = (
        best(tests, x, side) for x, side in zip(thresholds, (1.0, -1.0), strict=True)
    )
    start, width = place_of(low), place_of(high) - place_of(low)
    # Neither is 1 minus the other: both are relatively accurate.
    parts = jnp.stack([place_of(high) - levels, levels - start])
    # Of tiny numbers a quotient has a derivative if one of them is about 1.
    unit = stop_gradient(jnp.where(width > 0, width, jnp.inf))
    shares = (parts / unit) / jnp.where(width > 0, width / unit, 1.0)
    kept = jnp.where(width > 0, jnp.clip(shares, 0, 1), np.array([[0.0], [1.0]]))
    # With the derivative that they have between 0 and 1.
    fewer, more = stop_gradient(kept) + (shares - stop_gradient(shares))
    beta = fewer * low.beta + more * high.beta
    tpr = fewer * low.tpr + more * high.tpr
    value, power = stop_gradient((beta, tpr))
    # Next to 1 a number has the derivative of its complement.
    moved = jnp.where(value < power, beta, -tpr)[0]
    moved = moved - stop_gradient(moved)

    less, steeper = (
        jnp.exp(x[1]) * (1 + g)
        for x, g in zip(thresholds, (-2 * error, 2 * error), strict=True)
    )
    ahead = place_of(fixed) - rounding * jnp.abs(place_of(fixed)) - level[1]
    least_beta = jnp.min(fixed.beta * (1 - error) + less * ahead)
    most_power = jnp.max(fixed.tpr * (1 + error) - steeper * ahead)
    # Masses that are lost are rejected too, where they pay.
    most_power = most_power + lost * jnp.maximum(1 - steeper, 0) + faint + least
    # What was left out counts for the attacker, in the lower bound of beta alone.
    most_beta = (
        value[2] * (1 + error)
        + missed
        + lost
        + faint
        + least * (jnp.minimum(fewer, low.beta)[2] > 0)
    )
    return (
        Interval(least_beta * (1 - error), value[0] + moved, most_beta).map(safe_log),
        Interval(
            power[2] * (1 - error) - missed,
            power[0] - moved,
            jnp.minimum(most_power * (1 + error), jnp.maximum(power[0], 1)),
        ).map(safe_log),
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
        # Of the largest loss too, if it is not known exactly.
        uncertain = 0 if self.atoms.loss_error is None else slip
        largest = stop_gradient(jnp.max(_losses(self.atoms)))
        return jnp.where(epsilon >= largest + uncertain, 0, slip)

    def slip(self, epsilon: Array) -> Array:
        """`loss_error` wherever the largest loss is."""
        most = jnp.max(jnp.abs(_losses(self.atoms)))
        rounding = 8 * ULP * (1 + most + jnp.abs(epsilon))
        apart = self.atoms.loss_error
        apart = 2 * jnp.asarray(self.atoms.mass_error) if apart is None else apart
        return rounding + stop_gradient(apart)

    def error_rates(self, other, log_alpha, log_tnr):
        both = (self,) if other is None else (self, other)
        return error_rates(both, log_alpha, log_tnr)
