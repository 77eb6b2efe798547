"""Designs meet their targets and are those that are known to be best."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import functools
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax import design, targets

TARGET = targets.ApproxDP(epsilon=1.0, delta=1e-5)


def test_every_schedule_is_scaled_to_the_budget():
    for noise in ([1.0, 2.0, 4.0], [7.0, 0.5, 1.0]):
        schedule = fdp.Schedule(fdp.Gaussian, np.asarray(noise))
        scaled = fdp.scale_to_budget(schedule, TARGET)
        epsilon = float(scaled.epsilon(delta=1e-5))
        assert epsilon == pytest.approx(1.0, rel=1e-9)
        assert epsilon <= 1.0
        ratio = np.asarray(scaled.steps.noise_multiplier) / noise
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


def test_the_rest_of_a_budget():
    spent, rest = fdp.Gaussian(8.0).repeat(2), fdp.Gaussian().repeat(5)
    found = design.spend_rest(spent, rest, TARGET)
    alone = fdp.calibrate(fdp.Gaussian(), TARGET, solve_for="noise_multiplier")
    expected = (5 / (float(alone.value) ** -2 - 2 / 64)) ** 0.5
    assert float(found.value) == pytest.approx(expected, rel=1e-9)
    together = fdp.compose(spent, found.mechanism)
    assert 1 - 1e-9 < together.epsilon(delta=1e-5) <= 1.0
    with pytest.raises(fdp.UnreachableTarget, match="certified"):
        design.spend_rest(fdp.Gaussian(1.0), rest, TARGET)


BOTH = lambda m: [m.parts[0], m.parts[1]]


def _pair(log_ratio):
    return fdp.compose(fdp.Gaussian(1.0), fdp.Gaussian(jnp.exp(log_ratio)))


def _cost(log_ratio, scale):
    return jnp.log(scale**2 * (1 + 4 * jnp.exp(2 * log_ratio)))


@pytest.mark.slow
def test_two_noises_at_least_cost_and_a_front():
    """s1^2 + 4 s2^2 is least at s2^2 = s1^2 / 2, whatever the budget."""
    front = [targets.ApproxDP(epsilon=e, delta=1e-5) for e in (0.5, 1.0, 2.0)]
    found = design.pareto(_cost, _pair, 0.3, front, solve_for=BOTH)
    for one, target in zip(found, front, strict=True):
        assert one.converged
        assert one.gradient_norm < 1e-4
        assert math.exp(2 * one.params) == pytest.approx(0.5, rel=1e-4)
        assert one.mechanism.epsilon(delta=1e-5) <= target.epsilon
    costs = [float(one.cost) for one in found]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.slow
def test_batch_size_at_fixed_compute():
    """Effective noise s / b falls with the batch where steps are traded for it."""
    records, compute = 50_000, 2e6

    def family(log_batch):
        batch = jnp.exp(log_batch)
        return fdp.DPSGD(sampling_prob=batch / records, num_steps=compute / batch)

    def cost(log_batch, noise):
        # Gradient noise of the sample and of privacy, and too few steps.
        batch = jnp.exp(log_batch)
        return jnp.log((1 / batch + 400 * (noise / batch) ** 2) * batch**1.5)

    best = design.minimize(cost, family, math.log(500.0), TARGET)
    assert best.converged
    assert best.mechanism.epsilon(delta=1e-5) <= 1.0
    for log_batch in (best.params - 0.1, best.params + 0.1):
        other = fdp.calibrate(family(log_batch), TARGET, solve_for="noise_multiplier")
        assert cost(log_batch, other.value) > best.cost


# ------------------------------------------------------------------------------- noise


def _staircase_l1(epsilon):
    return math.exp(epsilon / 2) / math.expm1(epsilon)


def _staircase_l2(epsilon):
    b = math.exp(-epsilon)
    return (2 ** (-2 / 3) * (b * (1 + b)) ** (2 / 3) + b) / (1 - b) ** 2


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    ("cost", "known"), [(np.abs, _staircase_l1), (np.square, _staircase_l2)]
)
def test_pure_dp_gives_staircase_noise(cost, known, epsilon):
    """Geng et al. (2015): the least cost of all; a histogram comes near."""
    target = targets.ApproxDP(epsilon=epsilon, delta=0.0)
    best = design.optimal_noise(cost, target, num_bins=16)
    assert known(epsilon) * (1 - 1e-9) <= best.cost <= known(epsilon) * (1 + 2e-3)
    assert best.deltas[0] == 0
    log_density = np.log(best.density)
    for shift in range(1, 17):
        rise = np.abs(log_density[shift:] - log_density[:-shift])
        assert np.max(rise) <= epsilon * (1 + 1e-11)


def test_a_curve_of_two_pieces_and_its_mechanism():
    both = targets.AllOf(
        targets.ApproxDP(epsilon=1.0, delta=1e-2),
        targets.ApproxDP(epsilon=0.5, delta=0.1),
    )
    best = design.optimal_noise(np.square, both, num_bins=8, reach=5.0)
    alone = design.optimal_noise(np.square, both.targets[0], num_bins=8, reach=5.0)
    assert alone.cost <= best.cost
    for point, delta in zip(both.targets, best.deltas, strict=True):
        assert delta <= point.delta
        assert best.mechanism.delta(epsilon=point.epsilon) <= point.delta * (1 + 1e-9)
    assert np.sum(best.density) / 8 == pytest.approx(1.0, rel=1e-12)


@pytest.mark.slow
def test_noise_for_many_releases_is_learned():
    """Gaussian noise is nearly best (Dong, Su, Zhang 2021), wherever one starts."""
    target = targets.ApproxDP(epsilon=1.0, delta=1e-3)
    learn = functools.partial(
        design.learn_noise, np.square, target, num_steps=16, num_bins=2, num_knots=4
    )
    gauss = float(
        fdp.calibrate(
            fdp.Gaussian().repeat(16), target, solve_for="noise_multiplier"
        ).value
    )
    # Half a bin's width is in the histogram's variance.
    start = learn(max_num_steps=0)
    assert start.cost == pytest.approx(gauss**2 + 1 / 48, rel=1e-3)
    best = learn(start=np.asarray([2.0, 0.0, -1.0, -1.0]))
    assert 0.97 * gauss**2 < best.cost < start.cost
    assert best.mechanism.repeat(16).delta(epsilon=1.0) <= 1e-3 * (1 + 1e-9)
    # A shift by half the sensitivity leaks less.
    masses = np.append(best.density / 2, 0.0)
    half = fdp.FromProbabilities(masses, masses[::-1]).repeat(16)
    assert half.delta(epsilon=1.0) < 1e-3
    logs = np.log(best.density)
    assert np.all(np.diff(logs, 2) <= 1e-9)


def test_noise_out_of_reach():
    target = targets.ApproxDP(epsilon=0.01, delta=1e-6)
    with pytest.raises(fdp.UnreachableTarget, match="within reach"):
        design.optimal_noise(np.abs, target, num_bins=4, reach=2.0)
    pure = fdp.targets.ApproxDP(epsilon=1.0, delta=0.0)
    with pytest.raises(fdp.UnreachableTarget, match="at least 1 where delta is 0"):
        design.optimal_noise(np.abs, pure, num_bins=8, reach=0.5)
    with pytest.raises(TypeError, match="ApproxDP or AllOf"):
        design.optimal_noise(np.abs, targets.Advantage(0.1))


def test_an_optax_optimizer_finds_the_same_design():
    """Variances as 1 : 1/2, as in closed form; see `_cost`."""
    found = design.minimize(
        lambda log_ratio, s: s**2 * (1 + 4 * jnp.exp(2 * log_ratio)),
        _pair,
        0.0,
        TARGET,
        solve_for=lambda m: [part.noise_multiplier for part in m.parts],
        optimizer=optax.sgd(0.004),  # about 1 / curvature
        max_num_steps=8,
    )
    assert float(jnp.exp(2 * found.params)) == pytest.approx(0.5, rel=1e-3)
    assert found.mechanism.epsilon(delta=1e-5) <= 1.0
