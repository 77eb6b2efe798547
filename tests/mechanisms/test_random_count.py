"""Random numbers of releases and mixtures of compositions, against closed forms."""

import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import exact
from scipy import integrate, stats
from scipy.special import ndtr

import fdp_jax as fdp

NOISE = 4.0
STEPS = (1.0, 4.0, 16.0)
PROBS = (0.5, 0.3, 0.2)
EPSILONS = (0.0, 0.5, 3.0, 10.0, -1.0)


def _gaussian_delta(noise, steps, epsilon):
    """Of a number of Gaussian releases: mu^2 adds."""
    if steps == 0:
        return max(mp.mpf(0), 1 - mp.exp(epsilon))
    mu = mp.sqrt(steps) / mp.mpf(noise)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(
        -mu / 2 - epsilon / mu
    )


def _truth(epsilon, *, steps=STEPS, probs=PROBS, noise=NOISE, count=1, tail=0.0):
    """Every outcome of the `count` revealed numbers, written out."""
    total = sum(exact(p) for p in probs)
    finite = mp.mpf(0)
    for chosen in itertools.product(zip(steps, probs, strict=True), repeat=count):
        weight = mp.fprod(exact(p) / total for _, p in chosen)
        number = sum(exact(n) for n, _ in chosen)
        finite += weight * _gaussian_delta(noise, number, exact(epsilon))
    kept = (1 - exact(tail)) ** count
    return 1 - kept + kept * finite


def _runs(steps=STEPS, probs=PROBS, tail=0.0, noise=NOISE):
    return fdp.RandomRepeat(
        fdp.Gaussian(noise), num_steps=steps, probs=probs, tail_prob=tail
    )


def _deltas(mechanism, count, epsilons, method="auto"):
    return mechanism.repeat(count).using(method).bounds(epsilon=epsilons)


@jitted
def _epsilons(mechanism, deltas):
    return mechanism.bounds(delta=deltas)


def _assert_contains(bounds, truths, rtol, estimate_rtol, truncated=0.0):
    """The truth is that of disclosure; `truncated` may as well disclose nothing."""
    ends = bounds.lower, bounds.estimate, bounds.upper
    for lower, estimate, upper, truth in zip(*ends, truths, strict=True):
        assert exact(lower) <= truth * (1 + mp.mpf(1e-15))
        assert truth * (1 - mp.mpf(1e-15)) <= exact(upper)
        if truth < mp.mpf("1e-300"):  # less than any float
            continue
        assert exact(upper) - exact(lower) <= rtol * truth + truncated * (1 + 1e-9)
        assert abs(exact(estimate) - truth) <= estimate_rtol * truth


@pytest.mark.parametrize("count", [1, 2, 3])
def test_spectral_profile_is_the_sum_over_all_outcomes(count):
    found = _deltas(_runs(), float(count), jnp.array(EPSILONS), "contour")
    assert found.method == "contour"
    truths = [_truth(e, count=count) for e in EPSILONS]
    _assert_contains(found, truths, 1e-11, 1e-13)


@pytest.mark.parametrize("chosen", range(3))
def test_certain_number_is_the_composition(chosen):
    probs = np.eye(3)[chosen]
    epsilons = (0.0, 0.5, 1.0, 2.0, -1.0)
    found = _deltas(_runs(probs=probs), 1.0, jnp.array(epsilons), "contour")
    truths = [_gaussian_delta(NOISE, STEPS[chosen], exact(e)) for e in epsilons]
    _assert_contains(found, truths, 1e-11, 1e-13)
    certain = _runs((9.0,), (1.0,))
    composed = fdp.Gaussian(NOISE).repeat(9.0)
    assert certain.epsilon(delta=1e-5) == composed.epsilon(delta=1e-5)


def test_tail_counts_as_disclosure():
    found = _deltas(
        _runs(probs=(0.5, 0.3, 0.2 - 1e-9), tail=1e-9), 2.0, jnp.array(EPSILONS)
    )
    truths = [
        _truth(e, probs=(0.5, 0.3, 0.2 - 1e-9), tail=1e-9, count=2) for e in EPSILONS
    ]
    _assert_contains(found, truths, 1e-11, 1e-13, truncated=2e-9)
    assert found.upper[3] > 2e-9 * (1 - 1e-8)


def test_epsilon_inverts_delta():
    deltas = (1e-5, 1e-15, 0.3)
    found = _epsilons(_runs(), jnp.array(deltas))
    for low, estimate, high, delta in zip(
        found.lower, found.estimate, found.upper, deltas, strict=True
    ):
        assert _truth(low) >= exact(delta) >= _truth(high)
        assert high - low < 1e-10 * (1 + abs(low))
        assert abs(_truth(estimate) / exact(delta) - 1) < 1e-12


