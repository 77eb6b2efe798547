"""Random allocation of any release, against sums over all outputs and integrals.

The truth for finite pairs is a sum of fractions over all outputs of all steps; for
Laplace noise an integral over all steps but one, for which there is a formula.
"""

import itertools
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax.losses import GaussianLoss, dominated, dominating

ALLOCATION = fdp.sampling.RandomAllocation
SLOW = pytest.mark.slow
"""Where each case is a program of its own, like the others."""


def allocated(mechanism: Any, t: Any, k: int = 1, epochs: int = 1) -> Any:
    scheme = ALLOCATION(t, num_participations=k)
    return fdp.Subsampled(mechanism, scheme, num_steps=t * epochs)


def one_side(mechanism: Any, sign: int) -> Any:
    return mechanism.remove if sign > 0 else mechanism.add


def within(bounds: Any, truth: float, width: float) -> None:
    assert bounds.lower <= truth * (1 + 1e-12) + 1e-300, (bounds, truth)
    assert truth * (1 - 1e-12) <= bounds.upper, (bounds, truth)
    # Losses of the lower pair count as off by up to 1e-7.
    assert bounds.upper - bounds.lower <= width * truth + 2e-7, (bounds, truth)


# ----------------------------------------------------------------------- finite pairs


def all_outputs(pair, t, k):
    """Probabilities of all outputs of t steps, without the record and with it."""
    p, q = pair
    chosen = list(itertools.combinations(range(t), k))
    total: dict[Any, Any] = {}
    for outputs in itertools.product(range(len(p)), repeat=t):
        without = math.prod([p[i] for i in outputs])
        included = sum(
            math.prod([(q if j in places else p)[i] for j, i in enumerate(outputs)])
            for places in chosen
        ) / len(chosen)
        total[without, included] = total.get((without, included), Fraction(0)) + 1
    return total


def exact_delta(outputs, factor, sign):
    """sum (q - factor p)_+, or with p and q exchanged."""
    found = Fraction(0)
    for (p, q), times in outputs.items():
        gain = q - factor * p if sign > 0 else p - factor * q
        found += times * max(gain, Fraction(0))
    return float(found)


FAIR = [Fraction(1, 2), Fraction(1, 2)], [Fraction(3, 4), Fraction(1, 4)]
SKEWED = (
    [Fraction(n, 20) for n in (9, 6, 4, 1)],
    [Fraction(n, 20) for n in (3, 6, 8, 3)],
)
TELLING = (
    [Fraction(n, 16) for n in (8, 5, 3, 0)],
    [Fraction(n, 16) for n in (4, 6, 5, 1)],
)
FORGETTING = TELLING[1], TELLING[0]


def from_fractions(pair: Any) -> Any:
    make: Any = fdp.FromProbabilities
    return make(*(np.array([float(x) for x in law]) for law in pair))


def at(run: Any, sign: int, factors: tuple[Fraction, ...]) -> list[Any]:
    """The bounds of delta at the logarithms of some factors, asked for together."""
    epsilons = np.log([float(factor) for factor in factors])
    found = one_side(run, sign).bounds(epsilon=epsilons)
    arrays = lambda x: isinstance(x, jax.Array | np.ndarray) and x.ndim > 0
    pick = lambda i: jax.tree.map(lambda x: x[i] if arrays(x) else x, found)
    return [pick(i) for i in range(len(factors))]


@pytest.mark.parametrize(
    ("pair", "t", "k"),
    [
        *((FAIR, 3, 2), (SKEWED, 3, 1), (TELLING, 3, 1)),
        pytest.param(SKEWED, 5, 2, marks=SLOW),
        pytest.param(TELLING, 4, 3, marks=SLOW),
        (FORGETTING, 5, 1),
    ],
)
def test_finite_pairs(pair, t, k):
    outputs = all_outputs(pair, t, k)
    run = allocated(from_fractions(pair), t, k)
    # Those of several participations take ten times as long.
    factors = (Fraction(1), Fraction(6, 5), Fraction(3, 2))[: 3 if k == 1 else 1]
    for sign in (1, -1):
        truths = [exact_delta(outputs, factor, sign) for factor in factors]
        for found, truth in zip(at(run, sign, factors), truths, strict=True):
            # Of several participations the upper end is another pair's.
            within(found, truth, 3e-5 if k == 1 else 1.0)
            if k > 1 and pair is FAIR:
                # The number of outputs of either kind tells all.
                assert found.lower >= truth * (1 - 1e-5) - 2e-7


