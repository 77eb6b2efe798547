"""Values that are not allowed: an error that names the argument and what is right.

Names that are wrong, and things of another kind, are in test_messages.py.
"""

# What is wrong here a type checker would notice as well.
# pyright: reportCallIssue=false, reportArgumentType=false

import dataclasses
import decimal
import fractions
from math import inf, nan

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax import (
    accounting,
    audit,
    design,
    divergences,
    inference,
    limits,
    sampling,
    targets,
    tradeoff,
    training,
)
from fdp_jax.experiments import MarkovKernel, blackwell_order

M = fdp.Laplace(1.0)
F = tradeoff.Gaussian(1.0)
RESPONSE = fdp.RandomizedResponse(1.0)
BUDGET = targets.ApproxDP(epsilon=1.0, delta=1e-5)
NOISE = "noise_multiplier"
NORMAL = fdp.FromLogDensities(
    lambda x: -0.5 * x**2,
    lambda x: -0.5 * (x - 1) ** 2,
    support=(-60.0, 61.0),
    log_beyond=-750.0,
)
NEAR = limits.MeasureInterval([-2.0, -3.0], [-1.0, -1.0])
KERNEL = MarkovKernel([[0.5, 0.5], [0.2, 0.8]])
COUNTS = audit.Counts(
    true_positives=9, false_negatives=1, false_positives=2, true_negatives=8
)


def _step(noise=1.0, steps=1):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=0.1, num_steps=steps)


def _runs(probs=(0.5, 0.3, 0.2), steps=(1.0, 4.0, 16.0), tail=0.0):
    run = lambda n: fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=n)
    return fdp.RandomRepeat(run(1), num_steps=steps, probs=probs, tail_prob=tail)


def _calibrated(target, mechanism=None, solve_for=NOISE):
    open_run = fdp.DPSGD(sampling_prob=0.1, num_steps=10)
    return fdp.calibrate(mechanism or open_run, target, solve_for=solve_for)


def _sum(norm):
    return fdp.Sensitivity(1.0, norm=norm, relation="replace_one")


def _noise(epsilon=1.0, cost=np.abs, **options):
    target = targets.ApproxDP(epsilon=epsilon, delta=0.0)
    return design.optimal_noise(cost, target, **options)


def _searched(start=0.0, **options):
    family = lambda x: fdp.compose(fdp.Gaussian(1.0), fdp.Gaussian(jnp.exp(x)))
    return design.minimize(lambda x, s: s, family, start, BUDGET, **options)


def _scores(inside=(1.0, 2.0), outside=(0.0,), threshold=0.5):
    return audit.Scores(inside, outside, threshold=threshold)


REACH = "out of reach of calibrate: "
POSITIVE = "must be a finite positive number, got"
SUM_1 = "must be probabilities with sum 1 (to 1e-08), got a sum of"
OTHER = "other must be a MarkovKernel"

