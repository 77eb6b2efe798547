"""What is printed: values, relation, sampling and status, in a line where it fits."""

import dataclasses
import inspect
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_options import MADE

import fdp_jax as fdp
from fdp_jax._internal import _show
from fdp_jax.curves import Bounds
from fdp_jax.tradeoff.closed import closed_form

RUN = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=1000)
F = fdp.tradeoff.Gaussian(1.0)
ENDS = jnp.asarray(0.1), jnp.asarray(0.2), jnp.asarray(1 / 3)
BOUNDS = Bounds(*ENDS, jnp.asarray(fdp.Status.LOOSE), "grid")
TEXTS = {
    "DPSGD(\n  noise_multiplier=1.1, sampling_prob=0.01, num_steps=1000, "
    "relation=ADD_OR_REMOVE_ONE\n)": RUN,
    "Laplace(noise_multiplier=2, relation=ZERO_OUT)": fdp.Laplace(
        2.0, relation="zero_out"
    ),
    "Gaussian(noise_multiplier=None, relation=ADD_OR_REMOVE_ONE)": fdp.Gaussian(),
    "Gaussian(noise_multiplier=1, relation=ADD_OR_REMOVE_ONE).add": fdp.Gaussian(1).add,
    "Gaussian(noise_multiplier=1, relation=ZERO_OUT).using('grid', points=1024)": (
        fdp.Gaussian(1.0, relation="zero_out").using("grid", points=1024)
    ),
    "PerfectPrivacy(relation=REPLACE_ONE)": fdp.PerfectPrivacy(relation="replace_one"),
    "ApproxDP(epsilon=1, delta=1e-05, relation=ADD_OR_REMOVE_ONE)": fdp.ApproxDP(
        epsilon=1.0, delta=1e-5
    ),
    "targets.ApproxDP(epsilon=1, delta=1e-05)": fdp.targets.ApproxDP(
        epsilon=1.0, delta=1e-5
    ),
    "tradeoff.ApproxDP(epsilon=1, delta=1e-05)": fdp.tradeoff.ApproxDP(
        epsilon=1.0, delta=1e-5
    ),
    "sampling.FixedSize(batch_size=10, dataset_size=100)": fdp.sampling.FixedSize(
        batch_size=10, dataset_size=100
    ),
    "Composition(\n  parts=(Gaussian(noise_multiplier=8),), num_steps=(9,), "
    "relation=ADD_OR_REMOVE_ONE\n)": fdp.Gaussian(8.0).repeat(9),
    "Accountant(\n  history=((Laplace(noise_multiplier=1), 2),), capacity=16, "
    "relation=ADD_OR_REMOVE_ONE\n)": fdp.Accountant().step(fdp.Laplace(1.0), 2),
    "accounting.GaussianFilter(budget=4, spent=0, relation=ADD_OR_REMOVE_ONE)": (
        fdp.accounting.GaussianFilter(mu=2.0)
    ),
    "Bounds(lower=0.1, estimate=0.2, upper=0.3333333334, status=LOOSE, "
    "method='grid')": BOUNDS,
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text):
    found = TEXTS[text]
    assert repr(found) == str(found) == text


def _public_instances():
    for space in (fdp, fdp.tradeoff, fdp.targets, fdp.sampling):
        for name in dir(space):
            kind = getattr(space, name)
            if not inspect.isclass(kind) or not hasattr(kind, "_shown"):
                continue
            if inspect.isabstract(kind) or name in ("Bounds", "Calibration"):
                continue
            for arguments in (MADE.get(name, {}), {}):
                for first in ((), (1.0,), (F,), (0.5, 0.1)):
                    try:
                        yield name, kind(*first, **arguments)
                    except (TypeError, ValueError):
                        continue


def test_no_public_object_hides_its_values():
    seen = set()
    for name, one in _public_instances():
        seen.add(name)
        text = repr(one)
        assert "(numpy)" not in text, text
        assert "object at 0x" not in text, text
        flat = " ".join(text.split()).replace("( ", "(").replace(" )", ")")
        assert ("\n" in text) == (len(flat) > _show.WIDTH), text
        if isinstance(one, fdp.AbstractMechanism):
            assert f"relation={one.relation.name}" in text
            assert text.count("relation=") == 1
    assert len(seen) > 40