@pytest.mark.parametrize("count", [1, 2])
def test_no_release_at_all_is_a_point_mass_that_the_grid_handles(count):
    steps, probs, tail = (0.0, 1.0, 16.0), (0.1, 0.5, 0.4 - 1e-12), 1e-12
    found = _deltas(
        _runs(steps, probs, tail), float(count), jnp.array(EPSILONS), "grid"
    )
    assert found.method == "grid"
    truths = [
        _truth(e, steps=steps, probs=probs, tail=tail, count=count) for e in EPSILONS
    ]
    _assert_contains(found, truths, 2e-5, 2e-7, truncated=count * tail)


@pytest.mark.parametrize(
    ("steps", "probs", "tail"),
    [
        (STEPS, PROBS, 0.0),
        ((0.0, 1.0, 16.0), (0.1, 0.5, 0.4 - 1e-12), 1e-12),
        ((0.0, 0.0, 9.0), (0.1, 0.9, 0.0), 0.0),
        ((2.5, 1e4), (1 - 1e-9, 1e-9), 0.0),
    ],
)
def test_one_random_number_in_closed_form(steps, probs, tail):
    runs = _runs(steps, probs, tail)
    found = runs.bounds(epsilon=jnp.array(EPSILONS))
    assert found.method == "closed_form"
    truths = [_truth(e, steps=steps, probs=probs, tail=tail) for e in EPSILONS]
    _assert_contains(found, truths, 2e-10, 1e-12, truncated=tail)
    for delta in (0.4, 1e-3, 1e-8):
        found = runs.bounds(delta=delta)
        ends = (
            _truth(x, steps=steps, probs=probs, tail=tail)
            for x in (found.lower, found.estimate, found.upper)
        )
        high, middle, low = ends
        assert low <= exact(delta) <= high + tail
        if middle > 0:
            assert abs(middle / exact(delta) - 1) < 1e-10


def test_rates_of_one_of_several_releases():
    """One threshold of the likelihood ratio rejects, whichever was told."""
    noise, scale, prob, share = (mp.mpf(x) for x in (1.25, 0.75, 0.125, 0.25))
    parts = fdp.PoissonSubsampled(fdp.Gaussian(1.25), 0.125), fdp.Laplace(0.75)
    either = fdp.RevealedMixture(parts, probs=[0.25, 0.75])

    def rates(loss):
        """Errors of either kind at a loss > 0, in the direction "remove"."""
        inner = mp.log((mp.exp(loss) - 1 + prob) / prob)
        x = mp.mpf(1) / 2 / noise + noise * inner
        alpha, power = mp.ncdf(-x), prob * mp.ncdf(1 / noise - x)
        power += (1 - prob) * alpha
        # Laplace(0, b) against Laplace(1, b) rejects beyond (1 + b loss) / 2.
        place = (1 + scale * loss) / 2
        tail = mp.exp(-place / scale) / 2
        other = 1 - mp.exp(-(1 - place) / scale) / 2
        if loss >= 1 / scale:
            tail, other = 0, 0
        return share * alpha + (1 - share) * tail, share * power + (1 - share) * other

    for loss in (0.25, 1.0, 1.25, 3.0):
        alpha, power = rates(mp.mpf(loss))
        found = either.remove.bounds(alpha=float(alpha))
        assert found.method == "closed_form"
        truth = 1 - power - mp.exp(loss) * (exact(float(alpha)) - alpha)
        assert abs(exact(found.estimate) - truth) < 1e-12
        assert exact(found.lower) - 1e-15 <= truth <= exact(found.upper) + 1e-15
        assert found.upper - found.lower < 1e-8
        delta = power - mp.exp(loss) * alpha
        found = either.remove.bounds(epsilon=loss)
        assert exact(found.lower) <= delta <= exact(found.upper)
        assert abs(exact(found.estimate) - delta) < 1e-12 * delta


def test_nothing_released():
    never = _runs((0.0, 0.0, 0.0))
    assert np.all(_deltas(never, 1.0, jnp.array(EPSILONS)).upper[:4] == 0)


