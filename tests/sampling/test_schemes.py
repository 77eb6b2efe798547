"""Sampling schemes: check values, identities, errors, transformations, reports."""

import math
from typing import Any

import dp_accounting
import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from dp_accounting import pld
from programs import jitted

import fdp_jax as fdp
from fdp_jax import sampling
from fdp_jax._internal._binomial import log_binomial_tail

EPSILONS = np.array([-0.4, 0.0, 0.5, 1.5])
ADD, REPLACE, ZERO = "add_or_remove_one", "replace_one", "zero_out"


def run(scheme, relation=ADD, num_steps: Any = 1, noise: Any = 1.0):
    return fdp.DPSGD(
        noise_multiplier=noise,
        sampling=scheme,
        num_steps=num_steps,
        relation=relation,
    )


def alike(one, other, **tolerance):
    for view in ("remove", "add"):
        found = (getattr(x, view).bounds(epsilon=EPSILONS) for x in (one, other))
        first, second = found
        np.testing.assert_allclose(first.upper, second.upper, **tolerance)
        np.testing.assert_allclose(first.lower, second.lower, **tolerance)


# -------------------------------------------------------------------- check values


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "delta"),
    [(0.01, 1.0, 0.1, 2.608033226e-3), (0.1, 2.0, 0.5, 2.032536920e-3)],
)
def test_one_batch_of_a_fixed_size(rate, noise, epsilon, delta):
    step = run(sampling.FixedSize(prob=rate), REPLACE, noise=noise)
    found = step.bounds(epsilon=epsilon)
    np.testing.assert_allclose(found.upper, delta, rtol=1e-9)
    np.testing.assert_allclose(found.lower, delta, rtol=1e-9)


def test_a_fixed_size_is_far_from_poisson():
    found = run(sampling.FixedSize(prob=0.01), REPLACE, 1000).bounds(delta=1e-5)
    assert float(found.lower) == pytest.approx(13.3608, abs=1e-4)
    assert float(found.upper) >= float(found.lower)


@pytest.mark.parametrize(
    ("n", "rate", "most", "full", "share"),
    [
        (4, 0.5, 2, 0.5, 0.3125),
        (3, 0.5, 2, 0.25, 1 / 3),
        (60_000, 0.005, 350, 2.54553675e-3, 4.91734156e-3),
        (1000, 1.0, 100, 1.0, 0.1),
        (5, 0.5, 5, 0.0, 0.0),
        (1000, 0.0, 100, 0.0, 0.0),
    ],
)
def test_how_often_a_batch_is_cut(n, rate, most, full, share):
    scheme = sampling.TruncatedPoisson(rate, batch_size=most, dataset_size=n)
    np.testing.assert_allclose(scheme.truncation(), (full, share), rtol=3e-9)


def _sampled_delta(noise, rate, epsilon, sign) -> Any:
    """Of one release to a sampled record, with it (1) or without it (-1)."""
    inner = (mp.exp(sign * epsilon) - 1 + rate) / rate
    if inner <= 0:
        return max(1 - mp.exp(epsilon), mp.mpf(0))
    place = mp.mpf(1) / 2 / noise + noise * mp.log(inner)
    without, included = (mp.ncdf(sign * (m / noise - place)) for m in (0, 1))
    mixed = (1 - rate) * without + rate * included
    least, most = (without, mixed) if sign > 0 else (mixed, without)
    return most - mp.exp(epsilon) * least