def test_traced_numbers_are_said_to_be_traced():
    texts = []
    show = lambda s: (texts.append(repr(fdp.Gaussian(s))), s)[1]
    jax.jit(show)(jnp.ones(()))
    jax.vmap(show)(jnp.ones(3))
    jax.jit(lambda x: (texts.append(repr(fdp.Schedule(fdp.Gaussian, x))), x)[1])(
        jnp.ones(3)
    )
    inner = "noise_multiplier=traced f64[]"
    assert all(inner in text for text in texts[:2])
    assert "noise_multiplier=traced f64[3]" in texts[2]
    accountant = jax.jit(
        lambda s: (texts.append(repr(fdp.Accountant().step(fdp.Gaussian(s)))), s)[1]
    )
    accountant(1.0)
    assert texts[3].startswith("Accountant(history=traced")


def test_arrays_show_their_shape_and_a_few_entries():
    text = repr(fdp.Schedule(fdp.Gaussian, jnp.linspace(9.0, 5.0, 20)))
    assert "f64[20][9, 8.78947, 8.57895, ..., 5]" in text
    assert _show.array_text(np.zeros((0, 3))) == "f64[0,3]"
    assert _show.array_text(jax.random.key(0)).startswith("key<")
    long = _show.pretty(tuple(range(50)))
    assert long == "(0, 1, 2, ... 46 more ..., 49)"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_printed_ends_are_ends(dtype):
    values = np.random.default_rng(0).uniform(-3, 3, 200).astype(dtype)
    for value in values:
        low, high = _show.LOWER[_show.SHOWN], _show.UPPER[_show.SHOWN]
        assert float(low(value)) <= float(value) <= float(high(value))


def test_numbers_keep_their_digits_in_any_precision():
    for value in (1.1, np.float32(1.1), np.float32(2) ** 40, np.float16(0.1)):
        assert float(_show.array_text(value)) == float(value)
    assert _show.array_text(np.float32(2.0)) == "2"
    assert _show.array_text(np.asarray(True)) == "True"


DRAWN = (
    *(fdp.Gaussian(0.7), fdp.Laplace(0.6), fdp.Logistic(0.8), fdp.PureDP(1.0)),
    *(fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.1), F, fdp.PerfectPrivacy()),
)


@pytest.mark.parametrize("guarantee", DRAWN, ids=lambda g: type(g).__name__)
def test_a_picture_is_the_trade_off_function(guarantee):
    page = guarantee._repr_html_()
    assert page is not None
    assert "<pre" in page
    ElementTree.fromstring(page)  # well-formed
    ((alpha, beta),) = guarantee._drawn()
    function = closed_form(guarantee)
    assert function is not None
    truth = np.asarray(function.beta(alpha=np.asarray(alpha)))
    assert np.allclose(beta, truth, rtol=1e-9, atol=1e-12)


def test_what_would_take_long_is_text_alone():
    assert RUN._repr_html_() is None
    assert fdp.Gaussian()._repr_html_() is None  # nothing to draw
    assert RUN.remove._repr_html_() is None


def test_a_picture_of_a_curve():
    page = fdp.Laplace(1.0).curve(num_points=9)._repr_html_()
    assert page is not None
    assert page.count("<polyline") == 2
    ElementTree.fromstring(page)


def test_names_for_those_who_ask_questions():
    names = {x for x in dir(fdp.Gaussian(1.0)) if not x.startswith("_")}
    assert {"epsilon", "noise_multiplier", "remove", "using"} <= names
    assert len(names) <= 22
    scores = fdp.audit.Scores([1.0, 2.0], [0.5])
    assert repr(scores) == "Scores(2 in, 1 out, threshold='ranks')"


def test_what_is_printed_can_be_called():
    """Arguments are printed by the names that the class takes."""
    wrong = {}
    for name in dir(fdp):
        kind = getattr(fdp, name)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            taken = inspect.signature(kind.__init__).parameters
            printed = [x.name for x in dataclasses.fields(kind) if x.repr]
            printed = [x for x in printed if not x.startswith("_")]
            left = [x for x in printed if _show.argument_of(kind, x) not in taken]
            wrong |= {name: left} if left else {}
    # Kept by what was made with others.
    made = {"Accountant": ["tables"], "RandomRepeat": ["idle", "whole"]}
    assert wrong == made | {"Schedule": ["steps"]}
