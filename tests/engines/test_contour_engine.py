"""The contour engine, as mechanisms ask it, against an inversion of its own kind.

The reference inverts the transform in NumPy, with Gauss rules for the nodes and a finer
step than is needed.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp

_REPLACE = fdp.NeighboringRelation.REPLACE_ONE
_GAUSS = np.polynomial.legendre.leggauss(24)


def _delta(noise, laws, count, epsilon, shift, *, step=0.05, reach=80.0):
    """Delta of a sum of equal releases, by the integral along Re z = shift > 0."""
    centers, p, q = map(np.asarray, laws)
    x, w = _GAUSS
    edges = np.arange(min(0, min(centers) * (1 + shift)) / noise - 14, 0, 0.5)
    edges = np.append(edges, np.arange(0, max(centers) * (1 + shift) / noise + 14, 0.5))
    widths = np.diff(edges)[:, None] / 2
    t = (edges[:-1, None] + widths * (1 + x)).ravel()
    w = (widths * w).ravel()
    d = centers[:, None] / noise
    rest = np.exp(d * t - d * d / 2) - 1
    log_p, log_q = np.log1p(p @ rest), np.log1p(q @ rest)
    g = (1 + shift) * log_q - shift * log_p - t * t / 2
    y = step * np.arange(reach / step)
    weights, losses = w * np.exp(g - g.max()) / np.sqrt(2 * np.pi), log_q - log_p
    moments = np.array([weights @ np.exp(1j * u * losses) for u in y])
    z = shift + 1j * y
    terms = moments**count * np.exp(count * g.max() - z * epsilon) / (z * (1 + z))
    terms[0] /= 2
    return step / np.pi * terms.real.sum()


_Q = 0.01
_LAWS = {
    "add or remove": ([0, 1], [1, 0], [1 - _Q, _Q]),
    "replace": ([-1, 0, 1], [_Q, 1 - _Q, 0], [0, 1 - _Q, _Q]),
    "group": ([0, 1, 2], [1, 0, 0], [(1 - _Q) ** 2, 2 * _Q * (1 - _Q), _Q**2]),
    "mixture": ([0, 1, 2], [1, 0, 0], [0.99, 0.009, 0.001]),
}


@functools.cache
def _mechanism(name):
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=_Q, num_steps=1000)
    made = {
        "add or remove": lambda: run.remove,
        "replace": lambda: fdp.DPSGD(
            noise_multiplier=1.0, sampling_prob=_Q, num_steps=1000, relation=_REPLACE
        ),
        "group": lambda: run.group(2).remove,
        "mixture": lambda: (
            fdp.MixtureOfGaussians(1.0, shifts=[0.0, 1, 2], probs=_LAWS["mixture"][2])
            .repeat(1000)
            .remove
        ),
    }
    return made[name]().using("contour")


@pytest.mark.parametrize("name", _LAWS)
@pytest.mark.parametrize(("epsilon", "shift"), [(1.5, 2.0), (2.2, 2.5)])
def test_delta_is_that_of_the_integral(name, epsilon, shift):
    exact = _delta(1.0, _LAWS[name], 1000, epsilon, shift)
    found = _mechanism(name).bounds(epsilon=epsilon)
    assert found.status == fdp.Status.TIGHT
    assert found.method == "contour"
    slack = 1e-9 * exact
    assert found.lower - slack <= exact <= found.upper + slack


@pytest.mark.parametrize("name", _LAWS)
def test_epsilon_is_that_of_the_integral(name):
    found = _mechanism(name).bounds(delta=1e-5)
    assert found.status == fdp.Status.TIGHT
    at = [
        _delta(1.0, _LAWS[name], 1000, float(x), 2.5)
        for x in (found.lower, found.estimate, found.upper)
    ]
    assert at[0] * (1 + 1e-9) >= 1e-5 >= at[2] * (1 - 1e-9)
    np.testing.assert_allclose(at[1], 1e-5, rtol=1e-9)


@pytest.mark.parametrize("size", [4, 8])
def test_large_groups_are_tight(size):
    # Weights of binomial counts down to 1e-24, and centers up to 13 deviations apart.
    places, rate = np.arange(size + 1), 1e-3
    counts = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in places]
    laws = places, np.eye(size + 1)[0], counts
    run = fdp.DPSGD(noise_multiplier=0.6, sampling_prob=rate, num_steps=10**4)
    found = run.group(size).remove.bounds(delta=1e-5)
    assert found.status == fdp.Status.TIGHT
    assert found.method == "contour"
    at = [
        _delta(0.6, laws, 10**4, float(x), 0.5, step=0.02)
        for x in (found.lower, found.estimate, found.upper)
    ]
    assert at[0] * (1 + 1e-9) >= 1e-5 >= at[2] * (1 - 1e-9)
    np.testing.assert_allclose(at[1], 1e-5, rtol=1e-8)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("noise", "rate", "count", "log_delta"),
    [
        (4.0, 3.3e-5, 33423, -16.0),
        (28.4, 2.5e-3, 510, -26.1),
        (8.9, 1.06e-4, 60999, -42.6),
        (6.3, 2.6e-5, 64768, -26.1),
    ],
)
def test_what_is_capped_is_what_the_grid_says(noise, rate, count, log_delta, direction):
    run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=rate, num_steps=count)
    run, delta = getattr(run, direction), np.exp(log_delta)
    one = run.using("contour", split=False).bounds(delta=delta)
    other = run.using("grid").bounds(delta=delta)
    assert one.status == fdp.Status.TIGHT
    assert one.lower <= other.upper
    assert other.lower <= one.upper
    back = run.using("contour").bounds(epsilon=float(one.estimate))
    assert back.status == fdp.Status.TIGHT
    np.testing.assert_allclose(back.estimate, delta, rtol=1e-7)


def test_parts_add_whatever_they_come_as():
    run = functools.partial(fdp.DPSGD, noise_multiplier=1.0, sampling_prob=_Q)
    whole = run(num_steps=100).using("contour").epsilon(delta=1e-6)
    parts = fdp.compose(run(num_steps=60), run(num_steps=40))
    np.testing.assert_allclose(
        parts.using("contour").epsilon(delta=1e-6), whole, rtol=1e-10
    )
    step = lambda s: fdp.PoissonSubsampled(fdp.Gaussian(s), _Q)
    steps = fdp.Schedule(step, jnp.ones(100))
    np.testing.assert_allclose(
        steps.using("contour").epsilon(delta=1e-6), whole, rtol=1e-10
    )


def test_derivatives_are_those_of_the_reference():
    def epsilon(noise, rate, steps):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=rate, num_steps=steps)
        return run.remove.using("contour").epsilon(delta=1e-5)

    at = 1.0, _Q, 1000.0
    slopes = jitted(jax.grad(epsilon, (0, 1, 2)))(*at)
    # 25 digits of the first are in tests/data.
    np.testing.assert_allclose(slopes[0], -3.822610264190116, rtol=1e-9)
    value = epsilon(*at)

    def moved(noise, rate, steps):
        laws = [0, 1], [1, 0], [1 - rate, rate]
        return np.log(_delta(noise, laws, steps, float(value), 2.5))

    differences = [
        (moved(*(np.array(at) + h)) - moved(*(np.array(at) - h))) / (2 * h.max())
        for h in np.diag([1e-4, 1e-6, 1e-1])
    ]
    # Of epsilon over those of log delta: the same factor for all parameters.
    np.testing.assert_allclose(
        np.array(slopes[1:]) / slopes[0],
        np.array(differences[1:]) / differences[0],
        rtol=1e-6,
    )


def test_slopes_of_what_is_not_certified_are_about_right():
    def epsilon(noise):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=0.46, num_steps=3)
        return run.remove.using("contour").epsilon(delta=1e-6)

    found, slope = jitted(jax.value_and_grad(epsilon))(0.32)
    assert found > 0
    ends = [float(epsilon(x)) for x in (0.317, 0.323)]
    np.testing.assert_allclose(slope, (ends[1] - ends[0]) / 0.006, rtol=0.3)


def test_noise_that_hides_every_step_still_adds_up():
    run = fdp.DPSGD(noise_multiplier=1e6, sampling_prob=0.01, num_steps=480)
    found = run.using("contour").bounds(delta=1e-12)
    assert found.status == fdp.Status.TIGHT
    # Next to the Gaussian of the same variance, by which it is less than one part in
    # a thousand.
    mu = 0.01 * np.sqrt(480) * 1e-6
    limit = fdp.Gaussian(1 / mu).epsilon(delta=1e-12)
    np.testing.assert_allclose(found.estimate, limit, rtol=1e-3)


def test_it_says_where_it_cannot_answer():
    many = fdp.GeneralizedGaussian(1.5, shape=1.4).repeat(3).using("contour")
    with pytest.raises(ValueError, match="contour"):
        many.epsilon(delta=1e-5)


def test_the_former_name_of_the_engine_warns():
    run = fdp.compose(fdp.Gaussian(2.0), fdp.Laplace(1.0))
    with pytest.warns(DeprecationWarning, match="contour"):
        former = run.using("spectral")
    assert former.epsilon(delta=1e-5) == run.using("contour").epsilon(delta=1e-5)


@pytest.mark.parametrize("count", [5, 29, 400])
def test_one_release_of_many_may_rule(count):
    """All weight at one shift is a Gaussian mechanism; the rare steps hardly count."""
    spread = fdp.MixtureOfGaussians(12.0, shifts=[0.0, 1.0], probs=[0.0, 1.0])
    rare = fdp.DPSGD(noise_multiplier=1e4, sampling_prob=1e-6, num_steps=29)
    both = fdp.compose(fdp.Gaussian(0.2), spread.repeat(count), rare)
    found = both.using("contour").bounds(delta=1e-9)
    truth = float(fdp.Gaussian((25 + count / 144) ** -0.5).epsilon(delta=1e-9))
    assert found.lower <= truth * (1 + 1e-13)
    assert truth <= found.upper * (1 + 1e-13)
    assert found.upper - found.lower <= 1e-10 * truth


@pytest.mark.parametrize("delta", [1e-3, 1e-15, 1e-25])
def test_epsilons_of_values_that_are_rounded_have_both_ends(delta):
    noise = fdp.SubordinatedGaussian(2.0, 3.0)
    found = noise.bounds(delta=delta)
    assert found.status == fdp.Status.TIGHT
    ends = noise.bounds(epsilon=np.asarray([found.lower, found.upper]))
    assert ends.upper[0] >= delta >= ends.lower[1]
