"""Closed forms for n releases of the (epsilon0, delta0) mechanism.

One release is the extremal (epsilon0, delta0)-DP pair of Kairouz, Oh and Viswanath
(2015): with probability delta0 the outcome gives everything away, otherwise it is
randomised response, so that its loss is +-epsilon0 and under Q it is +epsilon0 with
probability p = e^epsilon0 / (1 + e^epsilon0). After n releases, with K ~ Bin(n, p)
under Q and Bin(n, 1-p) under P, the finite loss is (2K - n) epsilon0 and

    delta(eps) = 1 - (1-delta0)^n + (1-delta0)^n r(eps),
    r(eps)     = sum_{k >= k*} Q(K = k) (1 - e^{eps - (2k-n) epsilon0}),
    1 - r(eps) = Q(K < k*) + e^eps P(K >= k*),

where k* is the first k whose loss exceeds eps. These sums have positive terms only, and
they are added outwards from the largest one, whose logarithm is Loader's (2000). In
e^eps, delta is linear between neighbouring losses: derivatives are those of the piece
to the right of a lattice point, and eps(delta) is solved exactly once the piece is
found.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import expit
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..._internal._arithmetic import promote, two_product
from ..._internal._counts import log_binomial_at_logit
from ..._internal._logs import LOG_2
from ..._internal._special import log1mexp, log1p
from .._closed_form import AbstractClosedForm

_BLOCK = 128
# Above this epsilon0, e^-epsilon0 is negligible against one, but e^epsilon0 overflows.
_MAX_RATIO_EXPONENT = {4: 80.0, 8: 700.0}


def _block(start, first, step, ratio_at, weight_at):
    """Terms of one block: `(weighted sum, next term, next index)`."""
    offsets = jnp.arange(_BLOCK, dtype=start.dtype)
    index = first[..., None] + step * offsets
    ratios = ratio_at(index)
    products = start[..., None] * jnp.cumprod(ratios, axis=-1)
    terms = jnp.concatenate([start[..., None], products[..., :-1]], axis=-1)
    total = jnp.sum(terms * weight_at(index), axis=-1)
    return total, products[..., -1], index[..., -1] + step


def _log_weighted_tail(logit, n, k, theta, spacing) -> jax.Array:
    """Log of sum_{j=k}^n b(j) (1 - exp(-theta - (j-k) spacing)), b = Bin(n, sigmoid).

    For theta = inf, the tail probability. Starts at the mode of b, or at k beyond it,
    and adds blocks on both sides until what is left is below the rounding error.
    """
    empty = k > n
    k = jnp.clip(k, 0.0, n)
    cap = _MAX_RATIO_EXPONENT[logit.dtype.itemsize]
    odds = jnp.exp(jnp.clip(logit, -cap, cap))
    centre = jnp.clip(jnp.floor((n + 1.0) * expit(logit)), k, n)
    tolerance = float(jnp.finfo(logit.dtype).eps) / 8.0

    def wide(x):
        return x[..., None]

    def up(j):
        return jnp.maximum(wide(n) - j, 0.0) / (j + 1.0) * wide(odds)

    def down(j):
        inside = j > wide(k)
        ratio = jnp.where(inside, j, 0.0) / (wide(n) - j + 1.0)
        return ratio / wide(odds)

    def weight(j):
        gap = jnp.maximum(j - wide(k), 0.0) * wide(spacing)
        return -jnp.expm1(-(wide(theta) + gap))

    def condition(state):
        return jnp.any(state[-1])

    def body(state):
        total, right, right_index, left, left_index, _ = state
        gain, right, right_index = _block(right, right_index, 1.0, up, weight)
        fall, left, left_index = _block(left, left_index, -1.0, down, weight)
        total = total + gain + fall
        # The ratios decrease outwards and the weights grow at most linearly, hence
        # these bounds of the two remainders.
        slack = 1.0 - up(wide(right_index))[..., 0]
        right_rest = right * weight(wide(right_index))[..., 0]
        right_open = right_rest > tolerance * total * slack * jnp.abs(slack)
        slack = 1.0 - down(wide(left_index))[..., 0]
        left_rest = left * weight(wide(left_index))[..., 0]
        left_open = left_rest > tolerance * total * slack
        return total, right, right_index, left, left_index, right_open | left_open

    one = jnp.ones_like(logit)
    left = down(wide(centre))[..., 0]
    state = (0.0 * one, one, centre, left, centre - 1.0, one > 0)
    total = jax.lax.while_loop(condition, body, state)[0]
    return jnp.where(
        empty, -jnp.inf, log_binomial_at_logit(logit, n, centre) + jnp.log(total)
    )


def _smaller_side(logit, n, k):
    """Which tail of Bin(n, sigmoid(logit)) to add up: `(is_lower, logit, k)`."""
    lower = k <= n * expit(logit)
    return lower, jnp.where(lower, -logit, logit), jnp.where(lower, n - k + 1.0, k)


def _tail_from_side(lower, log_side):
    safe = jnp.where(lower, log_side, -1.0)
    return jnp.where(lower, log1p(-jnp.exp(safe)), log_side)


@jax.custom_jvp
def _log_tail(logit: jax.Array, n: jax.Array, k: jax.Array) -> jax.Array:
    """Log Pr[Bin(n, sigmoid(logit)) >= k], relative accuracy of either tail."""
    lower, side, start = _smaller_side(logit, n, k)
    theta = jnp.full_like(logit, jnp.inf)
    log_side = _log_weighted_tail(side, n, start, theta, jnp.zeros_like(logit))
    return _tail_from_side(lower, log_side)


@_log_tail.defjvp
def _log_tail_jvp(primals, tangents):
    (logit, n, k), dlogit = primals, tangents[0]
    value = _log_tail(logit, n, k)
    inner = (k >= 1) & (k <= n)
    log_ratio = log_binomial_at_logit(logit, n, jnp.where(inner, k, n)) - value
    ratio = jnp.exp(jnp.where(inner, log_ratio, 0.0))
    slope = jnp.where(inner, k * expit(-logit) * ratio, 0.0)
    return value, slope * dlogit


def _sums(epsilon0, n, k, theta, epsilon) -> tuple[jax.Array, ...]:
    """`(log r, log(1-r), log P(K >= k))` at eps = (2k-n) epsilon0 - theta."""
    logits = jnp.stack([-epsilon0, -epsilon0])
    counts = jnp.stack([n, n])
    lower, side, start = _smaller_side(logits, counts, jnp.stack([n - k + 1.0, k]))
    wide = epsilon0[None]
    # One loop for the three sums.
    log_sums = _log_weighted_tail(
        jnp.concatenate([wide, side]),
        jnp.stack([n, n, n]),
        jnp.concatenate([k[None], start]),
        jnp.concatenate([theta[None], jnp.full_like(side, jnp.inf)]),
        jnp.concatenate([2.0 * wide, jnp.zeros_like(side)]),
    )
    log_beta, log_alpha = _tail_from_side(lower, log_sums[1:])
    log_rest = jnp.logaddexp(log_beta, epsilon + log_alpha)
    # Below the lattice all of Q counts, with total weight 1 - e^eps.
    below = k < 0.5
    log_below = log1mexp(jnp.where(below, -epsilon, 1.0))
    log_delta = jnp.where(below, log_below, log_sums[0])
    log_rest = jnp.where(below, epsilon, log_rest)
    small = log_delta < -LOG_2
    near_one = log1p(-jnp.exp(jnp.minimum(log_delta, -LOG_2)))
    log_rest = jnp.minimum(jnp.where(small, near_one, log_rest), 0.0)
    log_delta = jnp.where(small, log_delta, log1p(-jnp.exp(log_rest)))
    return log_delta, log_rest, log_alpha


def _with_failure(delta0, n, log_delta, log_rest, log_alpha) -> tuple[jax.Array, ...]:
    """Adds the probability 1 - (1-delta0)^n of an infinite loss."""
    log_keep = _log_keep(delta0, n)
    certain = log1mexp(-jnp.where(log_keep < 0, log_keep, -1.0))
    certain = jnp.where(log_keep < 0, certain, -jnp.inf)
    total = jnp.logaddexp(certain, log_keep + log_delta)
    log_rest = log_keep + log_rest
    near_one = log1p(-jnp.exp(jnp.minimum(log_rest, -LOG_2)))
    log_delta = jnp.where(log_rest < -LOG_2, near_one, total)
    return log_delta, log_rest, log_keep + log_alpha


def _log_keep(delta0: jax.Array, n: jax.Array) -> jax.Array:
    """Log of (1 - delta0)^n for delta0 < 1."""
    return n * jnp.log1p(-delta0)


def _theta(epsilon0, n, k, epsilon) -> jax.Array:
    """Loss at k minus eps, rounded once."""
    loss, error = two_product(2.0 * k - n, epsilon0)
    return (loss - epsilon) + error


def _first_above(epsilon0, n, epsilon) -> jax.Array:
    """The least k in 0..n+1 with (2k-n) epsilon0 > eps, for epsilon0 > 0."""
    guess = jnp.floor(0.5 * (epsilon / epsilon0 + n)) + 1.0
    k = jnp.clip(guess, 0.0, n + 1.0)
    k = jnp.where(_theta(epsilon0, n, k, epsilon) <= 0, k + 1.0, k)
    k = jnp.where(_theta(epsilon0, n, k - 1.0, epsilon) > 0, k - 1.0, k)
    return jax.lax.stop_gradient(jnp.clip(k, 0.0, n + 1.0))


def _piece(epsilon0, n, epsilon) -> tuple[jax.Array, jax.Array]:
    """`(k*, theta)` of a real eps; theta is positive."""
    atom = epsilon0 == 0
    k = _first_above(jnp.where(atom, 1.0, epsilon0), n, epsilon)
    k = jnp.where(atom, jnp.where(epsilon < 0, 0.0, n + 1.0), k)
    return k, jnp.maximum(_theta(epsilon0, n, k, epsilon), 0.0)


@jax.custom_jvp
def _profile(epsilon0, delta0, n, epsilon) -> tuple[jax.Array, ...]:
    """`(log delta, log(1-delta), log alpha)` for finite arguments, delta0 < 1."""
    k, theta = _piece(epsilon0, n, epsilon)
    return _with_failure(delta0, n, *_sums(epsilon0, n, k, theta, epsilon))


def _log_gain(epsilon0, n, k, epsilon) -> tuple[jax.Array, jax.Array]:
    """Log of dr/d epsilon0 = k Q(K=k) (1 - p + p e^-theta), and if it is not zero."""
    inner = (k >= 1) & (k <= n)
    k = jnp.where(inner, k, 1.0)
    n = jnp.maximum(n, 1.0)
    theta = (2.0 * k - n) * epsilon0 - epsilon
    mixed = jnp.logaddexp(
        jax.nn.log_sigmoid(-epsilon0), jax.nn.log_sigmoid(epsilon0) - theta
    )
    return inner, jnp.log(k) + log_binomial_at_logit(epsilon0, n, k) + mixed


@_profile.defjvp
def _profile_jvp(primals, tangents):
    epsilon0, delta0, n, epsilon = primals
    depsilon0, ddelta0, _, depsilon = tangents
    log_delta, log_rest, log_alpha = _profile(*primals)
    k, _ = _piece(epsilon0, n, epsilon)
    inner, log_gain = _log_gain(epsilon0, n, k, epsilon)
    log_gain = log_gain + _log_keep(delta0, n)
    log_loss = epsilon + log_alpha
    keep = 1.0 - delta0

    def scaled(log_term, log_scale):
        """exp(log_term - log_scale), zero if either is not finite."""
        usable = (log_term > -jnp.inf) & (log_scale > -jnp.inf)
        return jnp.where(usable, jnp.exp(jnp.where(usable, log_term - log_scale, 0)), 0)

    def change(log_scale):
        gain = jnp.where(inner, scaled(log_gain, log_scale), 0.0)
        loss, rest = scaled(log_loss, log_scale), scaled(log_rest, log_scale)
        return gain * depsilon0 - loss * depsilon + n * rest / keep * ddelta0

    # d P(K >= k)/d epsilon0 = -k p P(K = k), and alpha = (1-delta0)^n P(K >= k).
    log_point = log_binomial_at_logit(-epsilon0, n, jnp.where(inner, k, n))
    log_point = log_point + _log_keep(delta0, n)
    ratio = jnp.where(inner, scaled(log_point, log_alpha), 0.0)
    alive = jnp.where(log_alpha > -jnp.inf, n / keep, 0.0)
    dlog_alpha = -k * expit(epsilon0) * ratio * depsilon0 - alive * ddelta0
    values = (log_delta, log_rest, log_alpha)
    return values, (change(log_delta), -change(log_rest), dlog_alpha)


def evaluate(epsilon0, delta0, n, epsilon) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logs of delta, 1 - delta and P(X > eps) after n releases, for every eps.

    Args:
        epsilon0: loss of one release, in [0, inf].
        delta0: failure probability of one release, in [0, 1].
        n: number of releases, a nonnegative integer in floating point; no gradient.
        epsilon: real or infinite.
    """
    epsilon0, delta0, n, epsilon = promote(epsilon0, delta0, n, epsilon)
    n = jax.lax.stop_gradient(n)
    exposed = (n > 0) & (jnp.isinf(epsilon0) | (delta0 >= 1))
    finite = jnp.isfinite(epsilon)
    regular = finite & ~exposed
    # A loss cannot exceed n epsilon0, where only the infinite one is left.
    safe0 = jnp.where(exposed | jnp.isinf(epsilon0), 0.0, epsilon0)
    safe_delta0 = jnp.where(exposed | (delta0 >= 1), 0.0, delta0)
    top = jnp.where(epsilon > 0, n * safe0 + 1.0, 0.0)
    safe_epsilon = jnp.where(finite, epsilon, jax.lax.stop_gradient(top))
    log_delta, log_rest, log_alpha = _profile(safe0, safe_delta0, n, safe_epsilon)
    positive = jnp.isposinf(epsilon) & ~exposed
    certain = jnp.where(positive, log_delta, 0.0)
    remaining = jnp.where(positive, log_rest, -jnp.inf)
    # Under P the loss is -inf with probability delta0.
    above = jnp.isneginf(epsilon) & ~jnp.isinf(jnp.where(n > 0, epsilon0, 0.0))
    keep = jnp.where(exposed, -jnp.inf, _log_keep(safe_delta0, n))
    return (
        jnp.where(regular, log_delta, certain),
        jnp.where(regular, log_rest, remaining),
        jnp.where(regular, log_alpha, jnp.where(above, keep, -jnp.inf)),
    )