@pytest.mark.slow
def test_finite_epochs():
    """Two epochs of two steps, in all their outputs."""
    once = all_outputs(SKEWED, 2, 1)
    twice: dict[tuple[Fraction, Fraction], Fraction] = {}
    for (p, q), n in once.items():
        for (a, b), m in once.items():
            key = p * a, q * b
            twice[key] = twice.get(key, Fraction(0)) + n * m
    run = allocated(from_fractions(SKEWED), 2, epochs=2)
    factors = Fraction(1), Fraction(3, 2), Fraction(2)
    for sign in (1, -1):
        truths = [exact_delta(twice, factor, sign) for factor in factors]
        for found, truth in zip(at(run, sign, factors), truths, strict=True):
            within(found, truth, 2e-4)


@pytest.mark.slow
def test_largest_loss():
    """e^eps-DP steps: the ratio of t steps is at most their largest."""
    run = allocated(fdp.PureDP(1.0), 2)
    found = run.bounds(delta=0.0)
    assert found.lower <= 1.0 <= found.upper < 1.001
    # Of the record left both steps have it with probability (e / (1 + e))^2.
    mass = (math.e / (1 + math.e)) ** 2
    within(run.bounds(delta=1e-9), 1.0 + math.log1p(-1e-9 / mass), 1e-5)


def test_infinite_losses():
    """A step that reveals the record does so wherever it is."""
    run = allocated(fdp.ApproxDP(epsilon=1.0, delta=1e-3), 3)
    p = [Fraction(0), Fraction(1, 1000), Fraction(333, 1000), Fraction(666, 1000)]
    q = [p[1], p[0], p[3], p[2]]
    exact = allocated(from_fractions((p, q)), 3)
    outputs = all_outputs((p, q), 3, 1)
    for sign in (1, -1):
        truth = exact_delta(outputs, Fraction(5, 4), sign)
        within(one_side(exact, sign).bounds(epsilon=np.log(1.25)), truth, 1e-5)
    assert run.remove.bounds(epsilon=20.0).lower >= 1e-3 * (1 - 1e-6)
    assert run.remove.epsilon(delta=0.9e-3) == jnp.inf


# ---------------------------------------------------------------------- Laplace noise


def laplace_call(strike, mu):
    """E(r - K)_+ of one step's likelihood ratio, without the record."""
    low, high = np.exp(-mu), np.exp(mu)
    inside = np.clip(strike, low, high)
    x = 0.5 * (1 + np.log(inside) / mu)
    value = 0.5 * np.exp(-mu) * (high - inside)
    value = value + 0.5 * np.exp(-mu) * (high - np.exp(mu * x))
    value = value - 0.5 * inside * (np.exp(-mu * x) - np.exp(-mu))
    return np.where(strike < low, 1 - strike, np.where(strike > high, 0, value))


def laplace_steps(mu, pieces=400):
    """Ratios of a step and their probabilities, without the record."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    x = (np.arange(pieces)[:, None] + 0.5 * (nodes + 1)).ravel() / pieces
    w = np.tile(0.5 * weights / pieces, pieces)
    ratios = np.concatenate([[np.exp(-mu), np.exp(mu)], np.exp(mu * (2 * x - 1))])
    mass = np.concatenate([[0.5, 0.5 * np.exp(-mu)], 0.5 * mu * np.exp(-mu * x) * w])
    return ratios, mass


def laplace_delta(mu, t, eps, sign):
    ratios, mass = laplace_steps(mu)
    others = ratios if t == 2 else (ratios[:, None] + ratios).ravel()
    weights = mass if t == 2 else (mass[:, None] * mass).ravel()
    strike = t * np.exp(sign * eps)
    call = weights @ laplace_call(strike - others, mu) / t
    # E r = 1: the put by parity.
    return call if sign > 0 else 1 - np.exp(eps) + np.exp(eps) * call


@pytest.mark.parametrize(
    ("b", "t", "eps"),
    [(1.0, 2, 0.5), (0.5, 3, 0.8)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_laplace(b, t, eps, sign):
    truth = laplace_delta(1 / b, t, eps, sign)
    found = one_side(allocated(fdp.Laplace(b), t), sign).bounds(epsilon=eps)
    assert found.lower <= truth + 2e-8
    assert truth - 2e-8 <= found.upper
    assert found.upper - found.lower < 2e-6 * truth + 2e-7


def test_laplace_call():
    """The truth's own formula, against its rule."""
    ratios, mass = laplace_steps(0.8)
    np.testing.assert_allclose(mass.sum(), 1, rtol=1e-13)
    np.testing.assert_allclose(mass @ ratios, 1, rtol=1e-13)
    for strike in (0.1, 0.6, 1.3, 2.0, 3.0):
        rule = mass @ np.maximum(ratios - strike, 0)
        np.testing.assert_allclose(laplace_call(strike, 0.8), rule, atol=1e-6)


