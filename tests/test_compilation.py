"""Options of the compiler: those of a query of its own, and the defaults."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

import fdp_jax as fdp
from fdp_jax._internal import _compilation
from fdp_jax._internal._compilation import jit_on_its_own

TRUTH = pathlib.Path(__file__).parent / "data/dpsgd_truth.json"
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
import fdp_jax as fdp

jax.config.update("jax_enable_x64", True)

def bounds(s, q, n, delta):
    run = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n)
    # Records take part often in all of these.
    found = run.using("auto", split=False).bounds(delta=delta)
    return jnp.stack([found.lower, found.estimate, found.upper])

def estimate(run):
    found = bounds(*run)
    return found[1], found

runs = jnp.asarray(json.loads(sys.argv[1]))
slopes, found = jax.jit(jax.vmap(jax.grad(estimate, has_aux=True)))(runs)
print(json.dumps([found.tolist(), slopes[:, 0].tolist()]))
"""


def _entries() -> dict[tuple, dict]:
    """Epsilons by (sigma, q, N, delta), of the larger direction."""
    found: dict[tuple, dict] = {}
    for entry in json.loads(TRUTH.read_text())["entries"]:
        if entry["kind"] == "eps":
            run = (entry["sigma"], entry["q"], entry["N"], float(entry["delta"]))
            if run not in found or float(entry["value"]) > float(found[run]["value"]):
                found[run] = entry
    return found


def test_defaults_of_the_compiler_give_the_truth():
    truth = _entries()
    runs = list(truth)
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(runs)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found, derivatives = json.loads(done.stdout)
    for run, (lower, estimate, upper), slope in zip(
        runs, found, derivatives, strict=True
    ):
        value = float(truth[run]["value"])
        assert lower <= value <= upper
        # Below 1e-30 an answer of the first program may be loose.
        if run[3] < 1e-30:
            continue
        assert upper - lower <= 1e-6 * value
        assert abs(estimate / value - 1) <= 1e-9
        if "deps_dsigma" in truth[run]:
            assert abs(slope / float(truth[run]["deps_dsigma"]) - 1) <= 1e-8


SWEEP = """
import json, sys
import jax, numpy as np
import fdp_jax as fdp

jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
s, q, n, delta = np.asarray(json.loads(sys.argv[1])).T
found = fdp.sweep(
    fdp.DPSGD,
    fdp.sweeps.Columns(noise_multiplier=s, sampling_prob=q, num_steps=n, delta=delta),
    queries={"epsilon": {"delta": "delta"}},
    again=False,
)
print(json.dumps([found[f"epsilon_{x}"].tolist() for x in ("lower", "upper")]))
"""


# The smaller program of a sweep leaves it in doubt, and a larger one is asked, which is
# six times as dear to compile and holds the truth loosely.
DOUBTFUL = (0.9, 0.002, 10_000, 1e-100)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_sweeps_hold_the_truth(devices):
    truth = _entries()
    if devices == 2:
        del truth[DOUBTFUL]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, json.dumps(list(truth)), str(devices)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for entry, lower, upper in zip(
        truth.values(), *json.loads(done.stdout), strict=True
    ):
        value = float(entry["value"])
        assert lower <= value <= upper
        assert float(entry["delta"]) < 1e-30 or upper - lower <= 1e-6 * value


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    known = {"xla_backend_optimization_level": 1}
    unknown = {"xla_no_such_option": False, **known}
    monkeypatch.setattr(_compilation, "OPTIONS", unknown)
    _compilation._options.cache_clear()
    try:
        assert _compilation.options_here() == {"compiler_options": known}
        assert jit_on_its_own(lambda x: x + 1)(1.0) == 2.0
    finally:
        _compilation._options.cache_clear()


def test_both_code_generators_agree():
    # Inside another program JAX allows no options: there the default one works.
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
    inside = jax.jit(lambda delta: run.epsilon(delta=delta))(1e-5)
    assert abs(inside / run.epsilon(delta=1e-5) - 1) <= 1e-12


def test_threads_that_need_the_same_program_make_it_once(monkeypatch):
    made, both = [], threading.Barrier(2)

    def slowly(*_):
        made.append(threading.get_ident())
        time.sleep(0.2)
        return lambda leaves: leaves[0]

    monkeypatch.setattr(_compilation, "_lasting_name", lambda _: "a name")
    monkeypatch.setattr(_compilation, "_program", slowly)
    function, found = jit_on_its_own(lambda x: x), []

    def ask():
        both.wait(timeout=60)
        found.append(float(function(jnp.ones(()))))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0, 1.0]
    assert len(made) == 1
