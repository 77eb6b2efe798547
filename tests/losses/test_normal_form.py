"""The closed form of one release of two normal mixtures, against exact numbers."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax.engines._closed_form_engine import closed_profile
from fdp_jax.losses._normal_form import NormalForm, NormalPair

Q = {"tiny": mp.mpf(10) ** -12, "some": mp.mpf("0.03"), "most": 1 - mp.mpf(10) ** -7}


def _without_one(q):
    return [0, 1], [1, 0], [1 - q, q]


def _one_added(q):
    return [0, -1], [1 - q, q], [1, 0]


def _replaced(q):
    return [-0.5, 0, 0.5], [q, 1 - q, 0], [0, 1 - q, q]


def _displaced(q):
    return [0, 1, 2], [1 - q, q, 0], [1 - q, 0, q]


def _group(q):
    logs = [mp.binomial(3, j) * q**j * (1 - q) ** (3 - j) for j in range(4)]
    return list(range(-3, 4)), logs[::-1] + [0] * 3, [0] * 3 + logs


def _mixture(q):
    # A center of P's once more, one next to it, and one far away.
    return [0, 0, 1e-6, 3], [1, 0, 0, 0], [0, (1 - q) / 2, (1 - q) / 2, q]


def _mixture_added(q):
    locations, p, weights = _mixture(q)
    return [-x for x in locations], weights, p


PAIRS = (
    _without_one,
    _one_added,
    _replaced,
    _displaced,
    _group,
    _mixture,
    _mixture_added,
)


def _tail(z):
    return mp.erfc(z / mp.sqrt(2)) / 2


def _exact(pair, noise, epsilon):
    """Delta by bisection for the threshold, whatever is cancelled."""
    locations, p, q = ([mp.mpf(x) for x in part] for part in pair)
    noise, factor = mp.mpf(noise), mp.exp(mp.mpf(epsilon))
    weights = [b - factor * a for a, b in zip(p, q, strict=True)]
    if not any(weight > 0 for weight in weights):
        return mp.mpf(0)

    def sign(x):
        terms = zip(weights, locations, strict=True)
        return sum(w * mp.exp(c * (x - c / 2) / noise**2) for w, c in terms)

    low, high = mp.mpf(-1), mp.mpf(1)
    while sign(low) > 0:
        low *= 2
    while sign(high) <= 0:
        high *= 2
        if high > 1e30:  # as both laws have the last center
            return mp.mpf(0)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (low, middle) if sign(middle) > 0 else (middle, high)
    terms = zip(weights, locations, strict=True)
    return sum(w * _tail((high - c) / noise) for w, c in terms)


@jitted
def _profile(noise, locations, log_p, log_q, epsilons):
    pair = NormalPair.of(noise, locations, log_p, log_q)
    form = NormalForm.of(pair, pair.exchanged(), jnp.ones(()))
    return closed_profile(form, epsilons)


def _logs(weights):
    return jnp.asarray([float(mp.log(x)) if x else -np.inf for x in weights])


@pytest.mark.parametrize("share", Q)
@pytest.mark.parametrize("make", PAIRS)
def test_a_profile_is_within_its_bounds(make, share):
    with mp.workdps(45):
        pair = make(Q[share])
        locations = jnp.asarray([float(x) for x in pair[0]])
        for noise in (0.05, 0.7, 1e4):
            epsilons = [0.0, 1e-13, 0.8, 1 / noise]
            found = _profile(
                jnp.asarray(noise),
                locations,
                _logs(pair[1]),
                _logs(pair[2]),
                jnp.asarray(epsilons),
            )
            for i, epsilon in enumerate(epsilons):
                exact = _exact(pair, noise, epsilon)
                log = mp.log(exact) if exact > 0 else None
                delta, rest = (
                    [float(x[i]) for x in (b.lower, b.estimate, b.upper)]
                    for b in (found.log_delta, found.log_rest)
                )
                assert rest[0] <= mp.log(1 - exact) <= rest[2]
                if log is None:
                    assert delta[0] < -1e30
                    continue
                assert delta[0] <= log <= delta[2]
                if delta[0] > -np.inf:
                    assert abs(delta[1] - log) < 1e-12 * (1 + abs(log))


def _step(scheme, relation, noise=0.8):
    return fdp.DPSGD(
        noise_multiplier=noise, sampling=scheme, num_steps=1, relation=relation
    )


def test_a_record_of_a_fixed_batch_that_is_zeroed_out():
    step = _step(fdp.sampling.FixedSize(prob=0.1), "zero_out")
    q = mp.mpf("0.1")
    above, below = _displaced(q), _without_one(q)
    # Below zero by the exchanged pair: delta(-e) = 1 - e^-e + e^-e delta(e).
    log = -0.05
    with mp.workdps(30):
        first = float(_exact(above, 0.8, 1.0))
        second = _exact(below, 0.8, -log)
        second = float(1 - mp.exp(log) + mp.exp(log) * second)
    for epsilon, exact in ((1.0, first), (log, second)):
        found = step.remove.bounds(epsilon=epsilon)
        assert found.lower <= exact <= found.upper
        assert float(found.estimate) == pytest.approx(exact, rel=1e-12)
        assert float(step.remove.epsilon(delta=exact)) == pytest.approx(epsilon)


@pytest.mark.parametrize(
    "relation", [pytest.param("zero_out", marks=pytest.mark.slow), "replace_one"]
)
def test_slopes_are_those_of_differences(relation):
    scheme = fdp.sampling.TruncatedPoisson(0.1, batch_size=4, dataset_size=30)

    def epsilon(noise):
        return _step(scheme, relation, noise).epsilon(delta=1e-6)

    h = 1e-5
    slope = (epsilon(0.8 + h) - epsilon(0.8 - h)) / (2 * h)
    assert float(jax.grad(epsilon)(0.8)) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_slopes_of_a_threshold_are_numbers(epsilon):
    # Of no center in common at zero, and beyond the largest loss.
    def log_delta(noise, epsilon, make):
        locations, p, q = make(mp.mpf("0.1"))
        places = jnp.asarray([float(x) for x in (*locations, 2 * locations[-1])])
        pair = NormalPair.of(noise, places, _logs([*p, 0]), _logs([*q, 0]))
        return NormalForm.of(pair, pair.exchanged(), jnp.ones(())).logs(epsilon)

    of_one = lambda noise, e: log_delta(noise, e, _one_added)
    slope = jitted(jax.jacfwd(of_one, (0, 1)))(0.8, epsilon)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(slope))
    delta, _, alpha = jitted(lambda e: log_delta(0.8, e, _replaced))(epsilon)
    slope = jitted(jax.grad(lambda e: log_delta(0.8, e, _replaced)[0]))(epsilon)
    # d delta / d eps = -e^eps P(X > eps).
    if epsilon > 0:
        assert float(slope) == pytest.approx(-float(jnp.exp(epsilon + alpha - delta)))


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_slopes_at_thresholds_beyond_the_range_of_numbers(noise):
    """With e^epsilon beyond all numbers, too."""

    def epsilon(s):
        def log_delta(e):
            d, far = 1 / s, mp.log(2 * mp.exp(e) - 1)
            t = far / d + d / 2
            delta = (mp.ncdf(d - t) + mp.ncdf(-t)) / 2
            return mp.log(delta - mp.exp(e) * mp.ncdf(-t))

        aim = lambda e: log_delta(e) - mp.log(mp.mpf(1e-5))
        return mp.findroot(aim, (start, start * 1.001))

    def run(s):
        mixture = fdp.MixtureOfGaussians(s, shifts=[0.0, 1.0], probs=[0.5, 0.5])
        return mixture.epsilon(delta=1e-5)

    with mp.workdps(80), jax.enable_x64(True):
        start, found = map(float, jax.value_and_grad(run)(noise))
        h = mp.mpf(10) ** -20
        slope = (epsilon(noise + h) - epsilon(noise - h)) / (2 * h)
        assert found == pytest.approx(float(slope), rel=1e-9)