@mp.workdps(40)
def test_one_truncated_step_in_closed_form():
    rate, most, n = mp.mpf(0.01), 20, 1000

    def at_least(k, trials) -> Any:
        below = (
            mp.binomial(trials, j) * rate**j * (1 - rate) ** (trials - j)
            for j in range(k)
        )
        return 1 - mp.fsum(below)

    full = at_least(most, n - 1)
    share = at_least(most + 1, n) * most / (n * full)
    scheme = sampling.TruncatedPoisson(0.01, batch_size=most, dataset_size=n)
    one = run(scheme)
    for view, sign in ((one.remove, 1), (one.add, -1)):
        for epsilon in (0.0, 0.005, 0.3, 3.0):
            parts = (
                _sampled_delta(mp.mpf(noise), p, mp.mpf(epsilon), sign)
                for noise, p in ((1, rate), (0.5, share))
            )
            pairs = zip((1 - full, full), parts, strict=True)
            truth: Any = mp.fsum(w * x for w, x in pairs)
            found = view.bounds(epsilon=epsilon)
            assert found.method == "closed_form"
            lower, upper = (mp.mpf(float(x)) for x in (found.lower, found.upper))
            assert lower <= truth <= upper <= truth * (1 + mp.mpf(1e-9))
            np.testing.assert_allclose(found.estimate, float(truth), rtol=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "p"),
    [
        (1, 1, 0.25),
        (1, 10**6, 1e-9),
        (2, 7, 0.999),
        (7, 7, 0.1),
        (350, 59_999, 0.005),
        (700, 59_999, 0.005),
        (9_000, 10**7, 0.001),
        (10_000, 10**7, 0.001),
        (12_000, 10**7, 0.001),
        (5 * 10**6, 10**7, 0.5),
    ],
)
def test_binomial_tails(k, n, p):
    with mp.workdps(40):
        p_ = mp.mpf(p)
        heavy = k < n * p
        # The lighter side, term by term.
        j, step = (k - 1, -1) if heavy else (k, 1)
        term = mp.exp(
            mp.loggamma(n + 1)
            - mp.loggamma(j + 1)
            - mp.loggamma(n - j + 1)
            + j * mp.log(p_)
            + (n - j) * mp.log1p(-p_)
        )
        total = mp.mpf(0)
        while 0 <= j <= n and term > total * mp.mpf(10) ** -25:
            total += term
            up = (n - j) * p_ / ((j + 1) * (1 - p_)) if step > 0 else None
            term *= up if up is not None else j * (1 - p_) / ((n - j + 1) * p_)
            j += step
        truth = 1 - total if heavy else total
        log_slope = mp.log(n) + (k - 1) * mp.log(p_) + (n - k) * mp.log1p(-p_)
        log_slope += mp.loggamma(n) - mp.loggamma(k) - mp.loggamma(n - k + 1)
        slope = float(mp.exp(log_slope - mp.log(truth)))
        truth = float(mp.log(truth))
    found, tangent = jax.value_and_grad(log_binomial_tail, 2)(k, n, p)
    np.testing.assert_allclose(found, truth, rtol=1e-14, atol=1e-12)
    np.testing.assert_allclose(tangent, slope, rtol=1e-11)


def _truncated_events():
    for n, count in ((4, 3), (3, 2)):
        scheme = sampling.TruncatedPoisson(0.5, batch_size=2, dataset_size=n)
        event = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=n,
            sampling_probability=0.5,
            truncated_batch_size=2,
            noise_multiplier=1.0,
        )
        yield run(scheme, num_steps=count), event, count


@pytest.mark.slow
def test_truncation_is_never_above_what_dp_accounting_says():
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = pld.PLDAccountant(relation)
    runs = []
    for mechanism, event, count in _truncated_events():
        accountant.compose(event, count)
        runs.append(mechanism)
    assert accountant.get_delta(17.904330) == pytest.approx(1e-6, rel=1e-2)
    both = fdp.compose(*runs)
    for epsilon in (1.0, 5.0, 12.0, 17.904330):
        theirs = accountant.get_delta(epsilon)
        assert 0 < float(both.delta(epsilon=epsilon)) <= theirs * (1 + 1e-6)


def test_examples_of_users():
    parts = [
        fdp.MixtureOfGaussians(1.0, shifts=[0, 1, 2], probs=[0.2, 0.6, 0.2]).repeat(3),
        fdp.MixtureOfGaussians(2.0, shifts=[0, 2, 3], probs=[0.33, 0.34, 0.33]).repeat(
            2
        ),
    ]
    found = fdp.compose(*parts).bounds(epsilon=17.193115)
    np.testing.assert_allclose(found.upper, 1e-6, rtol=1e-5)


# ---------------------------------------------------------------------- identities