TABLE = [
    # Mechanisms.
    (lambda: M.repeat(0.5), "num_steps must be a whole number"),
    (lambda: RESPONSE.repeat(2.5), "got 2.5"),
    (lambda: M.bounds(prior=1.5), "prior must be in [0, 1], got 1.5"),
    (lambda: M.tpr(fpr=2.0), "fpr must be in [0, 1], got 2"),
    (lambda: M.log_delta(epsilon=nan), "epsilon must be a number, got nan"),
    (lambda: fdp.Laplace(fractions.Fraction(10**400)),
     "noise_multiplier must be a positive number, in the range of floats, got Frac"),
    (lambda: M.delta(epsilon=-(10**400)),
     "epsilon must be a number, in the range of floats, got -1"),
    (lambda: training.Plan(
        fdp.DPSGD(noise_multiplier=1.0, sampling_prob=1e-12, num_steps=100),
        num_records=60_000, clipping=1.0,
    ), "num_records must be so many that all steps together draw at least 0.01"),
    (lambda: M.group(0), "size must be in [1, 64], got 0"),
    (lambda: M.group(2.0), "size must be a Python integer, got 2.0"),
    (lambda: fdp.ApproxDP(epsilon=-1.0, delta=0.1), "epsilon must be"),
    (lambda: fdp.ApproxDP(epsilon=inf, delta=0.1), "got inf"),
    (lambda: fdp.ApproxDP(epsilon=1.0, delta=1.5), "delta must be in [0, 1], got 1.5"),
    (lambda: fdp.RandomizedResponse(-1.0), "a finite number, at least 0, got -1"),
    (lambda: fdp.ExponentialMechanism(-1.0), f"epsilon {POSITIVE} -1"),
    (lambda: fdp.Staircase(1.0, gamma=0.0), "gamma must be in (0, 1], got 0"),
    (lambda: fdp.Tulap(1.0, delta=2.0), "delta must be in [0, 1], got 2"),
    (lambda: fdp.GeneralizedGaussian(1.0, shape=1.0),
     "shape must be in (1, 16], got 1"),
    (lambda: fdp.DiscreteGaussian(0.0), "scale must be in (0, 4096], got 0"),
    (lambda: fdp.DiscreteGaussian(5e3), "scale must be in (0, 4096], got 5000"),
    (lambda: fdp.DiscreteGaussian(1.0, sensitivity=0),
     "sensitivity must be in [1, 4096], got 0"),
    (lambda: fdp.DiscreteGaussian(1.0, sensitivity=1.5),
     "sensitivity must be a Python integer, got 1.5"),
    (lambda: fdp.DiscreteGaussian(1.0, truncation=1 << 16),
     "truncation must be in [1, 32768], got 65536"),
    (lambda: fdp.DiscreteLaplace(-1.0), f"scale {POSITIVE} -1"),
    (lambda: fdp.DiscreteLaplace(1.0, sensitivity=4000).group(2),
     "sensitivity must be in [1, 4096], got 8000"),
    (lambda: fdp.KaryRandomizedResponse(1.0, num_categories=1),
     "num_categories must be in [2, 1000000000], got 1"),
    (lambda: fdp.KaryRandomizedResponse(0.0, num_categories=3),
     f"epsilon {POSITIVE} 0"),
    (lambda: fdp.MixtureOfGaussians(1.0, shifts=[-1.0], probs=[1.0]),
     "shifts must be a finite number, at least 0, got -1"),
    (lambda: fdp.MixtureOfGaussians(1.0, shifts=[1.0], probs=[0.9]),
     f"probs {SUM_1} 0.9"),
    (lambda: fdp.FromProbabilities([0.5, 0.5], [0.5, 0.6]), f"with_record {SUM_1} 1.1"),
    (lambda: fdp.FromProbabilities([1.5, -0.5], [0.5, 0.5]),
     "without_record must be in [0, 1], got 1.5"),
    (lambda: fdp.FromProbabilities([[0.5, 0.5]], [[0.5, 0.5]]),
     "without_record must be a vector of one entry or more, got an array of (1, 2)"),
    (lambda: fdp.FromTradeOffPoints([0.1], [1.5]), "beta must be in [0, 1], got 1.5"),
    (lambda: dataclasses.replace(NORMAL, log_beyond=0.5), "must be at most 0, got 0.5"),
    (lambda: dataclasses.replace(NORMAL, support=(1.0, 0.0, 3.0)),
     "support must be (low, high), got (1.0, 0.0, 3.0)"),
    (lambda: dataclasses.replace(NORMAL, support=None), "(low, high), got None"),
    (lambda: _sum("linf"), "norm must be one of ('l1', 'l2', 'absolute'), got 'linf'"),
    (lambda: fdp.Laplace.for_sensitivity(_sum("l2"), scale=1.0),
     "sensitivity must be in one of the norms ('l1', 'absolute'), got 'l2'"),
    (lambda: fdp.PoissonSubsampled(M, 1.5), "sampling_prob must be in [0, 1], got 1.5"),
    (lambda: fdp.PoissonMechanism(-1.0, 1.0), f"offset {POSITIVE} -1"),
    (lambda: fdp.PoissonMechanism(1.0, -1.0), f"gain {POSITIVE} -1"),
    (lambda: fdp.PoissonMechanism(1.0, 1.0, sensitivity=-1.0),
     f"sensitivity {POSITIVE}"),
    (lambda: fdp.PoissonMechanism(1.0, 1.0).mean(-1.0), "statistic must be"),
    (lambda: fdp.PartitionSelection(0.0, threshold=9.0), "noise_multiplier must be"),
    (lambda: fdp.PartitionSelection(1.0, threshold=np.inf), "threshold must be"),
    (lambda: fdp.PartitionSelection(1.0, threshold=9.0, max_partitions=0),
     "max_partitions must be a whole number, at least 1, got 0"),
    (lambda: fdp.PartitionSelection(1.0, threshold=9.0, relation="replace_one"),
     "records that are added or removed"),
    (lambda: fdp.PartitionSelection(1.0).delta(epsilon=1.0), "threshold of"),
    (lambda: fdp.AboveThreshold(0.0), f"noise_multiplier {POSITIVE}"),
    (lambda: fdp.AboveThreshold(1.0, num_above=1.5), "num_above must be a whole"),
    (lambda: fdp.AboveThreshold(1.0, query_ratio=0.0), "query_ratio must be"),
    (lambda: fdp.AboveThreshold(None).delta(epsilon=1.0), "noise_multiplier of"),
    (lambda: fdp.ReportNoisyMax(1.0, noise="gaussian"), "noise must be one of"),
    (lambda: fdp.Skellam(0.0), "scale must be in"),
    (lambda: fdp.Skellam(1.0, sensitivity=0), "sensitivity must be in"),
    (lambda: fdp.Skellam.of_vectors(1.0, l2_sensitivity=-1.0), "l2_sensitivity must"),
    (lambda: fdp.inference.binomial_test(0, 62, 100, 0.5, fdp.tradeoff.Gaussian(1.0)),
     "key must be one key of jax.random, got 0"),
    (lambda: fdp.reports.receipt(
        fdp.Gaussian(1.0), delta=1e-5, unit="x", notes="bar"),
     "notes must be a dict of notes by topic, or None, got 'bar'"),
    (
        lambda: fdp.Skellam.of_vectors(1.0, l2_sensitivity=3.0, l1_sensitivity=2.0),
        "l1_sensitivity must be at least l2_sensitivity, got 2",
    ),
    (lambda: fdp.DistributedDiscreteGaussian(1.8, num_shares=3), "scale must be in"),
    (lambda: fdp.DistributedDiscreteGaussian(2.0, num_shares=0.5), "num_shares must"),
    (lambda: fdp.DistributedDiscreteGaussian(2.0).delta(epsilon=1.0), "num_shares of"),
    (lambda: fdp.LastIterate(1.0, contraction=1.5, num_steps=3),
     "contraction must be in"),
    (lambda: fdp.LastIterate(1.0, contraction=0.5, num_steps=0),
     "num_steps must be a whole number, at least 1"),
    (lambda: fdp.LastIterate(-1.0, contraction=0.5, num_steps=3),
     f"{NOISE} {POSITIVE}"),
    (lambda: _runs(probs=(0.5, 0.3, 0.2 + 1e-11)), "probs and tail_prob must be"),
    (lambda: _runs(tail=1e-11), "probs and tail_prob must be"),
    (lambda: _runs(tail=1.0), "tail_prob must be in [0, 1)"),
    (lambda: _runs(probs=(0.5, 0.7, -0.2)), "probs must be in [0, 1]"),
    (lambda: _runs(probs=(0.5, 0.5)), "num_steps and probs must have one length"),
    (lambda: _runs(steps=(1.0, -4.0, 16.0)), "num_steps must be a finite number"),
    (lambda: _runs(steps=(1.0, nan, 16.0)), "num_steps must be a finite number"),
    (lambda: _runs(steps=3.0), "num_steps must be a vector"),
    (lambda: _runs().repeat(1.5), "num_steps must be a whole number"),
    (lambda: fdp.RandomRepeat(M, num_steps=[1.5], probs=[1.0]),
     "must be a whole number"),
    (lambda: fdp.RandomRepeat(3.0, num_steps=[1], probs=[1.0]), "must be a mechanism"),
    (lambda: fdp.PoissonSubsampled(_runs(), 0.1), "single release"),
    (lambda: fdp.ZCDP(-1.0), "got -1"),
    (lambda: fdp.ZCDP(inf), "got inf"),
    (lambda: fdp.ZCDP(0.5).repeat(1.5), "got 1.5"),
    (lambda: fdp.ZCDP(0.5).delta(epsilon=nan), "epsilon must be a number, got nan"),
    (lambda: fdp.RenyiDP([0.0], [1.0]), "got 0"),
    (lambda: fdp.RenyiDP([inf], [1.0]), "got inf"),
    (lambda: fdp.RenyiDP([2.0], [-1.0]), "got -1"),
    (lambda: fdp.RenyiDP([2.0], [nan]), "got nan"),
    (lambda: fdp.RenyiDP([2.0, 3.0], [1.0]), "must have one length"),
    (lambda: fdp.RenyiDP([], []), "orders must be a vector"),
    (lambda: fdp.LevyTriplet(-1.0), "gaussian_variance must be"),
    (lambda: fdp.LevyTriplet(1.0, jumps=[0.0], rates=[1.0]),
     "jumps must be finite numbers other than 0"),
    (lambda: fdp.LevyTriplet(1.0, jumps=[1.0], rates=[-1.0]), "rates must be"),
    (lambda: fdp.LevyTriplet(1.0, jumps=[1.0], rates=[1.0, 2.0]), "one length"),
    (lambda: fdp.LevyTriplet(1.0, jumps=[1.0, 710.0], rates=[1.0, 1.0]),
     "below e^700, got 1.0 at 710.0"),
    # Divergences.
    (lambda: divergences.renyi(M, order=0.0), "got 0"),
    (lambda: divergences.renyi(M, order=-2.0), "got -2"),
    (lambda: divergences.renyi(M, order=nan), "order must be"),
    (lambda: divergences.kl(fdp.Gaussian()), "noise_multiplier of Gaussian is not set"),
    (lambda: divergences.gdp(M, delta=1.0), "delta must be in [0, 1)"),
    (lambda: divergences.gdp_regret(M, mu=-1.0), "got -1"),
    (lambda: divergences.edgeworth_beta(M, alpha=2.0),
     "alpha must be in [0, 1], got 2"),
    # Targets, calibration and design.
    (lambda: targets.ErrorRates(alpha=-0.1, beta=0.5), "got -0.1"),
    (lambda: targets.ErrorRates(alpha=0.1, beta=2.0), "got 2"),
    (lambda: _calibrated(targets.ApproxDP(epsilon=1.0, delta=0.0)),
     f"{REACH}delta must lie in"),
    (lambda: _calibrated(targets.ApproxDP(epsilon=1.0, delta=1.0)),
     f"{REACH}delta must lie in"),
    (lambda: _calibrated(targets.ApproxDP(epsilon=-1.0, delta=0.5)),
     f"{REACH}delta must lie in"),
    (lambda: _calibrated(targets.ErrorRates(alpha=0.2, beta=0.9)),
     "beta in (0, 1 - alpha)"),
    (lambda: _calibrated(targets.Advantage(0.0)), f"{REACH}advantage must lie in"),
    (lambda: _calibrated(targets.Advantage(1.0)), f"{REACH}advantage must lie in"),
    (lambda: _calibrated(BUDGET, fdp.Gaussian(), "num_steps"), "must be one of"),
    (lambda: _calibrated(BUDGET, fdp.DPSGD(num_steps=1000)),
     "sampling_prob of DPSGD is not set"),
    (lambda: _calibrated(BUDGET, _step(None).add),
     "mechanism must be a whole mechanism"),
    (lambda: _noise(reach=nan), "reach must be in"),
    (lambda: _noise(reach=-1.0), "reach must be in"),
    (lambda: _noise(cost=lambda x: 1.0), "cost must take an array"),
    (lambda: _noise(cost=lambda x: -np.abs(x)), "cost must take an array"),
    (lambda: _noise(cost=lambda x: x * nan), "cost must take an array"),
    (lambda: _noise(0.0), "epsilon of the target must be in"),
    (lambda: _noise(800.0), "epsilon of the target must be in"),
    (lambda: _searched(nan), "start must hold finite numbers"),
    (lambda: _searched(()), "start must hold finite numbers"),
    (lambda: _searched(tolerance=-1.0), "tolerance must be"),
    (lambda: _searched(tolerance=nan), "tolerance must be"),
    (lambda: _searched(optimizer="adam"), "optimizer must be an optax"),
    # Trade-off functions.
    (lambda: tradeoff.Gaussian(-1.0), "mu must be a finite number, at least 0"),
    (lambda: tradeoff.Laplace(nan), "mu must be a finite number"),
    (lambda: tradeoff.ApproxDP(epsilon=-1.0, delta=0.0), "epsilon must be"),
    (lambda: tradeoff.ApproxDP(epsilon=1.0, delta=1.5), "delta must be in [0, 1]"),
    (lambda: tradeoff.Subsampled(F, 1.5), "sampling_prob must be in [0, 1], got 1.5"),
    (lambda: tradeoff.Group(F, 0), "size must be in [1, 64]"),
    (lambda: tradeoff.Mixture([F], probs=[0.5, 0.5]),
     "tradeoffs and probs must have one length, got 1 and 2"),
    (lambda: tradeoff.Poisson(-1.0, 2.0), "rate_without must be"),
    (lambda: tradeoff.QuantizedGaussian(1.0, 0.0), f"width {POSITIVE}"),
    (lambda: F.beta(alpha=1.5), "alpha must be in [0, 1]"),
    (lambda: F.beta_at_tnr(tnr=-1.0), "tnr must be in [0, 1]"),
    (lambda: tradeoff.check_tradeoff([0, 1], [1, 0.1]), "beta must be 0 at alpha = 1"),
    (lambda: tradeoff.check_tradeoff([0, 0.5, 1], [0.4, 0.45, 0]), "must not increase"),
    (lambda: tradeoff.check_tradeoff([0, 0.5, 1], [0.6, 0.5, 0]), "must be convex"),
    (lambda: tradeoff.check_tradeoff([0, 0.5, 1], [1, 0.6, 0]), "at most 1 - alpha"),
    (lambda: tradeoff.check_tradeoff([0, 0.5, 1], [1, nan, 0]), "a number, got nan"),
    (lambda: tradeoff.check_tradeoff([0, 0.5, 0.5], [1, 0.3, 0.2]), "strictly increas"),
    (lambda: tradeoff.check_tradeoff([0, 1], [1.5, 0]),
     "beta must be in [0, 1], got 1.5"),
    (lambda: tradeoff.check_profile([0, 1], [0.4, 1.2]),
     "delta must be in [0, 1], got 1"),
    (lambda: tradeoff.check_profile([-1, 0], [0.5, 0.4]), "at least 1 - e^epsilon"),
    (lambda: tradeoff.check_profile([0, 1], [0.3, 0.4]), "delta must not increase"),
    (lambda: tradeoff.check_profile([0, 1, 2], [0.4, 0.39, 0]), "convex in e^epsilon"),
    (lambda: tradeoff.check_profile([0, nan], [0.4, 0.3]),
     "epsilon must be a number, got"),
    (lambda: tradeoff.check_bayes_error([0.2, 0.5], [0.1, 0.6]),
     "min(prior, 1 - prior)"),
    (lambda: tradeoff.check_bayes_error([0.2, 0.5], [-0.1, 0.2]),
     "must not be negative"),
    (lambda: tradeoff.check_bayes_error([0.2, 0.5, 0.8], [0.2, 0.1, 0.2]),
     "be concave"),
    (lambda: tradeoff.PiecewiseLinear([0, 1], [1, 0.5]), "beta must be 0"),
    (lambda: tradeoff.PiecewiseLinear([0, 0.5], [1, 0]), "alpha must run from 0"),
    (lambda: tradeoff.PrivacyProfile.from_points([-1.0], [0.2]),
     "delta must be at least 1 - e^epsilon, got 0.2 at -1.0"),
    (lambda: tradeoff.BayesError.from_points([0.5], [0.7]), "at most min(prior"),
    (lambda: tradeoff.BayesError.from_points([0.0], [0.0]), "prior must be in"),
    (lambda: tradeoff.TradeOff.from_probabilities([0.5, 0.6], [0.5, 0.5]),
     "without_record must be probabilities with sum 1"),
    (lambda: tradeoff.TradeOff.from_scores([1.0], [0.0], confidence=1.0),
     "confidence must be in (0, 1)"),
    # Accounts, filters and odometers.
    (lambda: fdp.Accountant().step(_step(), count=1.5), "count must be a whole number"),
    (lambda: fdp.Accountant().step(_step(), count=-1), "count must be a whole number"),
    (lambda: fdp.Accountant().step(_step(steps=2.5)),
     "num_steps must be a whole number"),
    (lambda: fdp.Accountant().step(_step(), count=2**31), "at most 2147483647"),
    (lambda: fdp.Accountant().step(RESPONSE), "have the relation"),
    (lambda: fdp.Accountant(capacity=0), "capacity must be"),
    (lambda: fdp.Accountant(relation="none"), "relation must be"),
    (lambda: accounting.GaussianFilter(0.0), "mu must be"),
    (lambda: accounting.GaussianFilter(inf), "mu must be"),
    (lambda: accounting.GaussianFilter(1.0).fits(RESPONSE), "the relation"),
    (lambda: accounting.GaussianFilter(1.0).fits(-0.1), "mu must be"),
    (lambda: accounting.GaussianFilter(1.0).step(2.0), "must not exceed the budget"),
    (lambda: accounting.GaussianFilter(1.0).step(2.0), "got count = 1"),
    (lambda: accounting.GaussianFilter(1.0).step(0.1, count=1.5),
     "count must be a whole"),
    (lambda: accounting.ZCDPFilter(-1.0), "rho must be"),
    (lambda: accounting.ZCDPFilter(1.0).step(RESPONSE), "the relation"),
    (lambda: accounting.RenyiFilter(fdp.RenyiDP([2.0], [1.0])).fits(
        fdp.RenyiDP([3.0], [1.0])), "orders must be those"),
    (lambda: accounting.GaussianOdometer(0.0), "mu must be"),
    (lambda: accounting.GaussianOdometer().epsilon(delta=2.0), "delta must be"),
    (lambda: accounting.GaussianOdometer().step(-1.0), "mu must be"),
    (lambda: accounting.GaussianOdometer().step(RESPONSE), "the relation"),
    (lambda: accounting.GaussianOdometer().step(F), "in general there is no filter"),
    (lambda: accounting.ZCDPOdometer(inf), "rho must be"),
    (lambda: accounting.ZCDPOdometer().step(1.0, count=0.5), "count must be"),
    (lambda: accounting.RenyiOdometer(fdp.ZCDP(1.0)), "budget must be a RenyiDP"),
    # Audits.
    (lambda: audit.Counts(1, 2, 3, 4), "by name"),
    (lambda: dataclasses.replace(COUNTS, true_positives=-1),
     "true_positives must be in"),
    (lambda: dataclasses.replace(COUNTS, false_positives=1.5),
     "false_positives must be a Python integer"),
    (lambda: dataclasses.replace(COUNTS, true_positives=0, false_negatives=0),
     "must be at least 1, got 0 and 10"),
    (lambda: audit.falsifies(1.0, COUNTS), "guarantee must be a mechanism, or another"),
    (lambda: audit.falsifies(F, COUNTS, level=0), "level must be in (0, 1), got 0"),
    (lambda: audit.epsilon_lower_bound(COUNTS, delta=2),
     "delta must be in [0, 1], got 2"),
    (lambda: audit.tradeoff_points(COUNTS).upper(alpha=-1),
     "alpha must be in [0, 1], got"),
    (lambda: audit.tradeoff_points(audit.OneRun(1, 2, 3)),
     "evidence must be Counts or Scores, got OneRun"),
    (lambda: audit.OneRun(5, 4, 10), "correct must be in [0, 4], got 5"),
    (lambda: audit.OneRun(5, 11, 10), "guesses must be in [1, 10], got 11"),
    (lambda: audit.OneRun(0, 0, 10), "guesses must be in [1, 10], got 0"),
    (lambda: audit.OneRun(1.0, 2, 3), "correct must be a Python integer"),
    (lambda: _scores(inside=[]), "in_scores must be a vector"),
    (lambda: _scores(outside=[1.0, nan]), "out_scores must be a number, got nan"),
    (lambda: _scores(threshold=[]), "threshold must be a number or a vector"),
    (lambda: _scores(threshold=nan), "threshold must be a number, got nan"),
    (lambda: audit.Split(1.0), "fraction must be in (0, 1), got 1"),
    (lambda: audit.Split(0.5, 0.5), "seed must be a Python integer"),
    (lambda: audit.clopper_pearson(8, 7),
     "count must be at most num_trials, got 8 of 7"),
    (lambda: audit.clopper_pearson(1.5, 7), "count must be a whole number, at least 0"),
    (lambda: audit.clopper_pearson(3, 0),
     "num_trials must be a whole number, at least 1"),
    (lambda: audit.clopper_pearson(3, 7, confidence=1.0),
     "confidence must be in (0, 1)"),
    (lambda: audit.clopper_pearson(3, 7, alternative="more"), "must be one of"),
    # Kernels and selections.
    (lambda: MarkovKernel([[0.5, 0.4], [0.5, 0.5]]),
     "matrix must have rows with sum 1"),
    (lambda: MarkovKernel([[1.5, -0.5]]), "matrix must be in [0, 1]"),
    (lambda: KERNEL.then(np.full((3, 2), 0.5)), OTHER),
    (lambda: KERNEL.then(MarkovKernel(np.full((3, 2), 0.5))),
     "must have 2 inputs, got 3"),
    (lambda: KERNEL.tradeoff([(0, 3)]), "neighbors must be inputs from 0 to 1"),
    (lambda: KERNEL.both(None), f"{OTHER}, got None"),
    (lambda: KERNEL.product(1.0), f"{OTHER}, got 1"),
    (lambda: blackwell_order(KERNEL, [[1.0]]), f"{OTHER}, got [[1"),
    (lambda: blackwell_order(1.0, KERNEL), "source must be a MarkovKernel"),
    (lambda: MarkovKernel.mixture([1], probs=[1.0]), "kernels must be a Markov"),
    *((lambda wrong=wrong: fdp.SelectBest(M, repetitions=wrong), "must be a law")
      for wrong in (10, 10.0, "geometric", fdp.selection.Geometric)),
    (lambda: fdp.SelectBest(M, repetitions=10), "10: a fixed number does not hide"),
    (lambda: fdp.SelectBest(M, repetitions=lambda scores: max(scores) < 0.9),
     "one that depends on results tells of them"),
    *((lambda wrong=wrong: fdp.SelectBest(wrong, repetitions=sampling.Poisson),
       "run must be a guarantee") for wrong in (1.0, fdp.Gaussian, M.remove)),
    # Vectors, sizes and other objects in place of numbers.
    (lambda: fdp.FromProbabilities([10**400], [1.0]), "must be numbers"),
    (lambda: fdp.RenyiDP("x", [0.1]), "orders must be numbers, got 'x'"),
    (lambda: fdp.RenyiDP([2.0], 1j), "divergences must be numbers, got 1j"),
    (lambda: fdp.RevealedMixture(3, probs=[1.0]), "mechanisms must be a sequence"),
    *((lambda wrong=wrong: M.curve(num_points=wrong), "num_points must be")
      for wrong in (7, 9.5, nan, "9", 10**400)),
    *((lambda wrong=wrong: accounting.ZCDPFilter(1.0).fits(0.1, count=wrong),
       "count must be one number") for wrong in ([], [1, 2])),
    (lambda: accounting.ZCDPFilter([1.0, 2.0]), "rho must be one number"),
    (lambda: fdp.Accountant().step(M, count=[1]), "count must be one number"),
    (lambda: _calibrated(BUDGET, solve_for=3.0), "solve_for must be the name of"),
    *((lambda wrong=wrong: NEAR.event_bounds(wrong), "event must be")
      for wrong in ([0.0, 2.0], [0.5, 1.0], True, "x")),
    (lambda: NEAR.intersected(1.0), "other must be a MeasureInterval, got 1"),
    *((lambda wrong=wrong: NEAR.contains([-1.0, -2.0], tolerance=wrong),
       "tolerance must be a finite number") for wrong in (-1, nan, 1j)),
    (lambda: limits.odds_tail_bound(1.0, 2.0), "f must be a mechanism"),
    (lambda: limits.pure_power_bound(1e-320, epsilon=1.0, distance=2),
     "alpha must be 0 or at least"),
    *((lambda wrong=wrong: inference.binomial_sample_size(
        F, 0.5, 0.9, alpha=0.1, power=0.5, max_records=wrong), "max_records must be")
      for wrong in (-inf, None, 0)),
    *((lambda wrong=wrong: inference.two_proportion_test(None, 3, wrong, 4, 10, F),
       "num_records_x must be a whole number") for wrong in (None, "x")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), TABLE)
def test_a_wrong_value_is_named_with_what_is_right(call, words):
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    message = str(raised.value)
    assert words in message
    assert "\n" not in message


def test_exact_numbers_are_numbers():
    run = fdp.DPSGD(
        noise_multiplier=decimal.Decimal("1.1"),
        sampling_prob=fractions.Fraction(1, 240),
        num_steps=fractions.Fraction(480),
    )
    same = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=1 / 240, num_steps=480)
    assert jax.tree.leaves(run) == jax.tree.leaves(same)
    noise = fdp.Gaussian(fractions.Fraction(2))
    delta = noise.delta(epsilon=decimal.Decimal("0.5"))
    assert delta == fdp.Gaussian(2.0).delta(epsilon=0.5)
    with pytest.raises(ValueError, match=r"\[0, 1\], got 1.1$"):
        noise.epsilon(delta=decimal.Decimal("1.1"))
