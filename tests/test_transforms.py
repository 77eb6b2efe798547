"""Every public function of numbers under every transformation: a table.

Each row is a function of a few numbers, at two places, and is asked for its values
in a plain call, under `jax.jit` and `jax.vmap`, for its derivative (against
differences), in a float32 program, and for how often it is traced.  One program serves
most of that.  What is not in the table is in `EXCEPTIONS`, with the reason.
"""

import enum
import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted
from scipy import stats

import fdp_jax as fdp
from fdp_jax import (
    comparison,
    design,
    divergences,
    experiments,
    inference,
    levy,
    limits,
    noise,
    targets,
    tradeoff,
)

# ------------------------------------------------------------------------- the table


class Row(NamedTuple):
    """A function of numbers and the two places at which it is asked."""

    names: tuple[str, ...]
    """The public functions that it stands for."""
    f: Callable[..., Any]
    places: tuple[tuple[float, ...], tuple[float, ...]]
    smooth: Callable[..., Any]
    """The function whose derivative `f` has: itself, or what a table interpolates."""


TABLE: dict[str, Row] = {}


def _row(names: str, f: Callable[..., Any], first: Any, second: Any, **options: Any):
    """Places are exact in float32, so that a float32 program rounds no input."""
    split = tuple(names.split())
    label, smooth = options.pop("label", ""), options.pop("smooth", f)
    assert not options
    name = f"{split[0]}-{label}" if label else split[0]
    assert name not in TABLE
    places = tuple(np.atleast_1d(np.asarray(x, float)) for x in (first, second))
    assert all(np.all(x == x.astype(np.float32)) for x in places)
    first, second = (tuple(x.tolist()) for x in places)
    TABLE[name] = Row(split, f, (first, second), smooth)


def _vector(*numbers: Any) -> Any:
    return jnp.stack([jnp.asarray(x, float) for x in numbers])


DELTA = 2.0**-10
LOG_2_PI = 1.8378770664093453
NOISE = 1.25, 0.75
PAIRS = (1.25, 1.0), (0.75, 1.5)