def test_derivatives_under_vmap():
    """Of a number of mechanisms at once, in every parameter, along the simplex."""
    epsilon, step = 1.0, mp.mpf(10) ** -12
    noises = (4.0, 2.5)

    def log_delta(parameters):
        noise, steps, probs = parameters
        return _runs(steps, probs, noise=noise).log_delta(
            epsilon=epsilon, bound=fdp.Bound.ESTIMATE
        )

    many = [jnp.array([x, x]) for x in (STEPS, PROBS)]
    grads = jax.vmap(jax.grad(log_delta))((jnp.array(noises), *many))
    for i, noise in enumerate(noises):

        def log_truth(noise=noise, steps=STEPS, probs=PROBS):
            return mp.log(_truth_of(epsilon, noise=noise, steps=steps, probs=probs))

        def slope(name, point, j=None):
            ends = []
            for sign in (1, -1):
                moved = [mp.mpf(x) for x in point] if j is not None else point
                if j is None:
                    moved = mp.mpf(point) + sign * step
                else:
                    moved[j] += sign * step
                ends.append(log_truth(**{name: moved}))
            return float((ends[0] - ends[1]) / (2 * step))

        np.testing.assert_allclose(grads[0][i], slope("noise", noise), rtol=1e-9)
        for j in range(3):
            steps = slope("steps", STEPS, j)
            probs = slope("probs", PROBS, j)
            np.testing.assert_allclose(grads[1][i, j], steps, rtol=1e-9)
            np.testing.assert_allclose(grads[2][i, j], probs, rtol=1e-9)


def _truth_of(epsilon, *, noise, steps, probs):
    """The same of numbers that are no floats."""
    each = zip(steps, probs, strict=True)
    total = sum(probs)
    return sum(p / total * _gaussian_delta(noise, n, mp.mpf(epsilon)) for n, p in each)


def test_mixture_of_compositions_is_that_of_single_releases():
    parts = [fdp.Gaussian(NOISE).repeat(n) for n in STEPS]
    composed = fdp.RevealedMixture(parts, probs=PROBS)
    truths = [_truth(e) for e in EPSILONS]
    found = composed.using("contour").bounds(epsilon=np.array(EPSILONS))
    assert found.method == "contour"
    _assert_contains(found, truths, 1e-11, 1e-13)
    singles = [fdp.Gaussian(NOISE / n**0.5) for n in STEPS]
    mixture = fdp.RevealedMixture(singles, probs=PROBS)
    _assert_contains(mixture.bounds(epsilon=np.array(EPSILONS)), truths, 2e-5, 2e-7)


@jitted
def _added(mechanism):
    return mechanism.add.bounds(epsilon=1.5)


@pytest.mark.slow
def test_one_direction_of_dpsgd_with_a_random_number_of_steps():
    step = fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.01)
    steps, probs = (500.0, 1000.0, 1500.5), (0.25, 0.5, 0.25)
    runs = fdp.RandomRepeat(step, num_steps=steps, probs=probs)
    found, *parts = map(_added, (runs, *(step.repeat(n) for n in steps)))
    lower, upper = (
        sum(p * getattr(part, end) for p, part in zip(probs, parts, strict=True))
        for end in ("lower", "upper")
    )
    assert found.lower <= upper
    assert lower <= found.upper
    assert found.upper - found.lower < 1e-7 * found.upper
    assert upper - lower < 1e-7 * upper


def test_numbers_within_numbers_and_point_masses():
    """A random number of sessions with a random number of binary answers each."""
    answer = fdp.RandomizedResponse(0.3)
    session = fdp.RandomRepeat(answer, num_steps=[0, 2], probs=[0.25, 0.75])
    total = fdp.RandomRepeat(session, num_steps=[1, 2], probs=[0.4, 0.6])
    found = _deltas(total, 1.0, jnp.array([0.5]))
    # 0, 2 or 4 answers.
    weights = (0.4 * 0.25 + 0.6 / 16, 0.4 * 0.75 + 0.6 * 6 / 16, 0.6 * 9 / 16)
    each = [0.0]
    each += [
        float(answer.repeat(n).delta(epsilon=0.5, bound=fdp.Bound.ESTIMATE))
        for n in (2, 4)
    ]
    np.testing.assert_allclose(found.estimate[0], np.dot(weights, each), rtol=1e-9)
    assert found.lower[0] <= found.estimate[0] <= found.upper[0]
    assert found.upper[0] - found.lower[0] < 1e-8


# -------------------------------------------- fractions of infinitely divisible losses


def _poisson_delta(low, high, epsilon):
    counts = np.arange(200)
    p, q = (stats.poisson.pmf(counts, mean) for mean in (low, high))
    return np.sum(np.maximum(q - np.exp(epsilon) * p, 0))


