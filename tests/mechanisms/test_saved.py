"""What is written by Equinox and read back is the same mechanism, or refused."""

import dataclasses
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp

RELATIONS = tuple(fdp.NeighboringRelation)
ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT = RELATIONS
RUN = {"noise_multiplier": 1.5, "sampling_prob": 0.1, "num_steps": 10.0}


def _read_back(saved, template):
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, saved)
    file.seek(0)
    return eqx.tree_deserialise_leaves(file, template)


def _run(relation):
    return fdp.DPSGD(**RUN, relation=relation)


MAKERS = {
    "alone": _run,
    "responses": lambda relation: fdp.RandomizedResponse(1.0, relation=relation),
    "triplet": lambda relation: fdp.LevyTriplet(
        0.5, jumps=[1.0, 2.0], rates=[0.1, 0.2], relation=relation
    ),
    "composed": lambda relation: fdp.compose(
        _run(relation), fdp.Laplace(2.0, relation=relation).repeat(3)
    ),
    "revealed": lambda relation: fdp.RevealedMixture(
        [fdp.Gaussian(1.0, relation=relation), fdp.Laplace(2.0, relation=relation)],
        probs=[0.5, 0.5],
    ),
    "random": lambda relation: fdp.RandomRepeat(
        fdp.Gaussian(1.0, relation=relation), num_steps=[1, 2], probs=[0.5, 0.5]
    ),
    "schedule": lambda relation: fdp.Schedule(
        lambda s: fdp.Gaussian(s, relation=relation), np.asarray([1.0, 2.0])
    ),
}


@pytest.mark.parametrize("saved", RELATIONS)
@pytest.mark.parametrize("template", RELATIONS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_another_relation_is_refused(make, saved, template):
    written, blank = make(saved), make(template)
    if saved is template:
        found = _read_back(written, jax.tree.map(lambda x: 0 * x, blank))
        assert found.relation is saved
        assert eqx.tree_equal(found, written)
        return
    # Equinox names the leaf; the errors are its own (two kinds, one for each end).
    with pytest.raises((RuntimeError, ValueError, EOFError)):
        _read_back(written, blank)


OTHERS = {
    "monotonic": [
        fdp.ExponentialMechanism(1.0, monotonic=x) for x in (False, True)
    ],
    "categories": [
        fdp.KaryRandomizedResponse(1.0, num_categories=k) for k in (3, 4)
    ],
    "groups": [fdp.Laplace(2.0).repeat(1).group(k) for k in (2, 3)],
    "trees": [fdp.MatrixMechanism.tree(2.0, 8, restart_every=r) for r in (4, 8)],
    "sampled groups": [_run(ADD_OR_REMOVE_ONE).group(k) for k in (2, 3)],
}  # fmt: skip


@pytest.mark.parametrize("pair", OTHERS.values(), ids=OTHERS.keys())
def test_other_options_are_told_apart_too(pair):
    for saved, template in (pair, pair[::-1]):
        assert eqx.tree_equal(_read_back(saved, saved), saved)
        if jax.tree.structure(saved) == jax.tree.structure(template):
            continue  # no option is left: the numbers say it all
        with pytest.raises((RuntimeError, ValueError, EOFError)):
            _read_back(saved, template)


def test_the_default_leaves_nothing_behind():
    for mechanism in (_run(ADD_OR_REMOVE_ONE), fdp.RandomizedResponse(1.0)):
        assert all(np.shape(x) == () for x in jax.tree.leaves(mechanism))


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_mark_is_in_nobodys_way(relation):
    noise = jnp.asarray([1.0, 2.0])
    make = lambda s: fdp.Gaussian(s, relation=relation)
    made = jax.vmap(make)(noise)
    ask = lambda m: m.epsilon(delta=1e-5)
    expected = jnp.stack([ask(make(s)) for s in (1.0, 2.0)])
    np.testing.assert_allclose(jax.vmap(ask)(made), expected, rtol=1e-12)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), make(1.0), make(2.0))
    np.testing.assert_allclose(jax.jit(jax.vmap(ask))(stacked), expected, rtol=1e-12)
    slope = jax.grad(ask)(make(2.0))
    assert slope.noise_multiplier < 0
    moved = jax.tree.map(lambda x, y: x - y, make(2.0), slope)
    assert moved.relation is relation
    assert ask(moved) < expected[1]
    changed = dataclasses.replace(make(2.0), noise_multiplier=1.0)
    assert ask(changed) == expected[0]
    assert eqx.tree_equal(changed, make(1.0))
    swapped = dataclasses.replace(make(1.0), relation=ZERO_OUT)
    assert eqx.tree_equal(swapped, fdp.Gaussian(1.0, relation=ZERO_OUT))


def test_the_mark_is_no_parameter_to_solve_for():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
    run = fdp.DPSGD(sampling_prob=0.1, num_steps=10, relation=ZERO_OUT)
    with pytest.raises(ValueError, match="solve_for must be one of") as raised:
        fdp.calibrate(run, target, solve_for="relation")
    assert "_static" not in str(raised.value)
    assert repr(run) == repr(run).replace("_static_options", "")
