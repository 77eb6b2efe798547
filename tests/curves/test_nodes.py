"""The nodes of a curve, which share contours where these reach far enough."""

import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.curves import certainty

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
    own = getattr(RUN, side).bounds(epsilon=half.epsilon_grid[nodes])
    delta = np.exp(half.log_delta_grid.estimate[nodes])
    np.testing.assert_allclose(delta, own.estimate, rtol=1e-7, atol=1e-300)
    assert np.all(np.exp(half.log_delta_grid.lower[nodes]) <= own.upper)
    assert np.all(np.exp(half.log_delta_grid.upper[nodes]) >= own.lower)