# Queries of mechanisms.
_row(
    "AbstractGuarantee.epsilon Gaussian",
    lambda s, d: fdp.Laplace(s).epsilon(delta=d),
    (1.25, DELTA),
    (0.75, DELTA / 2),
)
_row(
    "AbstractGuarantee.delta",
    lambda s, e: fdp.Laplace(s).delta(epsilon=e),
    (1.25, 0.5),
    (0.75, 1.0),
)
_row(
    "AbstractGuarantee.log_delta",
    lambda s, e: fdp.Laplace(s).log_delta(epsilon=e),
    (1.25, 0.5),
    (0.75, 1.0),
)
_row(
    "AbstractGuarantee.beta",
    lambda s, a: fdp.Laplace(s).beta(alpha=a),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row(
    "AbstractGuarantee.tpr",
    lambda s, a: fdp.Laplace(s).tpr(fpr=a),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row(
    "AbstractGuarantee.bayes_error",
    lambda s, p: fdp.Laplace(s).bayes_error(prior=p),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row("AbstractGuarantee.advantage", lambda s: fdp.Laplace(s).advantage(), *NOISE)
_row(
    "AbstractGuarantee.bounds",
    lambda s, e: fdp.Laplace(s).bounds(epsilon=e).estimate,
    (1.25, 0.5),
    (0.75, 1.0),
)
_row(
    "AbstractGuarantee.beta",
    lambda s, a: (fdp.Gaussian(s).beta(alpha=a), fdp.Gaussian(s).epsilon(delta=a)),
    (1.25, 0.125),
    (0.75, 0.25),
    label="Gaussian",
)
_row(
    "Bounds.pick",
    lambda s, e: (
        tradeoff.Gaussian(s)
        .bounds(epsilon=e)
        .pick("optimistic", upper_is_pessimistic=True)
    ),
    (1.25, 0.5),
    (0.75, 1.5),
)
_row(
    "AbstractGuarantee.beta",
    lambda s: fdp.Laplace(s).beta(alpha=0.125),
    *NOISE,
    label="steep part of Laplace",
)
_row(
    "AbstractGuarantee.beta",
    lambda s: fdp.PureDP(s).beta(alpha=0.125),
    *NOISE,
    label="line of PureDP",
)
_row(
    "_Query.using",
    lambda s: fdp.Laplace(s).using("closed_form").delta(epsilon=0.5),
    *NOISE,
)
_row(
    "AbstractMechanism.remove AbstractMechanism.add",
    lambda s: (
        fdp.Laplace(s).remove.delta(epsilon=0.5),
        fdp.Laplace(s).add.delta(epsilon=0.5),
    ),
    *NOISE,
)
_row(
    "AbstractMechanism.curve Curve GridCurve",
    lambda s, e: fdp.Laplace(s).curve(num_points=65).delta(epsilon=e),
    (1.25, 0.5),
    (0.75, 0.25),
    smooth=lambda s, e: fdp.Laplace(s).delta(epsilon=e),
)
_row(
    "Curve.both",
    lambda s, e: fdp.Laplace(s).curve(num_points=65).both.delta(epsilon=e),
    (1.25, 0.5),
    (0.75, 0.25),
    smooth=lambda s, e: fdp.Laplace(s).delta(epsilon=e),
)

# Mechanisms, by divergences that need no engine.
kl, hellinger = divergences.kl, divergences.squared_hellinger
TRIPLET = (0.5, 0.75, 0.25), (0.25, 0.5, 0.5)


def _triplet(variance: Any, jump: Any, rate: Any) -> fdp.LevyTriplet:
    return fdp.LevyTriplet(
        variance, jumps=_vector(jump, -jump), rates=_vector(rate, 2 * rate)
    )


def _squared_difference(t: Any) -> Any:
    return jnp.square(t - 1)


def _log_normal(x: Any, scale: Any) -> Any:
    return -0.5 * jnp.square(x / scale) - jnp.log(scale) - 0.5 * LOG_2_PI


def _log_shifted(x: Any, scale: Any) -> Any:
    return _log_normal(x - 1, scale)


def _log_share(t: Any, mu: Any) -> Any:
    """log (1 - e^{-(mu - t) / 2}) / (1 - e^-mu): tails of the logistic law's loss."""
    inside = t < mu
    gap = jnp.where(inside, mu - t, 1.0)
    value = jnp.log(-jnp.expm1(-0.5 * gap)) - jnp.log(-jnp.expm1(-mu))
    return jnp.where(inside, value, -jnp.inf)


LOSS_TAILS = {
    "log_sf_without": lambda t, m: _log_share(t, m) - 0.5 * (m + t),
    "log_cdf_without": lambda t, m: _log_share(-t, m),
    "log_cdf_with": lambda t, m: _log_share(-t, m) - 0.5 * (m - t),
    "log_sf_with": lambda t, m: _log_share(t, m),
}


_row(
    "FromLossDistribution",
    lambda m: kl(fdp.FromLossDistribution(**LOSS_TAILS, loss_range=(-m, m), params=m)),
    *NOISE,
)
_row(
    "ApproxDP",
    lambda e, d: hellinger(fdp.ApproxDP(epsilon=e, delta=d)),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "DPSGD",
    lambda s, q, n: kl(fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n)),
    (1.25, 0.125, 2.0),
    (0.75, 0.25, 3.0),
)
SCHEMES = {
    "sampling.Poisson": lambda q: fdp.sampling.Poisson(q),
    "sampling.CyclicPoisson": lambda q: fdp.sampling.CyclicPoisson(q, num_groups=4),
    "sampling.UserLevel": lambda q: fdp.sampling.UserLevel(q, max_examples=3),
    "sampling.TruncatedPoisson": lambda q: fdp.sampling.TruncatedPoisson(
        q, batch_size=3, dataset_size=16
    ),
}


def _sampled(scheme: Any, s: Any, q: Any, relation: str = "zero_out") -> Any:
    return fdp.DPSGD(
        noise_multiplier=s, sampling=scheme(q), num_steps=8, relation=relation
    )


for _name, _scheme in SCHEMES.items():
    _row(
        _name,
        lambda s, q, scheme=_scheme: kl(
            _sampled(scheme, s, q, "add_or_remove_one"),
        ),
        (1.25, 0.125),
        (0.75, 0.25),
    )
_row(
    "sampling.FixedSize",
    lambda s, q: kl(_sampled(lambda q: fdp.sampling.FixedSize(prob=q), s, q)),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "sampling.WithReplacement",
    lambda s: (
        fdp.DPSGD(
            noise_multiplier=s,
            sampling=fdp.sampling.WithReplacement(batch_size=2, dataset_size=16),
            num_steps=1,
            relation="replace_one",
        )
        .bounds(epsilon=0.0)
        .estimate
    ),
    *NOISE,
)
_row(
    "sampling.RandomAllocation",
    lambda s, d: (
        _sampled(lambda t: fdp.sampling.RandomAllocation(t), s, 8.0)
        .remove.bounds(delta=d)
        .estimate
    ),
    (1.25, DELTA),
    (0.75, DELTA / 2),
)
_row(
    "sampling.MinSeparation sampling.MinSeparation.rate",
    lambda q: fdp.sampling.MinSeparation(q, min_separation=3).rate(),
    0.125,
    0.25,
)
_row(
    "sampling.ShuffledEpochs",
    lambda s: kl(_sampled(lambda t: fdp.sampling.ShuffledEpochs(t), s, 4.0)),
    *NOISE,
)
_row(
    "sampling.TruncatedPoisson.truncation",
    lambda q: SCHEMES["sampling.TruncatedPoisson"](q).truncation(),
    0.125,
    0.25,
)
_row(
    "Subsampled",
    lambda s, q: kl(fdp.Subsampled(fdp.Laplace(s), fdp.sampling.Poisson(q))),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "MatrixMechanism MatrixMechanism.sensitivity",
    lambda s, c: (
        (run := fdp.MatrixMechanism(s, _vector(1, c), num_steps=8)).sensitivity(),
        run.epsilon(delta=DELTA),
    ),
    (1.25, 0.5),
    (0.75, 0.25),
)
_row(
    "StrategiesByName.tree",
    lambda s: fdp.MatrixMechanism.tree(s, 10).epsilon(delta=DELTA),
    *NOISE,
)
_row(
    "StrategiesByName.bifr StrategiesByName.bisr StrategiesByName.lambda_cgd",
    lambda s, x: (
        fdp.MatrixMechanism.bifr(s, 8, bands=3, power=x).epsilon(delta=DELTA),
        fdp.MatrixMechanism.bisr(s, 8, bands=3).epsilon(delta=DELTA),
        fdp.MatrixMechanism.lambda_cgd(s, 8, share=x).sensitivity(),
    ),
    (1.25, 0.5),
    (0.75, 0.25),
)
_row("DiscreteGaussian", lambda s: kl(fdp.DiscreteGaussian(s)), *NOISE)
_row("DiscreteLaplace", lambda s: kl(fdp.DiscreteLaplace(s)), *NOISE)
_row(
    "DistributedDiscreteGaussian",
    lambda s: kl(fdp.DistributedDiscreteGaussian(s, num_shares=4)),
    2.25,
    2.75,
)
_row("ExponentialMechanism", lambda e: kl(fdp.ExponentialMechanism(e)), *NOISE)
_row(
    "FromLogDensities",
    lambda s: kl(
        fdp.FromLogDensities(
            _log_normal,
            _log_shifted,
            support=(-30.0, 30.0),
            params=s,
            log_beyond=-250.0,
        )
    ),
    *NOISE,
)
_row(
    "FromProbabilities",
    lambda p: kl(fdp.FromProbabilities(_vector(p, 1 - p), _vector(0.5, 0.5))),
    0.25,
    0.375,
)
_row(
    "FromTradeOffPoints",
    lambda p: hellinger(
        fdp.FromTradeOffPoints(_vector(0, p, 1), _vector(1 - p, 0.25 * p, 0))
    ),
    0.25,
    0.375,
)
_row(
    "GeneralizedGaussian",
    lambda s, b: kl(fdp.GeneralizedGaussian(s, shape=b)),
    (1.25, 2.5),
    (0.75, 1.5),
)
_row(
    "KaryRandomizedResponse",
    lambda e: kl(fdp.KaryRandomizedResponse(e, num_categories=3)),
    *NOISE,
)
_row("Laplace", lambda s: kl(fdp.Laplace(s)), *NOISE)
_row(
    "LastIterate",
    lambda s, c: kl(fdp.LastIterate(s, contraction=c, num_steps=7)),
    (1.25, 0.875),
    (0.75, 0.25),
)
_row("LevyTriplet", lambda v, j, r: kl(_triplet(v, j, r)), *TRIPLET)
_row("Logistic", lambda s: kl(fdp.Logistic(s)), *NOISE)
_row(
    "MixtureOfGaussians",
    lambda s, p: kl(
        fdp.MixtureOfGaussians(s, shifts=[0.0, 1.0], probs=_vector(1 - p, p))
    ),
    (1.25, 0.25),
    (0.75, 0.375),
)
_row(
    "AboveThreshold AboveThreshold.epsilon0 AboveThreshold.query_noise_multiplier",
    lambda s, r: (
        kl(search := fdp.AboveThreshold(s, num_above=3, query_ratio=r)),
        search.epsilon0,
        search.query_noise_multiplier,
    ),
    (1.25, 2.5),
    (0.75, 1.5),
)
_row(
    "AboveThreshold.with_gaussian_noise",
    lambda s, r: fdp.AboveThreshold.with_gaussian_noise(
        s, num_queries=10, query_ratio=r
    ).delta(epsilon=2.0),
    (1.5, 2.5),
    (1.75, 1.5),
)
_row(
    "PartitionSelection",
    lambda s, t: fdp.PartitionSelection(s, threshold=t, max_partitions=3).delta(
        epsilon=0.5
    ),
    (3.25, 12.0),
    (2.75, 10.0),
)
_row("ReportNoisyMax", lambda s: kl(fdp.ReportNoisyMax(s)), *NOISE)
_row("PermuteAndFlip", lambda e: kl(fdp.PermuteAndFlip(e)), *NOISE)
_row("Skellam", lambda s: kl(fdp.Skellam(s)), *NOISE)
_row(
    "Skellam.of_vectors",
    lambda s, x: fdp.Skellam.of_vectors(s, l2_sensitivity=x).epsilon(delta=DELTA),
    (5.25, 1.5),
    (3.75, 2.0),
)
_row(
    "PoissonMechanism",
    lambda a, b: kl(fdp.PoissonMechanism(a, b)),
    (1.25, 1.0),
    (0.75, 2.0),
)
_row(
    "PoissonMechanism.mean PoissonMechanism.variance PoissonMechanism.estimate",
    lambda a, b, x: (lambda m: (m.mean(x), m.variance(x), m.estimate(x)))(
        fdp.PoissonMechanism(a, b)
    ),
    (1.25, 1.0, 0.5),
    (0.75, 2.0, 0.25),
)
_row(
    "PoissonMechanism.lipschitz",
    lambda a, b: fdp.PoissonMechanism.lipschitz(
        largest_change=a, largest_log_change=b
    ).mean(0.5),
    (1.25, 1.0),
    (0.75, 2.0),
)
_row(
    "PoissonSubsampled",
    lambda e, q: kl(fdp.PoissonSubsampled(fdp.PureDP(e), q)),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row("PureDP", lambda e: kl(fdp.PureDP(e)), *NOISE)
_row(
    "RandomRepeat",
    lambda e, p: kl(
        fdp.RandomRepeat(
            fdp.RandomizedResponse(e), num_steps=[1, 2], probs=_vector(p, 1 - p)
        )
    ),
    (1.25, 0.25),
    (0.75, 0.375),
)
_row("RandomizedResponse", lambda e: kl(fdp.RandomizedResponse(e)), *NOISE)
_row(
    "RevealedMixture",
    lambda s, p: kl(
        fdp.RevealedMixture([fdp.Laplace(s), fdp.Gaussian(s)], probs=_vector(p, 1 - p))
    ),
    (1.25, 0.25),
    (0.75, 0.375),
)
_row(
    "accounting.GaussianFilter accounting.AbstractFilter.step"
    " accounting.AbstractFilter.spent",
    lambda mu, s: fdp.accounting.GaussianFilter(mu).step(fdp.Gaussian(s)).spent,
    (1.25, 2.0),
    (1.5, 1.75),
)
_row(
    "accounting.ZCDPFilter",
    lambda rho: fdp.accounting.ZCDPFilter(2.0).step(rho, 2).spent,
    0.5,
    0.25,
)
_row(
    "accounting.GaussianOdometer accounting.AbstractOdometer.step"
    " accounting.AbstractOdometer.spent",
    lambda mu, s: fdp.accounting.GaussianOdometer(mu).step(fdp.Gaussian(s)).spent,
    (1.25, 2.0),
    (1.5, 1.75),
)
_row(
    "accounting.ZCDPOdometer",
    lambda rho: fdp.accounting.ZCDPOdometer(2.0).step(rho, 2).spent,
    0.5,
    0.25,
)
_row(
    "accounting.RenyiOdometer",
    lambda d: (
        fdp.accounting.RenyiOdometer(fdp.RenyiDP([2.0], [2.0]))
        .step(fdp.RenyiDP([2.0], _vector(d)))
        .spent
    ),
    0.5,
    0.25,
)
_row(
    "accounting.RenyiFilter",
    lambda d: (
        fdp.accounting.RenyiFilter(fdp.RenyiDP([2.0], [2.0]))
        .step(fdp.RenyiDP([2.0], _vector(d)))
        .spent
    ),
    0.5,
    0.25,
)
_row("Schedule", lambda a, b: kl(fdp.Schedule(fdp.Gaussian, _vector(a, b))), *PAIRS)
_row(
    "Shuffled",
    lambda e: fdp.Shuffled(fdp.RandomizedResponse(e), num_records=100).epsilon(
        delta=DELTA
    ),
    *NOISE,
)
_row(
    "Staircase", lambda e, g: kl(fdp.Staircase(e, gamma=g)), (1.25, 0.25), (0.75, 0.375)
)
_row("SubordinatedGaussian", lambda a, b: kl(fdp.SubordinatedGaussian(a, b)), *PAIRS)
_row(
    "SubordinatedGaussian.levy_density",
    lambda s, x: fdp.SubordinatedGaussian(s, 1.5).levy_density(x),
    (1.25, 0.5),
    (0.75, -0.25),
)
_row("Tulap", lambda e: kl(fdp.Tulap(e)), *NOISE)
_row("compose", lambda a, b: kl(fdp.compose(fdp.Gaussian(a), fdp.Laplace(b))), *PAIRS)
_row(
    "AbstractMechanism.repeat",
    lambda s, n: kl(fdp.Gaussian(s).repeat(n)),
    (1.25, 2.0),
    (0.75, 3.5),
)
_row("AbstractMechanism.group", lambda s: kl(fdp.Laplace(s).group(2)), *NOISE)
_row(
    "ZCDP",
    lambda r: (
        lambda g: (
            g.epsilon(delta=DELTA),
            g.log_delta(epsilon=4.0),
            g.tpr(fpr=0.125),
            g.bayes_error(prior=0.375),
        )
    )(fdp.ZCDP(r)),
    *NOISE,
)
_row(
    "RenyiDP",
    lambda d: (
        lambda g: (
            g.epsilon(delta=DELTA),
            g.log_delta(epsilon=4.0),
            g.tpr(fpr=0.125),
            g.bayes_error(prior=0.375),
        )
    )(fdp.RenyiDP([2.0, 3.0], _vector(d, 2 * d))),
    0.5,
    0.25,
)
_row(
    "RenyiDP",
    lambda t: fdp.RenyiDP(_vector(t), [0.5]).beta(alpha=0.125),
    2.0,
    3.0,
    label="order",
)
_row(
    "AbstractRenyi.divergence AbstractRenyi.repeat",
    lambda r, t: (
        fdp.ZCDP(r).divergence(t),
        fdp.ZCDP(r).repeat(2).delta(epsilon=8.0),
        fdp.RenyiDP([4.0], _vector(r)).divergence(t),
        fdp.RenyiDP([4.0], _vector(r)).repeat(3).delta(epsilon=8.0),
    ),
    (1.25, 2.0),
    (0.75, 3.0),
)
_row(
    "Sensitivity Sensitivity.in_norm Sensitivity.of_clipped_sum",
    lambda c: (
        fdp.Sensitivity(c, norm="l2", relation="zero_out").in_norm("l2"),
        fdp.Sensitivity.of_clipped_sum(
            c, norm="l2", relation=fdp.NeighboringRelation.REPLACE_ONE
        ).value,
    ),
    *NOISE,
)

_row(
    "AdditiveNoise.for_sensitivity",
    lambda c, s: (
        fdp.Gaussian.for_sensitivity(
            fdp.Sensitivity(c, norm="l2", relation="zero_out"), scale=s
        ).noise_multiplier
    ),
    (0.5, 1.25),
    (1.25, 2.0),
)

# Trade-off functions.
G, L = tradeoff.Gaussian, tradeoff.Laplace


def _pure(epsilon: Any) -> tradeoff.ApproxDP:
    return tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)


def _all_queries(f: tradeoff.AbstractTradeOff) -> tuple:
    return (
        f.epsilon(delta=DELTA),
        f.log_delta(epsilon=0.5),
        f.tpr(fpr=0.125),
        f.bayes_error(prior=0.375),
        f.advantage(),
    )


def _line(m: Any) -> tradeoff.PiecewiseLinear:
    return tradeoff.PiecewiseLinear(_vector(0, m, 1), _vector(1 - m, 0.25 * m, 0))


_row("tradeoff.Gaussian", lambda m: _all_queries(G(m)), *NOISE)
_row("tradeoff.Laplace", lambda m: _all_queries(L(m)), *NOISE)
_row("tradeoff.Logistic", lambda m: _all_queries(tradeoff.Logistic(m)), *NOISE)
_row(
    "tradeoff.ApproxDP",
    lambda e, d: _all_queries(tradeoff.ApproxDP(epsilon=e, delta=d)),
    (1.25, DELTA / 2),
    (0.75, DELTA / 4),
)
_row(
    "tradeoff.AbstractTradeOff.log_beta tradeoff.AbstractTradeOff.log_tpr",
    lambda m, a: (L(m).log_beta(alpha=a), L(m).log_tpr(fpr=a)),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "tradeoff.AbstractTradeOff.beta_at_tnr tradeoff.AbstractTradeOff.bayes_gain",
    lambda m, a: (L(m).beta_at_tnr(tnr=a), L(m).bayes_gain(prior=a)),
    (1.25, 0.625),
    (0.75, 0.75),
)
_row(
    "tradeoff.AbstractTradeOff.log_slope tradeoff.AbstractTradeOff.fixed_point",
    lambda m, a: (G(m).log_slope(alpha=a), G(m).fixed_point()),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "tradeoff.AbstractLocation.moved",
    lambda m, k: G(m).moved(k).delta(epsilon=0.5),
    (1.25, 2.0),
    (0.75, 3.0),
)
_row(
    "tradeoff.AbstractTradeOff.remove tradeoff.AbstractTradeOff.add "
    "tradeoff.AbstractTradeOff.as_mechanism",
    lambda m: (
        L(m).remove.delta(epsilon=0.5),
        L(m).add.delta(epsilon=0.5),
        L(m).as_mechanism().noise_multiplier,
    ),
    *NOISE,
)
_row(
    "tradeoff.Poisson",
    lambda a, b: tradeoff.Poisson(a, b).delta(epsilon=0.25),
    (1.0, 2.0),
    (1.5, 2.5),
)
_row(
    "tradeoff.QuantizedGaussian tradeoff.QuantizedGaussian.with_unknown_offset",
    lambda m, w, o: (
        tradeoff.QuantizedGaussian(m, w, o).delta(epsilon=0.25),
        tradeoff.QuantizedGaussian.with_unknown_offset(m).delta(epsilon=0.25),
    ),
    (1.25, 0.5, 0.125),
    (0.75, 0.25, 0.0625),
)
_row(
    "tradeoff.Mixture",
    lambda m, p: tradeoff.Mixture([L(m), L(2 * m)], probs=_vector(p, 1 - p)).delta(
        epsilon=0.25
    ),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row(
    "tradeoff.Mixture",
    lambda m: tradeoff.Mixture([L(m), L(2 * m)], probs=[0.5, 0.5]).beta(alpha=0.0625),
    *NOISE,
    label="steep part",
)
_row(
    "tradeoff.Subsampled",
    lambda m, p: tradeoff.Subsampled(L(m), p).delta(epsilon=0.25),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row(
    "tradeoff.AbstractTradeOff.inverse tradeoff.Inverse",
    lambda m, p: tradeoff.Subsampled(G(m), p).inverse().beta(alpha=0.25),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row(
    "tradeoff.AbstractTradeOff.symmetrized tradeoff.Symmetrized",
    lambda m, p: tradeoff.Subsampled(L(m), p).symmetrized().delta(epsilon=0.25),
    (1.25, 0.375),
    (0.75, 0.25),
)
_row(
    "tradeoff.Group",
    lambda m: tradeoff.Group(tradeoff.Logistic(m), 2).beta(alpha=0.0625),
    *NOISE,
)
_row("tradeoff.PiecewiseLinear", lambda m: _line(m).delta(epsilon=0.25), 0.25, 0.375)
_row(
    "tradeoff.AbstractTradeOff.symmetric_maximum",
    lambda m: _line(m).symmetric_maximum().delta(epsilon=0.25),
    0.25,
    0.375,
)
_row(
    "tradeoff.AbstractTradeOff.to_tradeoff",
    lambda m: L(m).to_tradeoff().delta(epsilon=0.375),
    *NOISE,
    smooth=lambda m: L(m).delta(epsilon=0.375),
)
_row(
    "tradeoff.AbstractTradeOff.to_profile _View.of",
    lambda m: L(m).to_profile().delta(epsilon=0.375),
    *NOISE,
    smooth=lambda m: L(m).delta(epsilon=0.375),
)
_row(
    "tradeoff.AbstractTradeOff.to_bayes_error tradeoff.BayesError",
    lambda m: L(m).to_bayes_error().bayes_error(prior=0.375),
    *NOISE,
    smooth=lambda m: L(m).bayes_error(prior=0.375),
)
_row(
    "tradeoff.quantized",
    lambda m, a: tradeoff.quantized(L(m), alpha=_vector(a, 2 * a)).beta(alpha=0.1875),
    (1.25, 0.125),
    (0.75, 0.0625),
)

POINTS = (0.125, 0.5), (0.1875, 0.375)


def _of_points(a: Any, b: Any) -> tradeoff.TradeOff:
    return tradeoff.TradeOff.from_error_rates(_vector(a, 2 * a), _vector(b, b / 4))


_row(
    "tradeoff.TradeOff tradeoff.TradeOff.from_error_rates",
    lambda a, b: _of_points(a, b).beta(alpha=0.0625),
    *POINTS,
)


def _of_atoms(f: tradeoff.TradeOff) -> tuple:
    # Traced points give more atoms than known ones, of which some have no mass.
    found = f.loss_atoms()
    divergence = jnp.sum(found.loss * found.without_record)
    return divergence, found.minus_infinity, found.plus_infinity, f.auc()


_row(
    "_View.auc _View.loss_atoms tradeoff.LossAtoms",
    lambda a, b: _of_atoms(_of_points(a, b)),
    *POINTS,
)
_row(
    "tradeoff.TradeOff.from_roc",
    lambda a, b: tradeoff.TradeOff.from_roc(
        _vector(a, 2 * a), _vector(b, 1 - b / 4)
    ).delta(epsilon=0.25),
    *POINTS,
)
_row(
    "tradeoff.TradeOff.from_probabilities",
    lambda a: tradeoff.TradeOff.from_probabilities(
        _vector(a, 0.5 - a, 0.5), _vector(0.5, a, 0.5 - a)
    ).delta(epsilon=0.25),
    0.125,
    0.1875,
)
_row(
    "tradeoff.TradeOff.from_scores",
    lambda a: tradeoff.TradeOff.from_scores(
        _vector(a, 2 * a, 3 * a), _vector(0, 0.5 * a, 1.5)
    ).delta(epsilon=0.25),
    1.0,
    2.0,
)
_row(
    "tradeoff.PrivacyProfile tradeoff.PrivacyProfile.from_points",
    lambda e, d: tradeoff.PrivacyProfile.from_points(
        _vector(e, 2 * e), _vector(d, d / 8), symmetric=False
    ).delta(epsilon=0.75),
    (0.5, 0.125),
    (0.625, 0.25),
)
ERRORS = (0.25, 0.125), (0.28125, 0.1875)


def _of_errors(p: Any, r: Any) -> tradeoff.BayesError:
    return tradeoff.BayesError.from_points(_vector(p, 2 * p), _vector(r, 1.5 * r))


_row(
    "tradeoff.BayesError.from_points",
    lambda p, r: _of_errors(p, r).bayes_error(prior=0.4375),
    *ERRORS,
)
_row(
    "tradeoff.BayesError.prior_grid _View.epsilon_grid",
    lambda p, r: (_of_errors(p, r).prior_grid, _of_errors(p, r).epsilon_grid),
    *ERRORS,
)

# Divergences.
_row("divergences.auc", lambda s: divergences.auc(fdp.Gaussian(s)), *NOISE)
_row(
    "divergences.chernoff_information divergences.chi_squared",
    lambda s: (
        divergences.chernoff_information(fdp.Laplace(s)),
        divergences.chi_squared(fdp.Laplace(s)),
    ),
    *NOISE,
)
_row("divergences.clt_gdp", lambda s: divergences.clt_gdp(fdp.Laplace(s)), *NOISE)
_row(
    "divergences.edgeworth_beta",
    lambda e, a: divergences.edgeworth_beta(fdp.RandomizedResponse(e), alpha=a),
    (0.5, 0.125),
    (0.25, 0.25),
)
_row(
    "divergences.gdp divergences.GDPSummary",
    lambda s: divergences.gdp(fdp.Gaussian(s)).mu,
    *NOISE,
)
_row(
    "divergences.f_divergence",
    lambda s: divergences.f_divergence(fdp.Gaussian(s), _squared_difference),
    *NOISE,
    smooth=lambda s: jnp.expm1(jnp.square(1 / s)),
)
_row(
    "divergences.gdp_regret",
    lambda e, m: divergences.gdp_regret(fdp.PureDP(e), mu=m),
    (0.5, 0.25),
    (0.25, 0.125),
    # The value is the best of a grid's, which may miss the kink by a little.
    smooth=lambda e, m: (
        fdp.delta_divergence(fdp.PureDP(e), tradeoff.Gaussian(m)).value.estimate
    ),
)
_row(
    "divergences.kl divergences.squared_hellinger",
    lambda s: (kl(fdp.Laplace(s)), hellinger(fdp.Laplace(s))),
    *NOISE,
)
_row(
    "divergences.max_divergence",
    lambda s: divergences.max_divergence(fdp.Laplace(s)),
    *NOISE,
)
_row(
    "divergences.renyi",
    lambda s, t: divergences.renyi(fdp.Laplace(s), order=t),
    (0.5, 2.0),
    (0.25, 3.0),
)
_row(
    "divergences.renyi_dp",
    lambda s, t: (
        divergences.renyi_dp(fdp.Laplace(s), orders=_vector(t, 2 * t)).divergences
    ),
    (0.5, 2.0),
    (0.25, 3.0),
)
_row(
    "divergences.total_variation",
    lambda s: divergences.total_variation(fdp.Laplace(s)),
    *NOISE,
)
_row("divergences.zcdp", lambda s: divergences.zcdp(fdp.Laplace(s)), *NOISE)

# Comparisons.
_row(
    "delta_divergence comparison.DeltaDivergence",
    lambda a, b: fdp.delta_divergence(L(a), G(b)).value.estimate,
    *PAIRS,
)
_row(
    "comparison.symmetrized_divergence",
    lambda a, b: comparison.symmetrized_divergence(L(a), G(b)),
    *PAIRS,
)
_row(
    "blackwell_dominates comparison.Dominance",
    lambda a, b: fdp.blackwell_dominates(L(a), G(b)).regret.estimate,
    *PAIRS,
)
_row(
    "comparison.best_on_average comparison.AverageErrors",
    lambda a, b: (
        comparison.best_on_average(
            [L(a), G(b)], hyper_prior=comparison.uquadratic()
        ).bayes_error
    ),
    *PAIRS,
)
_row(
    "comparison.certified_bayes_errors comparison.BayesErrors",
    lambda a, b: (
        comparison.certified_bayes_errors(L(a), G(b), priors=[0.25, 0.5]).b.estimate
    ),
    *PAIRS,
)
_row(
    "comparison.distance_from_perfect_privacy comparison.minimax_error",
    lambda m: (
        comparison.distance_from_perfect_privacy(L(m)),
        comparison.minimax_error(L(m)),
    ),
    *NOISE,
)
_row(
    "comparison.emergent_bound comparison.EmergentBound comparison.EmergentBound.bound",
    lambda a, b, n: (lambda x: (x.bound, x.ratio_needed))(
        comparison.emergent_bound(fdp.PureDP(a), fdp.Laplace(b), num_steps_a=n)
    ),
    (1.25, 1.0, 100.0),
    (1.5, 1.5, 90.0),
)
_row(
    "comparison.berry_esseen_bound",
    lambda a, b, n: comparison.berry_esseen_bound(
        fdp.PureDP(a), fdp.Laplace(b), num_steps_a=n
    ),
    (1.25, 1.0, 100.0),
    (1.5, 1.5, 90.0),
)
_row(
    "comparison.array_moments comparison.array_limit comparison.ArrayLimit "
    "comparison.ArrayMoments comparison.ArrayMoments.mu",
    lambda a, b: (lambda x: (x.mu, x.distance, x.moments.mu, x.moments.berry_esseen))(
        comparison.array_limit(
            fdp.compose(fdp.PureDP(a).repeat(50), fdp.Laplace(b).repeat(50))
        )
    ),
    (0.125, 20.0),
    (0.25, 30.0),
)
_row(
    "comparison.loss_moments comparison.LossMoments comparison.LossMoments.eta "
    "comparison.LossMoments.berry_esseen",
    lambda s: (lambda x: (x.v1, x.v2, x.v3, x.v4, x.eta, x.berry_esseen))(
        comparison.loss_moments(fdp.Laplace(s))
    ),
    *NOISE,
)
_row(
    "comparison.reconstruction_bound",
    lambda m, k: comparison.reconstruction_bound(L(m), kappa=k),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "comparison.weighted_divergence comparison.WeightedDivergence",
    lambda a, b: (
        comparison.weighted_divergence(
            L(a), G(b), hyper_prior=comparison.jeffreys()
        ).value.estimate
    ),
    *PAIRS,
)
_row(
    "comparison.Join",
    lambda a, b: comparison.Join(L(a), G(b)).delta(epsilon=0.25),
    *PAIRS,
)
_row(
    "comparison.Meet",
    lambda a, b: comparison.Meet(L(a), G(b)).delta(epsilon=0.25),
    *PAIRS,
)

# Private selection.


def _tuned(noise: Any, law: Any) -> Any:
    return fdp.SelectBest(fdp.Gaussian(noise), repetitions=law)


_row(
    "SelectBest selection.NegativeBinomial selection.NegativeBinomial.mean",
    lambda s, shape, g: _law_and_epsilon(
        s, fdp.selection.NegativeBinomial(shape=shape, success_prob=g)
    ),
    (4.0, 0.5, 0.125),
    (2.0, 1.5, 0.25),
)
_row(
    "selection.Logarithmic",
    lambda s, g: _tuned(s, fdp.selection.Logarithmic(success_prob=g)).delta(
        epsilon=1.0
    ),
    (4.0, 0.125),
    (2.0, 0.25),
)
_row(
    "selection.Geometric",
    lambda s, g: (
        _tuned(s, fdp.selection.Geometric(success_prob=g)).delta(epsilon=1.0),
        _tuned(s, fdp.selection.Logarithmic(success_prob=g)).tpr(fpr=0.125),
    ),
    (4.0, 0.125),
    (2.0, 0.25),
)
_row(
    "selection.Poisson selection.Poisson.mean",
    lambda s, m: _law_and_epsilon(s, fdp.selection.Poisson(mean=m)),
    (4.0, 8.0),
    (2.0, 2.0),
)
_row(
    "SelectBest.remove SelectBest.add",
    lambda s, p: [
        x.epsilon(delta=DELTA)
        for run in [fdp.PoissonSubsampled(fdp.Laplace(s), sampling_prob=p)]
        for tuned in [fdp.SelectBest(run, repetitions=_ABOUT_TEN)]
        for x in (tuned.remove, tuned.add)
    ],
    (1.0, 0.125),
    (2.0, 0.25),
)


def _law_and_epsilon(noise: Any, law: Any) -> Any:
    return _tuned(noise, law).epsilon(delta=DELTA), law.mean()


_ABOUT_TEN = fdp.selection.Geometric(success_prob=0.1)

# Calibration and design.


def _noise_for(target: Any, mechanism: Any = None) -> Any:
    mechanism = fdp.Laplace() if mechanism is None else mechanism
    return fdp.calibrate(mechanism, target, solve_for="noise_multiplier").value


_row(
    "calibrate Calibration targets.ApproxDP",
    lambda e, d: _noise_for(targets.ApproxDP(epsilon=e, delta=d), fdp.Gaussian()),
    (1.0, DELTA),
    (0.5, DELTA / 2),
)
_row("targets.Advantage", lambda x: _noise_for(targets.Advantage(x)), 0.25, 0.375)
_row(
    "targets.BayesError",
    lambda x: _noise_for(targets.BayesError(error=x, prior=0.5)),
    0.25,
    0.375,
)
_row(
    "targets.ErrorRates",
    lambda a, b: _noise_for(targets.ErrorRates(alpha=a, beta=b)),
    (0.25, 0.375),
    (0.375, 0.25),
)
_row(
    "targets.Reconstruction",
    lambda k, x: _noise_for(targets.Reconstruction(kappa=k, value=x)),
    (0.125, 0.625),
    (0.25, 0.625),
)
_row(
    "targets.DeltaDivergence",
    lambda m, x: _noise_for(targets.DeltaDivergence(L(m), value=x)),
    (1.0, 0.0625),
    (0.75, 0.125),
)
_row("targets.MuGDP", lambda m: _noise_for(targets.MuGDP(m), fdp.Gaussian()), *NOISE)
_row(
    "targets.TradeOff",
    lambda m: _noise_for(targets.TradeOff(G(m)), fdp.Gaussian()),
    *NOISE,
    smooth=lambda m: jnp.asarray(1 / m),
)
_row(
    "targets.AllOf",
    lambda a, e: _noise_for(
        targets.AllOf(targets.Advantage(a), targets.ApproxDP(epsilon=e, delta=DELTA))
    ),
    (0.25, 1.0),
    (0.125, 0.75),
)
_row(
    "scale_to_budget",
    lambda e, d: design.scale_to_budget(
        fdp.Gaussian(1.0), targets.ApproxDP(epsilon=e, delta=d)
    ).advantage(),
    (1.0, DELTA),
    (0.5, DELTA / 2),
)
_row(
    "design.spend_rest",
    lambda s, e: (
        design.spend_rest(
            fdp.Gaussian(s), fdp.Gaussian(), targets.ApproxDP(epsilon=e, delta=DELTA)
        ).value
    ),
    (2.0, 2.0),
    (3.0, 3.0),
)

# Canonical noise.


def _tulap(epsilon: Any) -> noise.CanonicalNoise:
    return fdp.canonical_noise(tradeoff.ApproxDP(epsilon=epsilon, delta=0.0625))


_row(
    "canonical_noise noise.CanonicalNoise.cdf noise.CanonicalNoise.sf "
    "noise.CanonicalNoise.log_sf",
    lambda e, x: (_tulap(e).cdf(-x), _tulap(e).sf(x), _tulap(e).log_sf(x)),
    (1.25, 1.25),
    (0.75, 1.75),
)
_row(
    "noise.CanonicalNoise.pdf noise.CanonicalNoise.log_pdf",
    lambda m, x: (lambda law: (law.pdf(x), law.log_pdf(x)))(fdp.canonical_noise(G(m))),
    (1.25, 1.25),
    (0.75, 1.75),
)
_row(
    "noise.CanonicalNoise.quantile noise.CanonicalNoise.isf",
    lambda e, p: (_tulap(e).quantile(p), _tulap(e).isf(p)),
    (1.25, 0.125),
    (0.75, 0.25),
)
_row(
    "noise.CanonicalNoise.variance noise.CanonicalNoise.characteristic_function",
    lambda e, t: (_tulap(e).variance(), _tulap(e).characteristic_function(t)),
    (1.25, 0.5),
    (0.75, 0.25),
)
_row(
    "noise.CanonicalNoise.support",
    lambda d: fdp.canonical_noise(tradeoff.ApproxDP(epsilon=0.0, delta=d)).support,
    0.25,
    0.125,
)
_row(
    "noise.CanonicalNoise.made_for",
    lambda e, s: fdp.canonical_noise(_pure(e), sensitivity=s).made_for(s).cdf(-1.25),
    (1.25, 2.0),
    (0.75, 3.0),
)
_row(
    "canonical_noise",
    lambda m, x: fdp.canonical_noise(tradeoff.Logistic(m)).cdf(x),
    (1.25, -1.25),
    (0.75, -1.75),
    label="curve",
)
_row(
    "canonical_noise",
    lambda m, x: fdp.canonical_noise(tradeoff.Logistic(m), log_concave=True).cdf(x),
    (1.25, -1.25),
    (0.75, -1.75),
    label="log-concave",
)
_row(
    "noise.rounded_noise noise.RoundedNoise.pmf noise.RoundedNoise.cdf",
    lambda e: (lambda law: (law.pmf(2.0), law.cdf(-2.0)))(
        noise.rounded_noise(_pure(e))
    ),
    *NOISE,
)
_row(
    "noise.RoundedNoise.tradeoff_function",
    lambda e: noise.rounded_noise(_pure(e)).tradeoff_function(4).delta(epsilon=0.25),
    *NOISE,
)
_row(
    "noise.vector_noise noise.VectorNoise.tradeoff",
    lambda m: (lambda x: (x.noise.cdf(-1.0), x.tradeoff.delta(epsilon=0.25)))(
        noise.vector_noise(L(m), 3, norm="l1")
    ),
    *NOISE,
)
_row(
    "noise.maximum_norm_guarantee",
    lambda m: noise.maximum_norm_guarantee(G(m), 2).delta(epsilon=0.25),
    *NOISE,
    smooth=lambda m: G(2**0.5 * m).delta(epsilon=0.25),
)

# Limits of inference.


def _measures(a: Any, e: Any) -> limits.MeasureInterval:
    return limits.MeasureInterval.around(jnp.log(_vector(a, 1 - a)), epsilon=e)


MEASURE = (0.25, 1.25), (0.125, 0.75)
_row(
    "limits.adversary_error",
    lambda p, m, k: limits.adversary_error(p, L(m), distance=k),
    (0.375, 1.25, 2.0),
    (0.25, 0.75, 3.0),
)
_row(
    "limits.bit_distances",
    lambda x, y: limits.bit_distances(4, x, y),
    (0.375, 0.125),
    (0.25, 0.5),
)
_row(
    "limits.coupled_power_bound",
    lambda a, e, p: limits.coupled_power_bound(a, _pure(e), _vector(p, 1 - p)),
    (0.5, 1.25, 0.25),
    (0.625, 0.75, 0.375),
)
_row(
    "limits.d_mult limits.density_ratio_metric",
    lambda a, b: tuple(
        f(jnp.log(_vector(a, 1 - a)), jnp.log(_vector(b, 1 - b)))
        for f in (limits.d_mult, limits.density_ratio_metric)
    ),
    (0.25, 0.375),
    (0.125, 0.25),
)
_row(
    "limits.event_bounds",
    lambda p, m: limits.event_bounds(p, L(m), distance=2, connected=True),
    *MEASURE,
)
_row(
    "limits.group_guarantee",
    lambda m, k: limits.group_guarantee(L(m), k).delta(epsilon=0.25),
    (1.25, 1.5),
    (0.75, 2.5),
)
_row(
    "limits.laplace_sum_bounds",
    lambda t, e: limits.laplace_sum_bounds(t, epsilon=e, num_records=10),
    (3.25, 1.25),
    (12.5, 0.75),
)
_row(
    "limits.local_bounds",
    lambda e: limits.local_bounds(epsilon=e, num_records=10),
    *NOISE,
)
_row(
    "limits.marginal_bounds",
    lambda x, e, k, w: limits.marginal_bounds(
        x, epsilon=e, distance=k, connected=True, mass=w
    ),
    (-1.0, 1.25, 2.0, 0.5),
    (-2.0, 0.75, 3.0, 0.25),
)
_row(
    "limits.odds_tail_bound",
    lambda e, m: limits.odds_tail_bound(e, L(m)),
    (0.75, 1.25),
    (0.5, 0.75),
)
_row(
    "limits.posterior_bounds",
    lambda p, e, k: limits.posterior_bounds(p, epsilon=e, distance=k, connected=True),
    (0.25, 1.25, 2.0),
    (0.125, 0.75, 1.0),
)
_row(
    "limits.posterior_density_bounds",
    lambda x, e, k: limits.posterior_density_bounds(
        x, epsilon=e, distance=k, connected=True
    ),
    (-1.0, 1.25, 2.0),
    (-2.0, 0.75, 1.0),
)
_row(
    "limits.power_bound",
    lambda a, m, k: limits.power_bound(a, L(m), distance=k, connected=True),
    (0.125, 1.25, 0.5),
    (0.25, 0.75, 0.25),
)
_row(
    "limits.pure_power_bound",
    lambda a, e, k: limits.pure_power_bound(a, epsilon=e, distance=k),
    (0.125, 1.25, 0.5),
    (0.25, 0.75, 0.25),
)
_row(
    "limits.MeasureInterval limits.MeasureInterval.around "
    "limits.MeasureInterval.event_bounds limits.MeasureInterval.mean_bounds",
    lambda a, e: (
        _measures(a, e).event_bounds(np.asarray([True, False])),
        _measures(a, e).mean_bounds([1.0, 2.0]),
    ),
    *MEASURE,
)
_row(
    "limits.MeasureInterval.intersected limits.MeasureInterval.scaled",
    lambda a, e: (
        _measures(a, e)
        .scaled(2.0)
        .intersected(_measures(a, e).scaled(3.0))
        .event_bounds(np.asarray([True, False]))
    ),
    *MEASURE,
)

# Infinitely divisible losses.
_row(
    "LevyTriplet.drift LevyTriplet.kl LevyTriplet.variance LevyTriplet.renyi",
    lambda v, j, r: (lambda x: (x.drift(), x.kl(), x.variance(), x.renyi(order=2.0)))(
        _triplet(v, j, r)
    ),
    *TRIPLET,
)
_row(
    "LevyTriplet.exchanged",
    lambda v, j, r: _triplet(v, j, r).exchanged().kl(),
    *TRIPLET,
)
_row(
    "LevyTriplet.is_symmetric",
    lambda v, j, r: 1.0 * _triplet(v, j, r).is_symmetric(),
    *TRIPLET,
)
_row(
    "levy.central_limit levy.CentralLimit levy.CentralLimit.triplet",
    lambda s: (
        lambda x: (
            x.kl,
            x.variance,
            x.third,
            x.mu,
            x.excess,
            x.skewness,
            x.triplet().kl(),
        )
    )(levy.central_limit(fdp.Laplace(s))),
    *NOISE,
)
_row("levy.jump_limit", lambda s: levy.jump_limit(fdp.Laplace(s)).kl(), *NOISE)

# Inference.
TEST = (1.25, 0.375, 0.125), (0.75, 0.25, 0.0625)
_row(
    "inference.binomial_threshold",
    lambda e, p, a: inference.binomial_threshold(_pure(e), 8, p, alpha=a),
    *TEST,
)
_row(
    "inference.binomial_p_value",
    lambda z, e, p: inference.binomial_p_value(z, _pure(e), 8, p),
    (5.25, 1.25, 0.375),
    (6.75, 0.75, 0.25),
)
_row(
    "inference.binomial_interval_from",
    lambda z, e: inference.binomial_interval_from(
        z, _pure(e), 8, alternative="greater"
    ),
    (5.25, 1.25),
    (4.75, 0.75),
)
_row(
    "inference.binomial_power",
    lambda e, p, q, a: inference.binomial_power(_pure(e), 8, p, q, alpha=a),
    (1.25, 0.375, 0.5, 0.125),
    (0.75, 0.25, 0.5, 0.0625),
)
_row(
    "inference.most_powerful_test inference.PrivateTest inference.PrivateTest.at_first",
    lambda e, p, a: (lambda x: (x.threshold, x.rejection, x.at_first))(
        inference.most_powerful_test(_pure(e), _vector(p, 0.5 - p, 0.5), alpha=a)
    ),
    *TEST,
)
_row(
    "inference.free_p_value",
    lambda s, e, p: inference.free_p_value(
        s, _pure(e), _vector(p, 2 * p), _vector(0.5, 0.5)
    ),
    (0.75, 1.25, 0.125),
    (0.5, 0.75, 0.25),
)
_row(
    "inference.privacy_excess",
    lambda e, p: inference.privacy_excess(_vector(p, 3 * p), _pure(e)),
    (1.25, 0.125),
    (0.75, 0.0625),
)
_row(
    "inference.semi_private_power",
    lambda e, p, q, a: inference.semi_private_power(_pure(e), 4, 4, p, q, alpha=a),
    (1.25, 0.375, 0.5, 0.125),
    (0.75, 0.25, 0.5, 0.0625),
)
_row(
    "inference.semi_private_threshold",
    lambda e, a: inference.semi_private_threshold(_pure(e), 4, 4, 3, alpha=a),
    (1.25, 0.125),
    (0.75, 0.0625),
)
_row(
    "inference.two_proportion_p_value",
    lambda x, y, m: inference.two_proportion_p_value(x, y, G(m), 4, 4),
    (1.25, 3.125, 1.25),
    (2.75, 3.5, 0.75),
)
_row(
    "inference.two_proportion_interval_from",
    lambda x, y, e: inference.two_proportion_interval_from(x, y, _pure(e), 4, 4),
    (1.25, 3.125, 1.25),
    (2.75, 3.5, 0.75),
)
_row(
    "inference.unbiased_power",
    lambda q: inference.unbiased_power(_pure(1.0), 8, 0.375, q, alpha=0.125),
    0.5,
    0.25,
)
_row(
    "inference.unbiased_test inference.UnbiasedTest",
    lambda e, p, a: inference.unbiased_test(_pure(e), 8, p, alpha=a),
    *TEST,
)

# Experiments.


def _bit(p: Any) -> experiments.MarkovKernel:
    return experiments.MarkovKernel(jnp.stack([_vector(p, 1 - p), _vector(1 - p, p)]))


KERNELS = (0.25, 0.125), (0.375, 0.25)
_row(
    "experiments.MarkovKernel experiments.MarkovKernel.both "
    "experiments.MarkovKernel.product experiments.MarkovKernel.then "
    "experiments.MarkovKernel.mixture experiments.MarkovKernel.of_measure "
    "experiments.MarkovKernel.of_function",
    lambda p, q: (
        _bit(p).of_measure(_vector(q, 0.5)),
        _bit(p).of_function(_vector(q, -0.5)),
        _bit(p).both(_bit(q)).matrix,
        _bit(p).product(_bit(q)).matrix,
        _bit(p).then(_bit(q)).matrix,
        experiments.MarkovKernel.mixture(
            [_bit(p), _bit(q)], probs=_vector(p, 1 - p)
        ).matrix,
    ),
    *KERNELS,
)
_row(
    "experiments.MarkovKernel.tradeoff",
    lambda p: _bit(p).tradeoff([(0, 1)]).delta(epsilon=0.25),
    0.25,
    0.375,
)


# ------------------------------------------------------- what is not as the rest is

REFUSED = {
    "LevyTriplet.is_symmetric": "a yes or no: jumps and rates must be concrete",
    "levy.jump_limit": "bins of positive rate are counted: known parameters",
    "noise.RoundedNoise.tradeoff_function": "knots are counted: known noise",
    "experiments.MarkovKernel.tradeoff": "pairs of rows are sorted: a known matrix",
}
"""Rows that are for known numbers alone, as a `TypeError` says in so many words."""

WITHOUT_SLOPE = {
    "blackwell_dominates": "as documented: the divergences' derivative is NaN",
    "comparison.Meet": "as documented: the profile's derivative is NaN",
    "inference.two_proportion_interval_from": "as documented: found by search",
    "inference.unbiased_test": "as documented: found by search",
    "tradeoff.TradeOff.from_scores": "as documented: only their order counts",
}
"""Rows that are not differentiated."""


INSIDE = {
    "experiments.MarkovKernel": "kernels are objects, which keep float64 inside",
    "tradeoff.BayesError.prior_grid": "so are curves: their grid is not rounded",
    "AboveThreshold": "its numbers are those of a guarantee, which are not rounded",
    "AdditiveNoise.for_sensitivity": "the same of a mechanism's noise",
    "tradeoff.AbstractTradeOff.remove": "the same of a mechanism's masses",
}
"""Rows of which numbers stay float64 in a float32 program."""

RTOL: dict[str, float] = {}
"""Where programs agree to less than 1e-12, relatively."""

SLOPE_RTOL = {
    "AbstractMechanism.curve": 2e-5,  # interpolated between 65 nodes
    "Curve.both": 2e-5,
    "noise.maximum_norm_guarantee": 1e-3,  # interpolated, of a table
    "selection.Poisson": 1e-3,  # by chords, of which differences cross some
}
"""Where derivatives agree to less than 1e-6, relatively."""

COMPILED = {"AbstractGuarantee.epsilon", "limits.power_bound", "tradeoff.Group"}
"""Rows that the compiler sees in every run; `make test-compiled` shows it all."""

CELLS = ("eager", "jit", "vmap", "grad", "float32", "one trace")


# --------------------------------------------------------------------- the programs


def _numbers(found: Any) -> Any:
    """All floating-point numbers of a PyTree, in one vector."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(found)]
    return jnp.concatenate([jnp.ravel(x) for x in leaves])


@functools.cache
def _eager(name: str) -> list[np.ndarray]:
    row = TABLE[name]
    return [np.asarray(_numbers(row.f(*place))) for place in row.places]


def _differences(name: str) -> list[np.ndarray]:
    """Derivatives at the first place in each number, by Richardson's rule."""
    row = TABLE[name]
    place, found = row.places[0], []

    def central(index: int, step: float) -> np.ndarray:
        ends = []
        for move in (step, -step):
            moved = list(place)
            moved[index] += move
            ends.append(np.asarray(_numbers(row.smooth(*moved))))
        return (ends[0] - ends[1]) / (2 * step)

    for index, value in enumerate(place):
        step = 2.0**-9 * abs(value)
        found.append((4 * central(index, step / 2) - central(index, step)) / 3)
    return found


def _compiled(name: str) -> Callable[..., Any]:
    return jax.jit if name in COMPILED else jitted


class Answers(NamedTuple):
    """What one program found, in two calls, the second with exchanged places."""

    plain: list[np.ndarray]
    mapped: list[np.ndarray]
    slopes: list[np.ndarray]
    traces: tuple[int, int]


def _weights(size: int) -> np.ndarray:
    """So that a derivative of the sum tells of all of them."""
    return 1 + 0.3 * np.cos(1.7 * np.arange(size))


@functools.cache
def _jitted(name: str) -> Answers:
    row, traces = TABLE[name], [0]

    def numbers(*place: Any) -> Any:
        traces[0] += 1
        return _numbers(row.f(*place))

    def total(*place: Any) -> tuple[Any, Any]:
        found = numbers(*place)
        return jnp.dot(_weights(found.size), found), found

    every = tuple(range(len(row.places[0])))
    slope = jax.value_and_grad(total, every, has_aux=True)

    @_compiled(name)
    def program(*places: Any) -> tuple:
        (_, mapped), slopes = jax.vmap(slope)(*places)
        return numbers(*(x[0] for x in places)), mapped, slopes

    places = [np.asarray(x) for x in zip(*row.places, strict=True)]
    calls, counts = [], []
    for order in (slice(None), slice(None, None, -1)):
        calls.append(jax.tree.map(np.asarray, program(*(x[order] for x in places))))
        counts.append(traces[0])
    (plain, mapped, slopes), (other, _, _) = calls
    return Answers([plain, other], list(mapped), slopes, (counts[0], counts[1]))


def _check_eager(name: str) -> None:
    for found in _eager(name):
        assert found.dtype == np.float64
        assert np.all(np.isfinite(found))


def _check_jit(name: str) -> None:
    for found, eager in zip(_jitted(name).plain, _eager(name), strict=True):
        np.testing.assert_allclose(found, eager, rtol=RTOL.get(name, 1e-12))


def _check_vmap(name: str) -> None:
    for found, eager in zip(_jitted(name).mapped, _eager(name), strict=True):
        np.testing.assert_allclose(found, eager, rtol=RTOL.get(name, 1e-12))


def _check_grad(name: str) -> None:
    slopes = _jitted(name).slopes
    if name in WITHOUT_SLOPE:
        assert all(np.all((x == 0) | np.isnan(x)) for x in slopes)
        return
    assert all(np.all(np.isfinite(x)) for x in slopes)
    value, place = _eager(name)[0], TABLE[name].places[0]
    every = zip(slopes, _differences(name), place, strict=True)
    for slope, each, number in every:
        weights = _weights(each.size)
        size = weights @ np.abs(each)
        # What differences of values are off by rounding.
        rounding = 1e-10 * np.sum(np.abs(value)) / abs(number)
        allowed = SLOPE_RTOL.get(name, 1e-6) * size + rounding
        assert slope[0] == pytest.approx(weights @ each, rel=0, abs=allowed)


def _check_float32(name: str) -> None:
    row = TABLE[name]
    with jax.enable_x64(False):
        found = _compiled(name)(row.f)(*row.places[0])
    kinds = {x.dtype for x in jax.tree.leaves(found)}
    assert (
        np.dtype(np.float64) in kinds
        if name in INSIDE
        else kinds == {np.dtype(np.float32)}
    )
    found = np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])
    np.testing.assert_allclose(found, _eager(name)[0], rtol=1e-6)


def _check_one_trace(name: str) -> None:
    first, second = _jitted(name).traces
    assert first == second


CHECKS: dict[str, Callable[[str], None]] = dict(
    zip(
        CELLS,
        (
            _check_eager,
            _check_jit,
            _check_vmap,
            _check_grad,
            _check_float32,
            _check_one_trace,
        ),
        strict=True,
    )
)


def _complaints(name: str, cells: list[str]) -> dict[str, str]:
    found = {}
    for cell in cells:
        try:
            CHECKS[cell](name)
        except Exception as error:
            found[cell] = f"{type(error).__name__}: {error}"
    return found


# ------------------------------------------------------------------------- the tests

SLOW = {
    "AbstractGuarantee.beta-line of PureDP",
    "DPSGD",
    "MixtureOfGaussians",
    "ZCDP",
    "blackwell_dominates",
    "comparison.Meet",
    "comparison.distance_from_perfect_privacy",
    "comparison.weighted_divergence",
    "delta_divergence",
    "design.spend_rest",
    "divergences.edgeworth_beta",
    "divergences.f_divergence",
    "divergences.gdp",
    "divergences.gdp_regret",
    "inference.semi_private_power",
    "inference.two_proportion_interval_from",
    "inference.two_proportion_p_value",
    "inference.unbiased_test",
    "sampling.FixedSize",
    "sampling.RandomAllocation",
    "sampling.TruncatedPoisson",
    "sampling.UserLevel",
    "sampling.WithReplacement",
    "selection.Geometric",
    "selection.Poisson",
    "targets.DeltaDivergence",
    "targets.MuGDP",
    "targets.TradeOff",
    "tradeoff.AbstractTradeOff.inverse",
    "tradeoff.AbstractTradeOff.symmetric_maximum",
    "tradeoff.AbstractTradeOff.to_bayes_error",
    "tradeoff.AbstractTradeOff.to_profile",
    "tradeoff.AbstractTradeOff.to_tradeoff",
    "tradeoff.Gaussian",
    "tradeoff.Mixture-steep part",
    "tradeoff.Poisson",
}
"""Rows that take more than two seconds."""


def _green(name: str) -> list[str]:
    """The cells of a row about which there is nothing to say."""
    refused = CELLS[1:] if name in REFUSED else ()
    return [x for x in CELLS if x not in refused]


def _param(*values: Any) -> Any:
    slow = [pytest.mark.slow] if values[0] in SLOW else []
    return pytest.param(*values, marks=slow, id="-".join(values))


@pytest.mark.parametrize("name", [_param(name) for name in TABLE])
def test_row(name):
    assert not _complaints(name, _green(name))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_for_known_numbers_says_so(name):
    row = TABLE[name]
    with pytest.raises(TypeError, match=r"known|concrete"):
        jax.jit(row.f)(*row.places[0])


# ------------------------------------------------------------- what the table leaves

EXCEPTIONS = {
    "a former name": "tradeoff.TradeOff.from_points",
    "structure, not numbers: what engines and calibration ask": """
        AbstractMechanism.exact AbstractMechanism.has_fractional_powers
        AbstractMechanism.as_steps targets.AbstractTarget.spent_by
        AbstractMechanism.made_of AbstractMechanism.made_with
        AbstractMechanism.known_steps AbstractMechanism.loss
        AbstractMechanism.alone AbstractMechanism.attained
        sampling.AbstractSampling.num_groups_known sampling.AbstractSampling.one_round
        sampling.AbstractSampling.run
        sampling.AbstractSampling.participation
        sampling.AbstractSampling.require_release
        sampling.AbstractSampling.takes_fractions
        AbstractMechanism.releases_once AbstractMechanism.rescaled
        Declared.require_complete Declared.unchecked
        AbstractMechanism.samplings AbstractMechanism.simplified
        AbstractMechanism.shares AbstractMechanism.require_many
        AbstractRenyi.shares
        targets.AbstractTarget.of_profile
        sampling.AbstractSampling.shares
        AbstractMechanism.takes_fractions RandomRepeat.with_fractions
        targets.AbstractTarget.asked targets.AbstractTarget.is_met
        targets.AbstractTarget.question targets.AbstractTarget.share
        targets.AbstractTarget.is_missed
        targets.AbstractTarget.binds targets.AbstractTarget.margin
        targets.AbstractTarget.proxy targets.AbstractTarget.reachable
        targets.AbstractTarget.require_relation _AbstractReferenceTarget.relation
        targets.MuGDP.mu""",
    "in tests/accounting, in programs and out of them": """
        Accountant Accountant.step Accountant.spent Accountant.num_steps
        accounting.AbstractFilter.fits accounting.AbstractFilter.guarantee
        accounting.AbstractOdometer.epsilon accounting.AbstractOdometer.relation""",
    "parts of selections, of which tests/selection tells": """
        SelectBest.as_mechanism SelectBest.repeat tradeoff.dominating_pair
        selection.AbstractRepetitions.log_idle
        selection.AbstractRepetitions.log_mean""",
    "many configurations at once, outside of programs: tests/sweeps": """
        sweep sweeps.load sweeps.Columns Configurations.digest
        Configurations.kind Configurations.rows sweeps.Sweep sweeps.Sweep.axes
        sweeps.Sweep.complete sweeps.Sweep.grid sweeps.Sweep.names
        sweeps.Sweep.queries sweeps.Sweep.summary sweeps.Sweep.to_pandas
        sweeps.Sweep.to_xarray sweeps.Sweep.versions
        sweeps.Sweep.asked sweeps.Sweep.assign plot.pareto_front plot.sweep_map
        plot.sweep_page""",
    "of steps and files outside of programs, as documented": """
        Accountant.remaining Accountant.history Accountant.save Accountant.load
        interop.from_pld interop.accountant_class interop.to_dp_event
        interop.from_dp_event interop.opacus_accountant_class
        interop.register_with_opacus interop.accountant_config_class
        interop.calibrate_plan interop.from_execution_plan
        interop.calibrate_dp_mechanism interop.FlowerAccountant""",
    "names or flags, not numbers": """
        _View.is_exact _OfTwo.symmetric
        AbstractWrapped.relation sampling.UserLevel.scheme sampling.FixedSize.sizes
        checked native_float32 noise.CanonicalCheck.passed""",
    "no numbers go in": """
        experiments.hamming
        BlatantNonPrivacy PerfectPrivacy tradeoff.BlatantNonPrivacy tradeoff.Identity
        noise.CanonicalNoise.mean comparison.jeffreys comparison.uquadratic
        comparison.HyperPrior data.published_runs experiments.MarkovKernel.of_map
        reports.versions""",
    "a result, which nobody constructs": """
        Bounds comparison.Attack comparison.Comparison comparison.Crossings
        comparison.EmergentOrder data.PublishedRun design.Design design.NoiseDesign
        experiments.BlackwellOrder inference.Release levy.LevyApproximation
        noise.CanonicalCheck noise.CanonicalNoise noise.PostProcessing
        noise.RoundedNoise noise.VectorNoise reports.Interval reports.PrivacyReport
        reports.Receipt""",
    "part of a result, as it is": """
        design.Design.mechanism inference.Release.guarantee
        data.PublishedRun.sampling_prob comparison.Comparison.symmetrized""",
    "returns text, or data for files": """
        Calibration.guarantee comparison.Comparison.to_dict
        comparison.Comparison.to_json comparison.Dominance.answer comparison.describe
        reports.Interval.of reports.Interval.text reports.Interval.to_dict
        reports.PrivacyReport.guarantee reports.PrivacyReport.sampling
        reports.PrivacyReport.status reports.PrivacyReport.text
        reports.PrivacyReport.to_dict reports.Receipt.markdown
        reports.Receipt.to_dict reports.parameters reports.privacy_report
        reports.receipt
        reports.require_words
        reports.round_down reports.round_up reports.status_name
        targets.AbstractTarget.describe targets.AbstractTarget.quantity""",
    "plots": """
        plot.audit plot.bayes_error plot.compare plot.posterior_band plot.power_envelope
        plot.overlay plot.paper plot.profile plot.save plot.tradeoff""",
    "in tests/montecarlo, in programs and out of them; without derivatives": """
        monte_carlo""",
    "draws with a key": """
        PoissonMechanism.sample inference.binomial_interval inference.binomial_test
        inference.private_statistic inference.release_count
        inference.two_proportion_test noise.CanonicalNoise.sample
        noise.PostProcessing.sample noise.RoundedNoise.sample noise.VectorNoise.sample
        """,
    "a yes or no about known numbers, or an error": """
        experiments.MarkovKernel.is_private
        experiments.MarkovKernel.satisfies inference.is_private_test
        limits.MeasureInterval.contains noise.verify_canonical
        tradeoff.check_bayes_error tradeoff.check_profile tradeoff.check_tradeoff""",
    "an index": """inference.PrivateTest.first""",
    "NumPy arrays, as documented: known grids": """
        GridCurve.alpha_grid GridCurve.beta_grid GridCurve.prior_grid
        comparison.crossing_priors""",
    "for plain numbers outside of transformations: a report": """compare""",
    "searches in Python over whole numbers": """
        comparison.first_dominating_num_steps inference.binomial_sample_size""",
    "optimizes in Python, over compiled programs": """
        design.learn_noise design.minimize design.optimal_noise design.pareto""",
    "solves a linear program in NumPy": """
        experiments.blackwell_order noise.post_process""",
    "draws, steps and parts of a training: tests/training": """
        sampling.AbstractSampling.expected_size sampling.AbstractSampling.memory
        sampling.AbstractSampling.next_participants
        sampling.AbstractSampling.participants
        training.AbstractClipping.factors training.AbstractClipping.next_norm
        training.AbstractClipping.noise_factor
        training.AbstractClipping.sensitivity training.AbstractClipping.start
        training.AdaptiveClipping training.AutomaticClipping
        training.gradient_scores training.insert_canaries training.loss_scores
        training.Diagnostics training.FlatClipping training.GradientSum
        training.GradientSum.map training.GradientSum.over training.GradientSum.plus
        training.GradientSum.rounded training.GradientSum.total
        training.GradientSum.zero
        training.NoiseState training.PerLayerClipping training.Plan
        training.Plan.after training.Plan.correlation
        training.Plan.expected_size training.Plan.for_target
        training.Plan.noise_deviation training.Plan.num_steps
        training.Plan.participants training.Plan.progress
        training.Plan.sampling training.Progress training.Progress.at
        training.Trained training.Trainer training.Trainer.init
        training.Trainer.restore training.Trainer.restore_or_init
        training.Trainer.save training.Trainer.shard training.Trainer.step
        training.TrainingState training.TrainingState.noise
        training.TrainingState.step training.add_noise training.check training.fit
        training.gradient_sum training.per_example_gradients""",
    "statistics on the host, with SciPy: counts and scores are known numbers": """
        audit.Counts audit.Counts.from_scores audit.Counts.fpr audit.Counts.num_in
        audit.Counts.num_out audit.Counts.tpr audit.OneRun audit.OneRun.from_scores
        audit.Scores audit.Scores.counts audit.Split audit.AbstractEvidence.epsilon
        audit.AbstractEvidence.mu audit.AbstractEvidence.p_value PointEvidence.points
        PointEvidence.points_at
        audit.TradeOffPoints audit.TradeOffPoints.delta audit.TradeOffPoints.epsilon
        audit.TradeOffPoints.exclude audit.TradeOffPoints.mu audit.TradeOffPoints.upper
        audit.Verdict audit.Verdict.falsified audit.clopper_pearson
        audit.epsilon_lower_bound audit.falsifies audit.mu_lower_bound
        audit.tradeoff_points""",
    "quadrature in NumPy": """levy.from_density levy.small_jump_error""",
}


def _public() -> Iterator[str]:
    """Names of public functions, classes that users make, methods and properties.

    A method is named once, at the class that introduces it.
    """
    modules = [x for x in vars(fdp)["__all__"] if inspect.ismodule(getattr(fdp, x))]
    names: dict[Any, str] = {}
    for prefix, space in (("", fdp), *((f"{x}.", getattr(fdp, x)) for x in modules)):
        for name in dir(space):
            value = getattr(space, name)
            own = getattr(value, "__module__", "").startswith("fdp_jax")
            if callable(value) and own and not name.startswith("_"):
                names.setdefault(value, prefix + name)
    for value, name in names.items():
        if not inspect.isclass(value):
            yield name
        elif not issubclass(value, enum.Enum | Exception):
            if not value.__name__.startswith("Abstract"):
                yield name
            yield from _members(value, names)


def _members(value: type, names: dict[Any, str]) -> Iterator[str]:
    kinds = property, classmethod, staticmethod
    for name in dir(value):
        owners = [x for x in value.__mro__ if name in vars(x)]
        owners = [x for x in owners if x.__module__.startswith("fdp_jax")]
        if name.startswith("_") or not owners:
            continue
        member = vars(owners[0])[name]
        if callable(member) or isinstance(member, kinds):
            yield f"{names.get(owners[-1], owners[-1].__name__)}.{name}"


def test_every_public_function_is_in_the_table_or_an_exception():
    listed = [name for row in TABLE.values() for name in row.names]
    excepted = [name for names in EXCEPTIONS.values() for name in names.split()]
    assert len(excepted) == len(set(excepted))
    # What is made of other libraries' classes, or called by them: tests/interop.
    kinds = "FdpAccountant", "OpacusAccountant", "FlowerAccountant."
    made = tuple(f"interop.{kind}" for kind in kinds)
    public = {x for x in _public() if not x.startswith(made)}
    assert not public - set(listed) - set(excepted)
    assert not (set(listed) | set(excepted)) - public
    assert not set(listed) & set(excepted)


def test_what_is_said_of_rows_is_said_of_some():
    said = {
        *COMPILED,
        *REFUSED,
        *WITHOUT_SLOPE,
        *INSIDE,
        *RTOL,
        *SLOPE_RTOL,
        *SLOW,
    }
    assert said <= set(TABLE)


def test_methods_are_trees_of_their_module():
    run = fdp.Gaussian(jnp.asarray(2.0))
    ask = lambda method: method(epsilon=0.0)
    copied = pickle.loads(pickle.dumps(run.delta))
    found = [jax.jit(run.delta)(epsilon=0.0), jax.jit(ask)(run.delta), ask(copied)]
    # Balle and Wang (2018), Theorem 8: 2 Phi(1 / (2 sigma)) - 1.
    np.testing.assert_allclose(found, 2 * stats.norm.cdf(0.25) - 1, rtol=1e-11)
    slope = jax.grad(ask)(run.delta).__self__.noise_multiplier
    np.testing.assert_allclose(slope, -0.25 * stats.norm.pdf(0.25), rtol=1e-10)
    assert {run.delta, run.delta} == {run.delta} != {run.epsilon}
    assert run.delta != fdp.Gaussian(2.0).delta
    assert list(inspect.signature(run.delta).parameters) == ["epsilon", "bound"]
    assert run.delta.__doc__ == fdp.Gaussian.delta.__doc__
    assert repr(run.delta) == f"{run!r}.delta"
