"""The pair of a winner: what selection adds to a run, beyond the number of runs.

In the notation of `SelectBest` let x = scale p, for an output, and w(x) its weight
phi'(1 - p) / m as a winner, which falls from 1 to nothing: (1 + x)^-(1 + shape) for a
negative binomial law, of scale (1 - g) / g, and e^-x for a Poisson law, of scale m.
The density of the output as a winner is m w(x) times that of a run, and that of the
neighbor at least m w(h + e^r x) times, with h = scale delta_reverse(r), for every r.
With L the loss of a run and v = -w', what counts is

    g(x) = w(x) - e^(eps - L) w(h + e^r x),    -g'(x) = v(x) (1 - e^(eps - L) t(x)),

t(x) = e^r v(h + e^r x) / v(x).  As g ends at nothing, it is at most the integral of the
positive part of -g', so at most E (1 - e^(eps - L) t(X))_+ with an X of density v,
whatever x.  So

    delta(eps) <= m E delta_run(eps + log t(X)),

which is m times the profile of the run and an independent pair: of X, and of what has
the density v t, which is (X - h) / e^r where that is positive.  Where its loss -log t
is constant this is the bound with the weight s of `SelectBest`: at e^r = 1 + h for a
negative binomial law, at r = 0 for a Poisson one.

A profile is convex in e^eps.  So it does not fall if X is known no better than by
cells, and t is drawn from the ends of its cell such that its mean is kept.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array

from .._internal._concrete import evaluates_at_once, holds_anywhere
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ..curves import ProfilePoint, Subject, with_gradient
from ..losses import ComposedLoss, Method
from ..mechanisms import AbstractMechanism, FromProbabilities, as_float, resolve
from ._laws import AbstractRepetitions, NegativeBinomial
from ._weights import kept

_CELLS = 48
_FALLS = np.concatenate(
    [
        -2 * np.log1p(-np.arange(_CELLS) / _CELLS),
        [10.0, 14.0, 20.0, 30.0, 50.0, 100.0, 200.0, 600.0, 1e4],
    ]
)
"""Minus the logarithms of the weights at the ends of a pair's cells."""
_ROOM = 1e-12
"""By how much ratios are less than they are, relatively, for their rounding."""
_ALIKE = 1e-13
"""Relative difference of ratios that are taken for one."""
_TINY = 1e-140
"""Differences of ratios that no quotient is made of."""


def cells(
    law: AbstractRepetitions, falls: np.ndarray, r: Array, h: Array
) -> tuple[Array, Array]:
    """Masses of t, and its logarithms, at the ends of cells.

    Args:
        law: Of the number of runs.
        falls: Minus the logarithms of the weights w there, from 0 to where nothing is
            left.
        r: See the module; not 0 for a Poisson law.
        h: See the module.
    """
    lag = law._lag(falls, jnp.expm1(r), h)
    log_t = r - lag * (1 + law._bend())
    before, after = np.exp(-falls), jnp.exp(-falls - lag)
    mass = -np.diff(before)
    t = jnp.exp(log_t)
    rise, mean = jnp.diff(t), -jnp.diff(after) / mass
    alike = jnp.abs(rise) <= _ALIKE * t[:-1] + _TINY
    right = (mean - t[:-1]) / jnp.where(alike, 1.0, rise)
    # The lower end, where no mean is to be kept, gives no less.
    right = mass * jnp.clip(jnp.where(alike, rise < 0, right), 0.0, 1.0)
    return jnp.append(mass - right, 0.0) + jnp.append(0.0, right), log_t


@kept
def with_winner_pairs(law: NegativeBinomial, run: AbstractMechanism) -> list[Subject]:
    """A run and the pair of a winner, by direction; one for a symmetric run.

    Args:
        law: Of the number of runs.
        run: What has a transform.
    """
    # Of both directions together a run may be another one, which composes with nothing.
    resolved = resolve(run.remove)
    composed = resolved.whole.composed
    r = _guess(law, composed)
    reached, pairs = _pairs(law, r, resolved.profiles(r))
    if not evaluates_at_once() or holds_anywhere(reached != r):
        _, pairs = _pairs(law, reached, resolved.profiles(reached))

    def joined(pair: ComposedLoss, name: str) -> Subject:
        terms, counts = composed.terms + pair.terms, composed.counts + pair.counts
        return Subject(ComposedLoss(terms, counts, method=Method("contour")), name)

    return list(map(joined, pairs, ("remove", "add")))


@in_float64(cast_out=False)
def _guess(law: NegativeBinomial, loss: ComposedLoss) -> Array:
    """The best r if the run is Gaussian noise of its Hellinger distance."""
    half = jnp.full((), 0.5)
    terms = zip(loss.terms, loss.counts, strict=True)
    total = sum(count * term.normalized_log_moment(half) for term, count in terms)
    mu = jnp.sqrt(2 * jnp.maximum(total, _TINY))
    root = jnp.logaddexp(0.0, law._guess(safe_log(erf(mu / np.sqrt(8.0))))[0])
    # A little more than where t is constant, as much as is best for most numbers.
    root = root * (1 + 0.5 * jnp.cbrt(as_float(law.success_prob)))
    return jnp.full(1 if loss.symmetric else 2, root)


@in_float64(cast_out=False)
def _pairs(
    law: NegativeBinomial, r: Array, point: ProfilePoint
) -> tuple[Array, list[ComposedLoss]]:
    """From below the r of a constant t up to at least that one, and the pairs.

    Args:
        law: Of the number of runs.
        r: Where each direction was asked, for the exchanged one of the winner.
        point: What it answered.
    """
    log_delta = with_gradient(point.log_delta.upper, point.log_delta.estimate)
    each = lambda r, h: _pair(law, r, h)
    small, large = jax.vmap(each)(r, jnp.exp(law._log_scale() + log_delta))
    reached = jnp.maximum(r, law._own(point.log_delta.estimate))
    # The winner of one direction takes the exchanged one's answer.
    made = FromProbabilities.unchecked
    remove = made(without_record=small[-1], with_record=large[-1])
    add = made(without_record=large[0], with_record=small[0])
    return reached, [x.loss() for x in (remove, add)][: len(r)]


def _pair(law: NegativeBinomial, r: Array, h: Array) -> tuple[Array, Array]:
    """Probabilities with the smaller and with the larger densities."""
    more, log_t = cells(law, _FALLS, r, h)
    less = more * jnp.exp(log_t - _ROOM * (1 + law._power()))
    less = jnp.append(less, jnp.maximum(1 - jnp.sum(less), 0.0))
    return less, jnp.append(more, 0.0)