def test_whole_batches_are_no_sample():
    whole = run(sampling.FixedSize(prob=1.0), REPLACE)
    found = whole.bounds(epsilon=EPSILONS)
    truth = fdp.Gaussian(0.5).delta(epsilon=EPSILONS)
    np.testing.assert_allclose(found.upper, truth, rtol=1e-6)
    np.testing.assert_allclose(found.lower, truth, rtol=1e-6)


@pytest.mark.parametrize(
    "scheme",
    [sampling.CyclicPoisson(0.3, num_groups=1), sampling.UserLevel(0.3)],
)
def test_poisson_by_other_names(scheme):
    alike(run(scheme, num_steps=3), run(sampling.Poisson(0.3), num_steps=3), atol=2e-8)


def test_a_batch_that_is_never_cut():
    scheme = sampling.TruncatedPoisson(0.3, batch_size=5, dataset_size=5)
    alike(run(scheme), run(sampling.Poisson(0.3)), atol=2e-8)


def test_a_batch_that_is_always_cut():
    """A record that is in the batch is in another one's place, two norms away."""
    scheme = sampling.TruncatedPoisson(1.0, batch_size=100, dataset_size=1000)
    always = run(scheme)
    moved = run(sampling.Poisson(0.1), noise=0.5)
    for view in ("remove", "add"):
        found = getattr(always, view).bounds(epsilon=EPSILONS)
        other = getattr(moved, view).bounds(epsilon=EPSILONS)
        np.testing.assert_allclose(found.upper, other.upper, rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("relation", [REPLACE, ZERO])
def test_epochs_of_one_batch(relation):
    shift = 2 if relation == REPLACE else 1
    epochs = run(sampling.ShuffledEpochs(1), relation, 3)
    truth = fdp.Gaussian(1 / shift).repeat(3).delta(epsilon=EPSILONS)
    np.testing.assert_allclose(epochs.delta(epsilon=EPSILONS), truth, rtol=1e-9)


def test_begun_rounds_count():
    cyclic = sampling.CyclicPoisson(0.3, num_groups=4)
    steps = [run(cyclic, num_steps=n).as_steps()[0][1] for n in (1, 4, 5, 8, 9)]
    assert [float(n) for n in steps] == [1, 1, 2, 2, 3]
    shuffled = sampling.ShuffledEpochs(4)
    for count, epochs in ((0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (1001, 251)):
        steps = run(shuffled, ZERO, count).as_steps()
        assert sum(float(n) for _, n in steps) == epochs
        traced = jitted(lambda n: [x for _, x in run(shuffled, ZERO, n).as_steps()])
        assert sum(float(n) for n in traced(count)) == epochs


# ---------------------------------------------------------------- with replacement


def copies(size, records):
    """How many there may be of a record in a batch, and their probabilities."""
    k = np.arange(1, min(size, 60) + 1)
    return k, scipy.stats.binom.pmf(k, size, 1 / records), (1 - 1 / records) ** size


@pytest.mark.parametrize(
    ("size", "records", "noise"),
    [(100, 10_000, 4.0), (1, 1, 4.0), (5, 3, 0.01), (20, 10**7, 0.3)],
)
def test_one_batch_with_replacement(size, records, noise):
    """The maximum that the module proves, by search; and below the published bound."""
    k, share, none = copies(size, records)
    epsilons, mu = np.array([0.0, 0.001, 0.05, 0.5, 1.5]), 2 * k / noise
    phi = scipy.stats.norm.cdf

    def delta(t, e):
        u = np.minimum(mu / 2 - e / mu, t + mu)
        told = share @ (phi(u) - np.exp(e) * phi(u - mu))
        return told - np.expm1(e) * none * phi(t)

    def largest(e):
        places = np.linspace(-40 - mu.max(), 5, 1001)
        near = places[np.argmax([delta(t, e) for t in places])]
        width = places[1] - places[0]
        return max(delta(t, e) for t in near + np.linspace(-width, width, 2001))

    truth = np.array([largest(e) for e in epsilons])
    step = run(
        sampling.WithReplacement(batch_size=size, dataset_size=records),
        REPLACE,
        noise=noise,
    )
    found = step.bounds(epsilon=epsilons)
    np.testing.assert_allclose(found.upper, truth, rtol=1e-3, atol=1e-12)
    # The estimate is that of the pair above alone.
    assert np.all(np.minimum(found.estimate, found.upper) >= truth * (1 - 1e-9))
    for view in (step.remove, step.add):
        same = view.bounds(epsilon=epsilons).upper
        np.testing.assert_allclose(same, found.upper, rtol=1e-9)
    # Balle, Barthe, Gaboardi (2018), Theorem 10.
    inner = np.log1p(np.expm1(epsilons) / (1 - none))[:, None]
    told = phi(mu / 2 - inner / mu) - np.exp(inner) * phi(-mu / 2 - inner / mu)
    assert np.all(found.upper <= told @ share * (1 + 1e-3) + 1e-12)


@pytest.mark.parametrize(
    ("size", "records", "noise", "steps", "low", "high"),
    [(100, 10_000, 4.0, 100, 0.19048, 0.21001), (40, 20, 30.0, 10, 1.72, 1.9224)],
)
def test_steps_with_replacement(size, records, noise, steps, low, high):
    """Composed by FFT, from the laws of the loss as a bisection finds them."""
    scheme = sampling.WithReplacement(batch_size=size, dataset_size=records)
    found = run(scheme, REPLACE, steps, noise).bounds(delta=1e-5)
    k, share, none = copies(size, records)
    k, share = k[share > 1e-30], share[share > 1e-30]
    mu, points = 2 * k / noise, 2**17
    spacing = 20 * high / points
    level = spacing * (np.arange(points // 2) + 0.5)
    x = left = np.zeros_like(level)
    right = np.full_like(level, 60.0)
    for _ in range(60):
        x = 0.5 * (left + right)
        ratio = np.exp(np.minimum(np.outer(x, mu) - mu**2 / 2, 500))
        more = np.maximum(ratio - np.exp(level)[:, None], 0) @ share
        below = more < np.expm1(level) * none
        left, right = np.where(below, x, left), np.where(below, right, x)
    y = np.maximum(x[:, None], level[:, None] / mu + mu / 2)
    tail = scipy.stats.norm.sf
    without = none * tail(x) + tail(y) @ share
    included = none * tail(x) + tail(y - mu) @ share
    mass = np.zeros(points)
    mass[1 : points // 2] = -np.diff(included)
    mass[: -points // 2 : -1] = -np.diff(without)
    mass[0] = 1 - mass.sum()
    total = np.fft.ifft(np.fft.fft(mass) ** steps).real[: points // 2]
    losses = spacing * np.arange(points // 2)

    def delta(e):
        return total[losses > e] @ -np.expm1(e - losses[losses > e])

    truth: Any = scipy.optimize.brentq(lambda e: delta(e) - 1e-5, 0, high * 2)
    assert truth == pytest.approx(high, rel=1e-4)
    assert truth * (1 - 1e-4) <= float(found.upper) <= truth * (1 + 1e-3)
    assert low * (1 - 1e-3) <= float(found.lower) <= truth


def test_batches_of_one_place_are_those_of_a_fixed_size():
    one = sampling.WithReplacement(batch_size=1, dataset_size=50)
    other = sampling.FixedSize(batch_size=1, dataset_size=50)
    found, known = (run(x, REPLACE).bounds(epsilon=0.5) for x in (one, other))
    np.testing.assert_allclose(found.upper, known.upper, rtol=1e-3)
    np.testing.assert_allclose(found.lower, known.lower, rtol=1e-3)
    assert float(found.upper) >= float(known.upper) * (1 - 1e-9)
    assert float(found.lower) <= float(known.upper)


def test_more_copies_than_are_counted_tell_the_record():
    every = run(sampling.WithReplacement(batch_size=40, dataset_size=1), REPLACE)
    assert float(every.delta(epsilon=1.0)) == 1
    nothing = sampling.WithReplacement(batch_size=5, dataset_size=9)
    assert float(run(nothing, REPLACE, noise=math.inf).delta(epsilon=0.0)) == 0


def test_batches_with_replacement_transform():
    def spent(noise, size):
        scheme = sampling.WithReplacement(batch_size=size, dataset_size=1000.0)
        return run(scheme, REPLACE, 10, noise).delta(epsilon=0.5, bound="estimate")

    at = 2.0, 20.0
    value, slope = jitted(jax.value_and_grad(spent))(*at)
    assert value == pytest.approx(float(spent(*at)), rel=1e-9)
    up, down = (float(spent(2.0 + d, 20.0)) for d in (1e-3, -1e-3))
    assert slope == pytest.approx((up - down) / 2e-3, rel=1e-3)


# -------------------------------------------------------------------------- errors

_POISSON = sampling.Poisson(0.1)
_WRONG = [
    (lambda: fdp.DPSGD(sampling=_POISSON, sampling_prob=0.1), "sampling_prob .* both"),
    (lambda: sampling.Poisson(-0.1), r"prob must be in \[0, 1\], got -0.1"),
    (lambda: sampling.Poisson(math.nan), r"prob must be in \[0, 1\], got nan"),
    (lambda: sampling.Poisson(np.array([0.1, 0.2])), "prob must be one number"),
    (lambda: sampling.FixedSize(batch_size=5), "prob, or batch_size and dataset_size"),
    (lambda: sampling.FixedSize(dataset_size=5), "batch_size=None"),
    (lambda: sampling.FixedSize(prob=0.1, batch_size=1, dataset_size=9), "takes prob"),
    (
        lambda: sampling.FixedSize(batch_size=11, dataset_size=10),
        "batch_size.* got 1.1",
    ),
    (lambda: sampling.FixedSize(batch_size=1.5, dataset_size=10), "whole .* got 1.5"),
    (lambda: sampling.FixedSize(batch_size=0, dataset_size=10), "at least 1, got 0"),
    (
        lambda: sampling.WithReplacement(batch_size=0, dataset_size=9),
        "batch_size .* at least 1, got 0",
    ),
    (
        lambda: run(sampling.WithReplacement(batch_size=1, dataset_size=2), ZERO),
        "relation must be REPLACE_ONE for WithReplacement, got ZERO_OUT",
    ),
    (lambda: sampling.CyclicPoisson(0.1, num_groups=0), "num_groups .* got 0"),
    (lambda: sampling.TruncatedPoisson(0.1, batch_size=0), "batch_size .* got 0"),
    (lambda: sampling.TruncatedPoisson(0.1, dataset_size=2.5), "dataset_size .* 2.5"),
    (lambda: sampling.UserLevel(0.1, max_examples=65), "max_examples .* got 65"),
    (lambda: sampling.ShuffledEpochs(0), "num_batches .* got 0"),
    (
        lambda: run(sampling.FixedSize(prob=0.1)),
        "REPLACE_ONE or ZERO_OUT for FixedSize",
    ),
    (lambda: run(sampling.ShuffledEpochs(3)), "REPLACE_ONE or ZERO_OUT for Shuffled"),
    (lambda: run(sampling.FixedSize(prob=0.1), REPLACE, 2.5), "whole .* got 2.5"),
    (
        lambda: fdp.Subsampled(
            fdp.Laplace(1.0, relation=ZERO), sampling.FixedSize(prob=0.1)
        ),
        "REPLACE_ONE for Laplace .* got ZERO_OUT",
    ),
    *(
        (
            lambda scheme=scheme: fdp.Subsampled(
                fdp.Gaussian(1.0, relation=REPLACE), scheme
            ),
            "ADD_OR_REMOVE_ONE or ZERO_OUT .* got REPLACE_ONE",
        )
        for scheme in (
            _POISSON,
            sampling.CyclicPoisson(0.1, num_groups=2),
            sampling.TruncatedPoisson(0.1, batch_size=1, dataset_size=2),
            sampling.UserLevel(0.1),
            sampling.UserLevel(0.1, max_examples=2),
        )
    ),
    (lambda: run(sampling.Poisson()).epsilon(delta=1e-5), "solve_for='prob'"),
    (
        lambda: run(sampling.FixedSize(), REPLACE).epsilon(delta=1e-5),
        "prob of FixedSize is not set",
    ),
    (
        lambda: run(sampling.TruncatedPoisson(0.1)).epsilon(delta=1e-5),
        "batch_size of TruncatedPoisson is not set",
    ),
    (
        lambda: run(sampling.ShuffledEpochs(), ZERO).epsilon(delta=1e-5),
        "num_batches of ShuffledEpochs is not set",
    ),
    (
        lambda: run(sampling.FixedSize(prob=0.1), ZERO).group(2),
        "size must be 1 .* got 2",
    ),
]


@pytest.mark.parametrize(("make", "message"), _WRONG)
def test_one_line_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: run(0.01), r"such as Poisson\(0.01\), got 0.01"),
        (lambda: run(sampling.Poisson), "such as Poisson"),
        (lambda: fdp.Subsampled(fdp.Gaussian(1.0), 0.1), "sampling must be a scheme"),
        (
            lambda: fdp.Subsampled(1.0, _POISSON),
            "must be a mechanism, such as .*, got 1",
        ),
        (
            lambda: fdp.Subsampled(fdp.Gaussian(1.0).repeat(2), _POISSON),
            "single release, got Composition",
        ),
        (lambda: fdp.Subsampled(run(_POISSON), _POISSON), "single release, got DPSGD"),
        (
            lambda: fdp.Subsampled(
                fdp.Laplace(1.0),
                sampling.TruncatedPoisson(0.1, batch_size=1, dataset_size=2),
            ),
            "must be Gaussian",
        ),
        (lambda: sampling.FixedSize(*[0.1]), "by name, as in"),
    ],
)
def test_one_line_says_what_is_of_another_kind(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda x: sampling.Poisson(x).prob, 1.5),
        (lambda x: sampling.FixedSize(batch_size=x, dataset_size=10).prob, 11),
        (lambda x: sampling.CyclicPoisson(0.1, num_groups=x).num_groups, 1.5),
    ],
)
def test_traced_numbers_are_checked(make, value):
    with pytest.raises(eqx.EquinoxRuntimeError):
        eqx.filter_jit(make)(jnp.asarray(value)).block_until_ready()


# ----------------------------------------------------------------- transformations

_SCHEMES = {
    "fixed": (lambda p: sampling.FixedSize(prob=p), REPLACE),
    "truncated": (
        lambda p: sampling.TruncatedPoisson(p, batch_size=3, dataset_size=10),
        ADD,
    ),
    "user": (lambda p: sampling.UserLevel(p, max_examples=2), ADD),
}


# Of a fixed size the first engine's answer is loose, and derivatives are the grid's.
@pytest.mark.parametrize(
    "name",
    [
        "fixed",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("truncated", "user")),
    ],
)
def test_derivatives(name):
    make, relation = _SCHEMES[name]

    def upper(noise, prob):
        return run(make(prob), relation, 4, noise).delta(epsilon=0.7, bound="estimate")

    at = 1.3, 0.2
    value, slopes = jitted(jax.value_and_grad(upper, (0, 1)))(*at)
    np.testing.assert_allclose(value, upper(*at), rtol=1e-6)
    # Along a direction in which both parts grow, and neither is lost beside the other.
    step = np.asarray([-1e-3, 3e-4])
    up, down = (float(upper(*(at + sign * step))) for sign in (1, -1))
    assert np.all(slopes * step > 0.2 * (up - down) / 2)
    np.testing.assert_allclose(slopes @ step, (up - down) / 2, rtol=1e-4)


@pytest.mark.slow
def test_calibration():
    make, relation = _SCHEMES["truncated"]
    target = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-3)
    found = fdp.calibrate(
        fdp.DPSGD(sampling=make(0.2), num_steps=4, relation=relation),
        target,
        solve_for="noise_multiplier",
    )
    got = float(found.mechanism.epsilon(delta=1e-3))
    assert 2 - 1e-3 <= got <= 2
    rate = fdp.calibrate(run(make(None), relation, 4, 1.5), target, solve_for="prob")
    assert float(rate.mechanism.epsilon(delta=1e-3)) <= 2


@pytest.mark.slow
def test_vmap_and_float32():
    make, relation = _SCHEMES["fixed"]
    ask = lambda p: run(make(p), relation, 4).bounds(epsilon=0.7)
    found = jax.vmap(ask)(jnp.array([0.1, 0.2]))
    each = [ask(rate) for rate in (0.1, 0.2)]
    for i, one in enumerate(each):
        assert found.lower[i] <= one.upper
        assert one.lower <= found.upper[i]
        np.testing.assert_allclose(found.estimate[i], one.estimate, rtol=1e-5)
    with jax.enable_x64(False):
        small = ask(0.2)
        assert small.upper.dtype == jnp.float32
    assert float(small.upper) >= float(each[1].lower)
    np.testing.assert_allclose(small.estimate, each[1].estimate, rtol=1e-5)


# ---------------------------------------------------------- compositions and accounts


@pytest.mark.slow
def test_an_account_of_batches_of_a_fixed_size():
    one = run(sampling.FixedSize(prob=0.2), REPLACE)
    twice = one.repeat(2).bounds(epsilon=EPSILONS)
    account = fdp.Accountant(relation=REPLACE, capacity=2)
    known = account.step(one, 2).bounds(epsilon=EPSILONS)
    assert np.any(known.upper > known.lower + 1e-3)
    for end in ("lower", "upper"):
        np.testing.assert_allclose(getattr(known, end), getattr(twice, end), rtol=1e-9)


@pytest.mark.slow
def test_a_traced_account_of_batches_of_a_fixed_size():
    @jitted
    def ask(noise):
        one = run(sampling.FixedSize(prob=0.2), REPLACE, noise=noise)
        account = fdp.Accountant(relation=REPLACE, capacity=2).step(one, 2)
        return account.bounds(epsilon=EPSILONS)

    found = ask(1.0)
    one = run(sampling.FixedSize(prob=0.2), REPLACE)
    twice = one.repeat(2).bounds(epsilon=EPSILONS)
    np.testing.assert_allclose(found.lower, twice.lower, rtol=1e-5)
    np.testing.assert_allclose(found.upper, twice.upper, rtol=1e-5)


def test_what_is_attained_of_wholes():
    """Whatever is made of steps knows what these attain."""
    step = run(sampling.FixedSize(prob=0.2), REPLACE)
    shuffled = run(sampling.ShuffledEpochs(2), ZERO, 5)
    poisson = run(sampling.Poisson(0.1))
    many = [
        step.repeat(2),
        fdp.compose(step, step),
        fdp.RevealedMixture([step, step], probs=[0.5, 0.5]),
        fdp.RandomRepeat(step, num_steps=[1, 2], probs=[0.5, 0.5]),
        fdp.Accountant(relation=REPLACE).step(step),
        fdp.Accountant(relation=ZERO).step(shuffled),
        fdp.Subsampled(
            fdp.Laplace(1.0, relation=REPLACE), sampling.FixedSize(prob=0.1)
        ),
        shuffled,
    ]
    for mechanism in many:
        assert mechanism.attained() is not None
        assert mechanism.attained().attained() is None
    for mechanism in (poisson, fdp.Accountant().step(poisson), fdp.Accountant()):
        assert mechanism.attained() is None


def test_a_curve_claims_no_more_than_is_attained():
    epoch = run(sampling.ShuffledEpochs(2), REPLACE, 2)
    assert epoch.attained() is not None
    curve, found = epoch.curve(num_points=17), epoch.bounds(epsilon=EPSILONS)
    assert np.any(found.lower < found.upper)
    bounds = curve.bounds(epsilon=EPSILONS)
    assert np.all(bounds.lower <= found.lower + 1e-12)
    assert np.all(bounds.upper >= found.upper - 1e-9)


# ------------------------------------------------------------------------- reports


@pytest.mark.parametrize(
    ("scheme", "relation"),
    [
        (sampling.FixedSize(prob=0.2), REPLACE),
        (sampling.ShuffledEpochs(2), ZERO),
        (sampling.TruncatedPoisson(0.1, batch_size=2, dataset_size=4), ADD),
        (sampling.CyclicPoisson(0.1, num_groups=2), ADD),
        (sampling.UserLevel(0.1), ADD),
        (sampling.UserLevel(0.1, max_examples=2), ADD),
    ],
)
def test_schemes_are_stated(scheme, relation):
    mechanism = run(scheme, relation, 4)
    assert mechanism.samplings() == {scheme.scheme}
    assert fdp.compose(mechanism, mechanism).samplings() == {scheme.scheme}
    account = fdp.Accountant(relation=relation).step(mechanism)
    assert scheme.scheme.caveat
    if scheme.scheme in (
        fdp.sampling.Sampling.FIXED_SIZE,
        fdp.sampling.Sampling.SHUFFLED,
    ):
        assert account.samplings() == {scheme.scheme}


# ---------------------------------------------------------------------------- groups


def test_groups_in_shuffled_epochs():
    """All of a group in one batch: as if its members were one record, moved farther."""
    scheme = fdp.sampling.ShuffledEpochs(num_batches=10)
    run = fdp.DPSGD(
        noise_multiplier=4.0, sampling=scheme, num_steps=30, relation="zero_out"
    )
    found = run.group(2).bounds(delta=1e-5)
    truth = fdp.Gaussian(2.0).repeat(3).epsilon(delta=1e-5)
    np.testing.assert_allclose(found.upper, truth, rtol=1e-6)
    # In different batches they leak as two records of one batch do with less noise.
    apart = fdp.Gaussian(4.0).repeat(6).epsilon(delta=1e-5)
    assert found.lower <= apart <= found.upper
    laplace = fdp.Subsampled(fdp.Laplace(1.0, relation="zero_out"), scheme)
    with pytest.raises(ValueError, match="size must be 1 for shuffled epochs"):
        laplace.group(2)


def test_truncation_is_rounded_outward():
    """The pair's weights are above the exact ones, the attained one's rate below."""
    n, p, most = 60_000, 0.005, 350
    scheme = fdp.sampling.TruncatedPoisson(p, batch_size=most, dataset_size=n)
    run = fdp.Subsampled(fdp.Gaussian(1.0), scheme)
    mp.mp.dps = 40
    mass = lambda j, m: mp.binomial(m, j) * mp.mpf(p) ** j * (1 - mp.mpf(p)) ** (m - j)
    tail = lambda k, m: mp.nsum(lambda j: mass(int(j), m), [k, k + 400])
    full = tail(most, n - 1)
    share = tail(most + 1, n) * most / (n * full)
    term: Any = run.loss().terms[0]
    found = np.asarray(term.probs())
    assert mp.mpf(float(found[1])) >= full
    assert mp.mpf(float(found[0])) >= 1 - full
    assert mp.mpf(float(found[1])) < full * (1 + mp.mpf(10) ** -8)
    below: Any = run.attained()
    rate = mp.mpf(float(below.loss().terms[0].sampling_prob))
    exact = (1 - full) * mp.mpf(p) + full * share
    assert exact * (1 - mp.mpf(10) ** -8) < rate <= exact


def test_hypergeometric_mixtures_do_not_dominate():
    """Data sets that leak more, so that none is offered: sums along a line.

    Of 100 records 3 are one user's, 20 are drawn; others are at -v where the user's new
    records are at 0 and the old ones at 2, all moved by v.
    """
    weights = scipy.stats.hypergeom.pmf(np.arange(4), 100, 3, 20)
    cut = np.linspace(-8, 12, 20_001)

    def delta(v):
        above = lambda step: sum(
            w * scipy.special.ndtr(step * j - cut) for j, w in enumerate(weights)
        )
        return np.max(above(2 - v) - np.exp(0.1) * above(-v))

    assert delta(0.3) > 1.004 * delta(0.0)
    step = fdp.Subsampled(
        fdp.Gaussian(1.0, relation="replace_one"), fdp.sampling.FixedSize(prob=0.2)
    )
    with pytest.raises(ValueError, match="size must be 1 for batches of a fixed size"):
        step.group(3)