def _at_knot(epsilon0, delta0, n, k, theta) -> tuple[jax.Array, ...]:
    """The three logarithms for the test K >= k at eps = (2k-n) epsilon0 - theta."""
    epsilon = (2.0 * k - n) * epsilon0 - theta
    return _with_failure(delta0, n, *_sums(epsilon0, n, k, theta, epsilon))


def _find_piece(epsilon0, delta0, n, log_delta, log_rest) -> jax.Array:
    """The least k in 0..n with delta((2k-n) epsilon0) <= target, n + 1 if none."""

    def enough(k):
        # The test K >= k+1 at the loss of k.
        step = 2.0 * epsilon0
        value, rest, _ = _at_knot(epsilon0, delta0, n, k + 1.0, step)
        return jnp.where(log_delta < -LOG_2, value <= log_delta, rest >= log_rest)

    def condition(state):
        low, high = state
        return jnp.any(high - low > 1.0)

    def body(state):
        low, high = state
        middle = jnp.floor(0.5 * (low + high))
        good = enough(jnp.maximum(middle, 0.0))
        open_ = high - low > 1.0
        return (
            jnp.where(open_ & ~good, middle, low),
            jnp.where(open_ & good, middle, high),
        )

    start = -jnp.ones_like(n), n + 1.0
    return jax.lax.while_loop(condition, body, start)[1]


