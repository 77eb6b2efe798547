"""Mistakes that were found in another library's accountant, and are not made here.

The list is that of a public audit: JetBrains-Research/opake,
`.audit-checkpoint/master3-sections/sec-accounting.md`.
"""

import ast
import dataclasses
import doctest
import io
import itertools
import math
import pathlib
import re
import sys
import tomllib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import norm

import fdp_jax as fdp

_STEP = fdp.PoissonSubsampled(fdp.Gaussian(1.0), sampling_prob=0.1)


@pytest.mark.parametrize(
    "run",
    [
        fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=100),
        fdp.Gaussian(1.0).repeat(100),
        fdp.compose(fdp.Gaussian(1.0), fdp.Laplace(1.0)),
        _STEP.repeat(10),
    ],
    ids=["run", "repeated", "composed", "sampled steps"],
)
def test_a_whole_run_is_not_sampled_once_more(run):
    with pytest.raises(TypeError, match="subsample each step, then repeat"):
        fdp.PoissonSubsampled(run, sampling_prob=0.01)


def test_changed_copies_are_checked_as_new_ones():
    with pytest.raises(ValueError, match="sampling_prob must be in"):
        dataclasses.replace(_STEP, sampling_prob=1.5)
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=100)
    with pytest.raises(TypeError, match="must be a single release"):
        dataclasses.replace(_STEP, mechanism=run)


def test_sampling_with_probability_one_is_no_sampling():
    step = fdp.PoissonSubsampled(fdp.Gaussian(2.0), sampling_prob=1.0)
    truth = norm.sf(-0.25 + 2) - math.e * norm.sf(0.25 + 2)
    assert float(step.delta(epsilon=1.0)) == pytest.approx(truth, rel=1e-6)


def test_what_an_error_allows_is_allowed():
    with pytest.raises(ValueError, match="got 'bnd'") as refused:
        fdp.Gaussian(1.0).using("bnd")
    said = str(refused.value).split("got")[0]
    names = [x for x in re.findall(r"['\"](\w+)['\"]", said) if x != "method"]
    assert names
    for name in names:
        fdp.Gaussian(1.0).using(name)


def test_what_was_calibrated_meets_its_target_when_asked_again():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    sigma = float(found.value)
    truth = norm.sf(sigma - 0.5 / sigma) - math.e * norm.sf(sigma + 0.5 / sigma)
    assert truth <= 1e-5
    assert truth >= 1e-5 * (1 - 1e-4)


def test_an_unreachable_target_is_a_value_error():
    assert issubclass(fdp.UnreachableTarget, ValueError)


def test_a_record_moves_the_adaptive_count_by_one_half():
    """The noise is that of counts -1/2 and 1/2, twice too little for 0 and 1."""
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=1.0, num_steps=1)
    rule = fdp.training.AdaptiveClipping(1.0, count_noise=3.0, learning_rate=1.0)
    plan = fdp.training.Plan(run, num_records=4, clipping=rule)
    trainer = fdp.training.Trainer(plan, lambda w, x: jnp.sum(w * x), optax.sgd(0.0))
    start = trainer.init(jax.random.key(0), jnp.zeros(2, jnp.float32))

    def log_norm(first):
        data = jnp.asarray([[first, 0.0], [3.0, 0.0], [0.1, 0.0], [9.0, 0.0]])
        return np.log(float(trainer.step(start, data)[0].noise.norm))

    # What is not finite does not count; the noise is the same.
    without = log_norm(np.nan)
    for first in (0.1, 3.0):
        assert abs(log_norm(first) - without) <= 0.5 / 4 * (1 + 1e-4)


def test_noise_is_not_lowered_to_the_precision_of_the_model():
    """In bfloat16 a clipped sum is longer than the norm, and noise has few values."""
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=1.0, num_steps=1)
    plan = fdp.training.Plan(run, num_records=4, clipping=1.0)
    loss = lambda w, x: jnp.sum(w.astype(jnp.float32) * x)
    model = jnp.zeros(4096, jnp.bfloat16)
    found = []

    def update(updates, state, params=None):
        found.append(updates)
        return updates, state

    seen = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    trainer = fdp.training.Trainer(plan, loss, seen)
    state = trainer.init(jax.random.key(0), model)
    jax.eval_shape(trainer.step, state, jnp.zeros((4, 4096), jnp.float32))
    assert found
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(found))


def test_an_account_of_many_settings_takes_time_for_each_once():
    """Each step looked at all that were before, and composing was quadratic."""

    def calls(number):
        account, made = fdp.Accountant(), 0

        def count(frame, event, argument):
            nonlocal made
            made += event == "call"

        steps = [fdp.Gaussian(1.0 + i / 1000) for i in range(number)]
        account = account.step(steps[0])
        sys.setprofile(count)
        try:
            for step in steps:
                account = account.step(step)
        finally:
            sys.setprofile(None)
        assert len(account.history) == number
        return made

    calls(4)
    assert calls(128) < 2.5 * calls(64)


def test_examples_need_nothing_that_is_not_installed_with_the_package():
    """Docstrings are part of the package, what its tests install is not."""
    root = pathlib.Path(fdp.__file__).parent
    project = tomllib.loads((root.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    needed = [*project["dependencies"], *itertools.chain(*extras)]
    names = {re.split(r"[<>=\[ ]", x)[0].replace("-", "_") for x in needed}
    allowed = names | set(sys.stdlib_module_names) | {"fdp_jax"}
    examples = doctest.DocTestParser()
    imported = set()
    for path in root.rglob("*.py"):
        if ">>>" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            for example in examples.get_examples(ast.get_docstring(node) or ""):
                for line in ast.walk(ast.parse(example.source)):
                    if isinstance(line, ast.Import):
                        imported |= {x.name.split(".")[0] for x in line.names}
                    elif isinstance(line, ast.ImportFrom):
                        imported.add((line.module or "").split(".")[0])
    assert "fdp_jax" in imported
    assert imported <= allowed, imported - allowed


def test_a_filter_from_a_file_states_the_budget_that_it_keeps():
    """It went on with the file's looser budget where a stricter one was stated."""
    file = io.BytesIO()
    saved = fdp.accounting.ZCDPFilter(10.0).step(5.0)
    eqx.tree_serialise_leaves(file, saved)
    file.seek(0)
    found = eqx.tree_deserialise_leaves(file, fdp.accounting.ZCDPFilter(1.0))
    assert float(found.guarantee.rho) >= 10.0
    assert bool(found.fits(4.0))
    assert not bool(found.fits(6.0))
