"""The nodes of a curve, each seen from a contour of its own or with the law split."""

import dataclasses

import jax
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.curves import certainty, make_curve
from fdp_jax.losses import Method
from fdp_jax.mechanisms._resolve import resolve

# Few steps and little noise: the contour of a group's middle says nothing about some of
# its nodes, for the saddle point leaps between them.
RUN = fdp.DPSGD(noise_multiplier=0.56, sampling_prob=0.078, num_steps=1500)


@pytest.fixture(scope="module")
def curve():
    return RUN.curve()


def test_no_node_is_lost_for_its_neighbours(curve):
    assert not np.any(certainty(curve).status)


@pytest.mark.parametrize("side", ["remove", "add"])
def test_nodes_have_the_values_of_contours_of_their_own(curve, side):
    half = getattr(curve, side)
    nodes = np.arange(half.epsilon_grid.size // 2, half.epsilon_grid.size, 8)
    nodes = nodes[half.log_delta_grid.estimate[nodes] > -70]
    own = getattr(RUN, side).bounds(epsilon=half.epsilon_grid[nodes])
    delta = np.exp(half.log_delta_grid.estimate[nodes])
    np.testing.assert_allclose(delta, own.estimate, rtol=1e-7, atol=1e-300)
    assert np.all(np.exp(half.log_delta_grid.lower[nodes]) <= own.upper)
    assert np.all(np.exp(half.log_delta_grid.upper[nodes]) >= own.lower)


# Contours leave most of its nodes loose: the law has to be split for these.
RARE = fdp.DPSGD(noise_multiplier=1.4, sampling_prob=0.0028, num_steps=138)


@pytest.fixture(scope="module")
def rare_curve():
    return RARE.curve(num_points=65)


@pytest.mark.parametrize("side", ["remove", "add"])
def test_nodes_served_by_the_split_of_another_one_hold_what_their_own_says(
    rare_curve, side
):
    certain = certainty(rare_curve)
    assert not np.any(certain.status[certain.estimate > 1e-250])
    half = getattr(rare_curve, side)
    nodes = np.arange(half.epsilon_grid.size // 2, half.epsilon_grid.size - 1, 8)
    nodes = nodes[half.log_delta_grid.estimate[nodes] > -70]
    own = getattr(RARE, side).bounds(epsilon=half.epsilon_grid[nodes])
    lower, upper = (
        np.exp(np.asarray(x)[nodes])
        for x in (half.log_delta_grid.lower, half.log_delta_grid.upper)
    )
    assert np.all(lower <= own.upper)
    assert np.all(upper >= own.lower)
    estimate = np.exp(half.log_delta_grid.estimate[nodes])
    np.testing.assert_allclose(estimate, own.estimate, rtol=1e-7, atol=1e-300)


def _unsplit(mechanism, num_points):
    subject = resolve(mechanism).first
    method = Method(split=False)
    composed = dataclasses.replace(subject.composed, method=method)
    return make_curve(composed, np.linspace(0.0, 1.0, num_points))


def _width(found):
    return np.asarray(found.upper) - np.asarray(found.lower)


def test_split_laws_say_of_a_fractional_number_of_steps_what_delta_is_at_most():
    part = dataclasses.replace(RARE, sampling_prob=1e-4, num_steps=2000.5)
    whole, split = _unsplit(part, 9).remove, part.curve(num_points=9).remove
    # Programs of their own: rounded differently.
    np.testing.assert_allclose(whole.epsilon_grid, split.epsilon_grid, rtol=1e-13)
    known, found = whole.log_delta_grid, split.log_delta_grid
    loose = _width(known) > 1e-6
    assert np.any(loose & (np.asarray(found.upper) < np.asarray(known.upper)))
    assert np.all(np.asarray(found.upper) <= np.asarray(known.upper) + 1e-6)


STEPS = np.array([138.0, 400.0])


def _rare_beta(num_steps):
    run = dataclasses.replace(RARE, num_steps=num_steps)
    return run.curve(num_points=17).bounds(alpha=0.1)


def test_curves_of_runs_can_be_traced_in_batches():
    """Searches may hold on to no arrays: JAX does not batch what does."""
    found = jax.eval_shape(jax.vmap(_rare_beta), STEPS)
    assert found.upper.shape == STEPS.shape


@pytest.mark.slow
def test_curves_of_runs_come_in_batches():
    found = jax.jit(jax.vmap(_rare_beta))(STEPS)
    for index, steps in enumerate(STEPS):
        alone = _rare_beta(steps)
        # Ends are as far off as a search's last step.
        for name, rtol in {"lower": 1e-9, "estimate": 1e-12, "upper": 1e-9}.items():
            np.testing.assert_allclose(
                getattr(found, name)[index], getattr(alone, name), rtol=rtol
            )