@pytest.mark.parametrize(
    "form",
    [
        "told",
        "halves",
    ],
)
def test_fractional_numbers_of_counts(form):
    """Sums of counts are sufficient, so n counts are two with n times the means."""
    count = fdp.PoissonMechanism(1.0, 1.0)
    steps, probs, epsilon = [0.5, 1.5], [0.25, 0.75], 1.0
    there, back = (
        np.dot(probs, [_poisson_delta(n * a, n * b, epsilon) for n in steps])
        for a, b in ((1, 2), (2, 1))
    )
    run = {
        "told": lambda: fdp.RandomRepeat(count, num_steps=steps, probs=probs),
        "halves": lambda: fdp.RandomRepeat(
            count.repeat(0.5), num_steps=[1, 3], probs=probs
        ),
    }[form]()
    for side, truth in ((run.remove, there), (run.add, back)):
        found = side.bounds(epsilon=epsilon)
        assert found.lower <= truth <= found.upper
        assert found.upper - found.lower < 2e-9 * truth + 1e-13
        np.testing.assert_allclose(found.estimate, truth, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_derivatives_in_fractional_numbers():
    count = fdp.PoissonMechanism(1.0, 1.0)

    def delta(steps):
        run = fdp.RandomRepeat(count, num_steps=steps, probs=[0.25, 0.75])
        return run.remove.delta(epsilon=1.0, bound=fdp.Bound.ESTIMATE)

    found = jax.grad(delta)(jnp.asarray([0.5, 1.5]))
    h = 1e-5
    slopes = [
        (_poisson_delta(n + h, 2 * (n + h), 1) - _poisson_delta(n - h, 2 * (n - h), 1))
        / (2 * h)
        for n in (0.5, 1.5)
    ]
    np.testing.assert_allclose(found, np.multiply([0.25, 0.75], slopes), rtol=1e-6)


def _triplet_delta(time, epsilon):
    """Of s^2 = 0.5 and jumps 0.8 and -0.5: a Gaussian for every number of jumps."""
    deviation, total = np.sqrt(0.5 * time), 0.0
    rates, sizes = time * np.asarray([0.7, 0.3]), np.asarray([0.8, -0.5])
    drift = -np.sum(rates * np.expm1(sizes))
    for n in itertools.product(range(40), repeat=2):
        loss = drift + np.dot(n, sizes)
        p = np.prod(stats.poisson.pmf(n, rates))
        a = (loss - epsilon) / deviation
        total += p * np.exp(loss) * ndtr(a + deviation / 2)
        total -= p * np.exp(epsilon) * ndtr(a - deviation / 2)
    return total


def test_fractional_times_of_a_triplet():
    triplet = fdp.LevyTriplet(0.5, jumps=[0.8, -0.5], rates=[0.7, 0.3])
    run = fdp.RandomRepeat(triplet, num_steps=[0.5, 1.5], probs=[0.5, 0.5])
    found = run.remove.bounds(epsilon=1.0)
    truth = 0.5 * (_triplet_delta(0.5, 1.0) + _triplet_delta(1.5, 1.0))
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower < 1e-11
    np.testing.assert_allclose(found.estimate, truth, rtol=1e-11)


def test_random_times_of_a_subordinated_gaussian():
    """Its moments are finite in a strip only, a wider one for neither alternative."""

    def delta(shape, epsilon=1.0, scale=0.5):
        def value(mu):  # smooth at 0, as a function of mu = sqrt(t)
            gauss = ndtr(mu / 2 - epsilon / mu)
            gauss -= np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
            return 2 * mu * stats.gamma.pdf(mu**2, shape, scale=scale) * gauss

        return integrate.quad(value, 0, 6.5, epsabs=1e-16, limit=500)[0]

    member = fdp.levy.SubordinatedGaussian(2.0, 0.5)
    run = fdp.RandomRepeat(member, num_steps=(0.75, 1.5), probs=[0.5, 0.5])
    found = run.bounds(epsilon=1.0)
    truth = np.mean([delta(2 * n) for n in (0.75, 1.5)])
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower < 1e-8
    np.testing.assert_allclose(found.estimate, truth, rtol=1e-8)


def test_many_sizes_of_jumps_have_fractional_powers():
    """Nine jumps of one size each are one of nine times the rate."""
    split = fdp.LevyTriplet(0.5, jumps=[0.8] * 9, rates=[0.1] * 9)
    run = fdp.RandomRepeat(split, num_steps=[0.5, 1.5], probs=[0.5, 0.5])
    one = fdp.LevyTriplet(0.5, jumps=[0.8], rates=[0.9])
    truth = np.mean(
        [float(one.repeat(n).remove.delta(epsilon=1.0)) for n in (0.5, 1.5)]
    )
    np.testing.assert_allclose(run.remove.delta(epsilon=1.0), truth, rtol=1e-10)