def _solve_piece(epsilon0, delta0, n, k, log_delta, log_rest) -> jax.Array:
    """Eps on the piece with losses of k-1 and k as its ends, where delta is linear."""
    step = 2.0 * epsilon0
    right = (2.0 * k - n) * epsilon0
    small = log_delta < -LOG_2

    def distance(theta):
        """(target - delta) e^-eps / alpha at the end theta below the loss of k."""
        value, rest, alpha = _at_knot(epsilon0, delta0, n, k, theta)
        log_scale = right - theta + alpha
        by_delta = -jnp.expm1(value - log_delta) * jnp.exp(log_delta - log_scale)
        by_rest = -jnp.expm1(log_rest - rest) * jnp.exp(rest - log_scale)
        return jnp.where(small, by_delta, by_rest)

    # From the right end while less than half of e^eps is missing, else from the left.
    from_right = jnp.clip(distance(jnp.zeros_like(step)), 0.0, 1.0)
    from_left = jnp.maximum(-distance(step), 0.0)
    high = right + log1p(-jnp.minimum(from_right, 0.5))
    low = right - step + jnp.log1p(from_left)
    value = jnp.where(from_right < 0.5, high, low)
    return jnp.clip(value, right - step, right)


@jax.custom_jvp
def _epsilon(epsilon0, delta0, n, log_delta) -> tuple[jax.Array, jax.Array]:
    """`(eps, k)` for finite arguments, 0 < delta < 1; k = n + 1 if unattainable."""
    log_rest = log1mexp(-log_delta)
    k = _find_piece(epsilon0, delta0, n, log_delta, log_rest)
    inner = jnp.clip(k, 1.0, jnp.maximum(n, 1.0))
    value = _solve_piece(epsilon0, delta0, n, inner, log_delta, log_rest)
    # Below the lattice 1 - delta = (1-delta0)^n e^eps.
    return jnp.where(k < 0.5, log_rest - _log_keep(delta0, n), value), k