# -------------------------------------------------------------------- Gaussian noise


@pytest.mark.parametrize("sign", [1, -1])
def test_gaussian_by_either_path(sign):
    s, t = 3.0, 20
    own = one_side(
        fdp.DPSGD(noise_multiplier=s, sampling=ALLOCATION(t), num_steps=t), sign
    )
    loss, count = GaussianLoss(jnp.asarray(s)), jnp.asarray(float(t))
    above, below = jitted(lambda x, n: (dominating(x, n), dominated(x, n, 1)))(
        loss, count
    )
    for eps in (0.02, 0.1, 0.2):
        known = own.bounds(epsilon=eps)
        most, least = (
            float(jnp.exp(x.form(sign).log_delta(jnp.asarray(eps))))
            for x in (above, below)
        )
        assert least <= known.upper * (1 + 1e-6)
        assert known.lower <= most
        assert most - least < 2e-4 * known.estimate


@pytest.mark.slow
def test_several_participations():
    """Between what a sum tells and what k epochs do; all steps are plain ones."""
    s, t, k = 1.0, 10, 5
    run = fdp.DPSGD(
        noise_multiplier=s, sampling=ALLOCATION(t, num_participations=k), num_steps=t
    )
    for view in (run.remove, run.add):
        found = view.bounds(delta=1e-6)
        assert 0 < 0.85 * found.upper < found.lower <= found.upper
    every = fdp.DPSGD(
        noise_multiplier=s, sampling=ALLOCATION(k, num_participations=k), num_steps=k
    )
    truth = fdp.Gaussian(s).repeat(k).epsilon(delta=1e-6)
    found = every.bounds(delta=1e-6)
    assert 0.99 * truth < found.lower <= truth * (1 + 1e-6)
    assert truth * (1 - 1e-6) <= found.upper < truth * (1 + 1e-5)


# -------------------------------------------------------------- limits and identities


@pytest.mark.parametrize(
    "mechanism", [fdp.Laplace(1.0), fdp.PureDP(0.5), fdp.DiscreteGaussian(2.0)]
)
def test_one_batch_is_the_base(mechanism):
    found = allocated(mechanism, 1).bounds(delta=1e-3)
    whole = mechanism.bounds(delta=1e-3)
    assert found == whole


@pytest.mark.parametrize(
    "mechanism",
    [
        fdp.Laplace(1.0),
        pytest.param(fdp.DiscreteGaussian(2.0), marks=SLOW),
        pytest.param(
            fdp.Subsampled(fdp.Laplace(1.0), fdp.sampling.Poisson(0.5)), marks=SLOW
        ),
    ],
)
def test_brackets(mechanism):
    """Tight, above what one step in t leaks by any single step, below the base."""
    if isinstance(mechanism, fdp.Subsampled):
        mechanism = mechanism.as_steps()[0][0]
    run = allocated(mechanism, 20)
    whole = mechanism.epsilon(delta=1e-6)
    for view in (run.remove, run.add):
        found = view.bounds(delta=1e-6)
        assert 0 < found.lower <= found.upper < whole
        assert found.upper - found.lower < 2e-3 * found.upper
    # One step alone is the base, sampled once in t.
    single = fdp.Subsampled(mechanism, fdp.sampling.Poisson(1 / 20))
    for eps in (0.01, 0.05):
        least = single.remove.bounds(epsilon=eps).lower
        assert run.remove.bounds(epsilon=eps).upper >= least


# ------------------------------------------------------------------------- a peer


