"""Steps with so little noise that outputs tell who took part."""

import jax
import mpmath as mp
import pytest

import fdp_jax as fdp
from fdp_jax import Status

RUNS = [(0.03, 0.01), (0.02, 0.3), (0.05, 0.1), (0.03, 0.7), (0.02, 0.97)]


def _run(noise, prob, steps):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


def _above(x, mean, s):
    return mp.erfc((x - mean) / (s * mp.sqrt(2))) / 2


def _one_step(s, q, epsilon):
    """delta of one step, "remove": a half-line attains it."""
    ratio = (mp.exp(epsilon) - (1 - q)) / q
    if ratio <= 0:
        return 1 - mp.exp(epsilon)
    x = mp.mpf(1) / 2 + s * s * mp.log(ratio)
    return q * _above(x, 1, s) + (1 - q - mp.exp(epsilon)) * _above(x, 0, s)


def _two_steps(s, q, epsilon):
    """The mean of one step's delta over the loss of the other one."""
    s, q, epsilon = map(mp.mpf, (s, q, epsilon))
    loss = lambda x: mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * s * s)))

    def given(mean, weight):
        value = lambda z: mp.npdf(z) * _one_step(s, q, epsilon - loss(mean + s * z))
        places = {-14, -8, -4, -2, -1, 0, 1, 2, 4, 8, 14}
        for level in (0, mp.log(1 - q), mp.log(q) + 1 / (2 * s * s)):
            z = ((epsilon - level - mp.log(q)) * s * s + 0.5 - mean) / s
            near = (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 6, 10)
            places |= {z + d for d in near} | {z - d for d in near}
        ends = sorted(x for x in places if abs(x) <= 14)
        # Smooth between these, so that it takes a third of the default's nodes.
        return weight * mp.quad(value, ends, method="gauss-legendre")

    return given(0, 1 - q) + given(1, q)


@pytest.mark.parametrize("share", [0.3, 0.45, 0.55, 1.02])
@pytest.mark.parametrize(("noise", "prob"), RUNS)
def test_two_steps_are_those_of_an_integral(noise, prob, share):
    epsilon = share / noise**2
    with mp.workdps(30):
        truth = _two_steps(noise, prob, epsilon)
        found = _run(noise, prob, 2).remove.bounds(epsilon=epsilon)
        assert float(found.lower) <= truth <= float(found.upper)
    assert found.status == Status.TIGHT
    assert found.estimate == pytest.approx(float(truth), rel=1e-10)


@pytest.mark.parametrize("share", [0.1, 0.9, 1.001])
@pytest.mark.parametrize(("noise", "prob"), RUNS)
def test_who_adds_a_record_learns_that_it_was_never_there(noise, prob, share):
    with mp.workdps(30):
        log_never = 7 * mp.log(1 - mp.mpf(prob))
        epsilon = float(-share * log_never)
        truth = float(max(0, 1 - mp.exp(epsilon + log_never)))
    found = _run(noise, prob, 7).add.bounds(epsilon=epsilon)
    assert found.estimate == pytest.approx(truth, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("query", [{"delta": 1e-5}, {"delta": 1e-12}, {"alpha": 0.1}])
def test_another_engine_agrees(query):
    run = _run(0.05, 0.5, 50)
    found, other = (x.bounds(**query) for x in (run, run.using("contour")))
    assert found.method.startswith("closed_form")
    assert found.lower <= other.upper
    assert other.lower <= found.upper
    assert found.estimate == pytest.approx(float(other.estimate), rel=1e-7)


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 5e-3, 0.04])
@pytest.mark.parametrize(
    ("prob", "steps"), [(0.01, 10), (1e-6, 1e6), (0.5, 100), (0.7, 10), (0.9, 500)]
)
def test_every_small_noise_has_a_tight_answer(noise, prob, steps):
    run = _run(noise, prob, steps)
    found = run.bounds(delta=1e-5)
    assert found.status == Status.TIGHT
    # No more than with every record in every step, or with each told where it is.
    assert found.upper <= fdp.Gaussian(noise).repeat(steps).epsilon(delta=1e-5)
    assert run.advantage() == pytest.approx(1 - (1 - prob) ** steps, rel=1e-6)


@pytest.mark.parametrize("rest", [1e-3, 1e-7, 1e-13])
@pytest.mark.parametrize("steps", [2, 50])
def test_nearly_every_record_in_every_step(rest, steps):
    # With the whole data but for a chance of at most steps * rest.
    whole = fdp.Gaussian(0.01).repeat(steps)
    found = _run(0.01, 1 - rest, steps).bounds(delta=0.1)
    assert found.lower <= whole.epsilon(delta=0.1)
    assert found.upper >= whole.epsilon(delta=0.1 + steps * rest, bound="optimistic")


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("prob", [0.5, 0.6])
def test_slopes_are_those_of_another_engine(index, prob):
    at = (0.05, prob, 50.0)
    slope = lambda view: jax.grad(
        lambda *x: view(_run(*x)).epsilon(delta=1e-5, bound="estimate"), argnums=index
    )(*at)
    other = slope(lambda run: run.using("contour"))
    assert slope(lambda run: run) == pytest.approx(float(other), rel=1e-6)


def test_slope_in_the_number_of_steps_lies_between_the_differences():
    epsilon = lambda n: _run(0.01, 0.01, n).epsilon(delta=1e-5, bound="estimate")
    before, here, after = (float(epsilon(n)) for n in (9.0, 10.0, 11.0))
    assert after - here < jax.grad(epsilon)(10.0) < here - before