@_epsilon.defjvp
def _epsilon_jvp(primals, tangents):
    epsilon0, delta0, n, log_delta = primals
    depsilon0, ddelta0, _, dlog_delta = tangents
    epsilon, k = _epsilon(*primals)
    attained = k <= n
    safe_k = jnp.where(attained, k, 0.0)
    log_loss = epsilon + _log_tail(-epsilon0, n, safe_k)
    log_keep = _log_keep(delta0, n)
    inner, log_gain = _log_gain(epsilon0, n, safe_k, epsilon)
    gain = jnp.where(inner, jnp.exp(jnp.where(inner, log_gain - log_loss, 0.0)), 0.0)
    log_slope = log_loss + log_keep
    cap = 0.4 * float(np.log(float(jnp.finfo(epsilon.dtype).max)))
    per_delta = jnp.exp(jnp.minimum(log_delta - log_slope, cap))
    per_failure = jnp.exp(jnp.minimum(log1mexp(-log_delta) - log_slope, cap))
    tangent = gain * depsilon0 - per_delta * dlog_delta
    tangent = tangent + n / (1.0 - delta0) * per_failure * ddelta0
    tangent = jnp.where(attained, tangent, 0.0)
    return (epsilon, k), (tangent, jnp.zeros_like(k))


def epsilon(
    epsilon0: ArrayLike, delta0: ArrayLike, n: ArrayLike, log_delta: ArrayLike
) -> jax.Array:
    """The least real eps with delta(eps) at most the given one.

    +inf below the probability 1 - (1-delta0)^n of an infinite loss, n epsilon0 at that
    probability (in particular for delta = delta0 = 0), -inf for delta = 1.
    """
    epsilon0, delta0, n, log_delta = promote(epsilon0, delta0, n, log_delta)
    n = jax.lax.stop_gradient(n)
    exposed = (n > 0) & (jnp.isinf(epsilon0) | (delta0 >= 1))
    bounded = ~exposed & (log_delta > -jnp.inf) & (log_delta < 0)
    safe0 = jnp.where(exposed | jnp.isinf(epsilon0), 0.0, epsilon0)
    safe_delta0 = jnp.where(exposed | (delta0 >= 1), 0.0, delta0)
    target = jnp.where(bounded, log_delta, -1.0)
    value, k = _epsilon(safe0, safe_delta0, n, target)
    value = jnp.where(k > n, jnp.inf, value)
    pure = jnp.where(exposed | ((safe_delta0 > 0) & (n > 0)), jnp.inf, n * safe0)
    edge = jnp.where(log_delta < 0, pure, -jnp.inf)
    return jnp.where(bounded, value, edge)


class TwoPointForm(AbstractClosedForm):
    """Any number of releases of one (epsilon, delta)-DP pair: binomial tails."""

    epsilon0: Float[Array, ""]
    delta0: Float[Array, ""]
    count: Float[Array, ""]

    def logs(self, epsilon):
        return evaluate(self.epsilon0, self.delta0, self.count, epsilon)

    def epsilon(self, log_delta):
        return epsilon(self.epsilon0, self.delta0, self.count, log_delta)