@pytest.mark.parametrize(
    ("noise", "t", "k", "delta", "bracket"),
    [
        # Examples 1 and 2.1 of its tutorial, and one epoch to 0.05.
        (1.0, 1000, 5, 1e-8, (1.3166653, 1.3564735)),
        (3.0, 100, 5, 1e-6, (0.6879998, 0.7273167)),
        (1.0, 100, 1, 1e-6, (0.8503004, 0.8689758)),
    ],
)
def test_peer_brackets(noise, t, k, delta, bracket):
    """PLD_accounting 2.0 (Feldman, Shenfeld 2026), of the same dominating pairs."""
    run = fdp.DPSGD(
        noise_multiplier=noise,
        sampling=ALLOCATION(t, num_participations=k),
        num_steps=t,
    )
    assert bracket[0] < run.epsilon(delta=delta) < bracket[1]


def test_peer_of_laplace():
    """Example 4 of the tutorial with its Laplace noise: upper bounds, at 5e-3."""
    run = allocated(fdp.Laplace(3 / np.sqrt(2)), 100, 5)
    assert 0.9 * 1.0301704 < run.epsilon(delta=1e-6) < 1.0301704
    assert 0.4 * 5.1521359e-5 < run.delta(epsilon=0.8) < 5.1521359e-5


def test_search_for_batches():
    """Beyond a million batches nothing is known; where delta underflows, no NaN."""
    with pytest.raises(ValueError, match="num_batches must be a whole number from 1"):
        ALLOCATION(2_000_000)
    epoch = fdp.DPSGD(noise_multiplier=1.0, sampling=ALLOCATION(10**6), num_steps=10**6)
    found = epoch.bounds(epsilon=0.5)
    assert found.lower <= found.estimate <= found.upper < 1e-15


@pytest.mark.slow
def test_calibration_of_batches():
    run = lambda t: fdp.DPSGD(
        noise_multiplier=3.0, sampling=ALLOCATION(t), num_steps=20
    )
    target = fdp.targets.ApproxDP(epsilon=0.4, delta=1e-6)
    found = fdp.calibrate(run(None), target, solve_for="num_batches", whole=True)
    batches = int(found.value)
    assert (
        run(batches).epsilon(delta=1e-6) <= 0.4 < run(batches - 1).epsilon(delta=1e-6)
    )


# ------------------------------------------------------------------ transformations


@pytest.mark.slow
def test_transformations():
    epsilon = lambda b: allocated(fdp.Laplace(b), 10).epsilon(delta=1e-4)
    each = [float(epsilon(b)) for b in (1.0, 2.0)]
    many = jax.vmap(epsilon)(jnp.asarray([1.0, 2.0]))
    np.testing.assert_allclose(many, each, rtol=1e-6)
    np.testing.assert_allclose(jitted(epsilon)(1.0), each[0], rtol=1e-6)
    estimate = lambda b: allocated(fdp.Laplace(b), 10).epsilon(
        delta=1e-4, bound=fdp.Bound.ESTIMATE
    )
    numeric = (estimate(1.01) - estimate(0.99)) / 0.02
    np.testing.assert_allclose(jax.grad(estimate)(1.0), numeric, rtol=1e-3)
    with jax.enable_x64(False):
        found = jitted(epsilon)(1.0)
        assert found.dtype == jnp.float32
    assert each[0] * (1 - 1e-6) <= float(found) < each[0] * (1 + 1e-5)


# ------------------------------------------------------------------------------ errors


@pytest.mark.slow
def test_more_participations_than_batches_in_a_program():
    run = lambda t: fdp.DPSGD(
        noise_multiplier=1.0, sampling=ALLOCATION(t, num_participations=3), num_steps=6
    )
    found = jitted(lambda t: run(t).bounds(delta=1e-5))(2.0)
    assert found.lower <= 0
    assert found.upper == jnp.inf


def test_errors():
    with pytest.raises(ValueError, match="num_participations must be at most"):
        ALLOCATION(3, num_participations=4)
    with pytest.raises(TypeError, match="mechanism must be Gaussian where a record's"):
        fdp.Subsampled(fdp.Laplace(1.0), ALLOCATION(3, same_every_epoch=True))
    with pytest.raises(ValueError, match="size must be 1 for random allocation, got 2"):
        allocated(fdp.Laplace(1.0), 3).group(2)
