"""The warning of answers that are not tight."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax.curves import _doubts

RUNS = fdp.Laplace(1.0).repeat(40)
LOOSE = RUNS.using("grid", points=1 << 10)
DELTAS = np.asarray([1e-3, 1e-4])


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch):
    monkeypatch.setattr(_doubts, "_SEEN", set())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def test_a_loose_answer_names_its_bracket_and_what_to_do():
    found = LOOSE.bounds(delta=1e-3)
    assert found.status == fdp.Status.LOOSE
    with pytest.warns(fdp.LooseBoundWarning) as seen:
        value = LOOSE.epsilon(delta=1e-3)
    assert value == found.upper
    (warning,) = seen
    text = str(warning.message)
    assert text.startswith("epsilon is certified to lie in [")
    assert f"[{float(found.lower):.6g}, {float(found.upper):.6g}] only, LOOSE" in text
    assert "bounds(delta=...)" in text
    assert 'using("grid", points=' in text
    assert "\n" not in text
    # It points to the line that asked.
    assert warning.filename == __file__


def _asked_on_two_lines():
    LOOSE.epsilon(delta=1e-3)
    LOOSE.epsilon(delta=1e-3, bound="estimate")


def test_each_line_hears_it_once():
    with pytest.warns(fdp.LooseBoundWarning) as seen:
        [LOOSE.epsilon(delta=delta) for delta in DELTAS]
    assert len(seen) == 1
    with pytest.warns(fdp.LooseBoundWarning) as seen:
        _asked_on_two_lines()
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("epsilon", {"delta": DELTAS}),
        ("delta", {"epsilon": 1.0}),
        ("beta", {"alpha": 0.1}),
        ("tpr", {"fpr": 1e-5}),
        ("bayes_error", {"prior": 0.4}),
    ],
)
def test_every_query_says_it(name, query):
    with pytest.warns(fdp.LooseBoundWarning, match=f"^{name} is certified") as seen:
        getattr(LOOSE, name)(**query)
    (argument,) = query
    assert f"bounds({argument}=...)" in str(seen[0].message)
    counted = "(2 of 2 values)" in str(seen[0].message)
    assert counted == (name == "epsilon")


def test_nothing_certified_is_said_too():
    lower, estimate, upper = (jnp.asarray([0.2, x]) for x in (0.0, 0.5, jnp.inf))
    status = jnp.asarray([fdp.Status.TIGHT, fdp.Status.VACUOUS])
    bounds = fdp.Bounds(lower, estimate, upper, status)
    with pytest.warns(fdp.LooseBoundWarning) as seen:
        _doubts.warn_of_loose("epsilon", bounds)
    assert "[0, inf] only, VACUOUS (1 of 2 values)" in str(seen[0].message)


@pytest.mark.filterwarnings("error")
def test_what_is_tight_or_traced_or_asked_with_both_ends_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fdp.Gaussian(1.0).epsilon(delta=DELTAS)
        LOOSE.bounds(delta=1e-3)
        LOOSE.epsilon(delta=1e-3, bound="optimistic")
        jitted(lambda d: LOOSE.epsilon(delta=d))(1e-3)
        jax.vmap(lambda d: LOOSE.epsilon(delta=d))(DELTAS)
        # By their nature these are no better than that, whatever is done.
        fdp.ZCDP(0.5).epsilon(delta=1e-5)
        RUNS.curve(num_points=9).epsilon(delta=1e-3)
