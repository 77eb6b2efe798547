"""Sweeps: the numbers of plain calls, however they are cut and wherever they run."""

import contextvars
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.contour import ContourSet
from scipy import stats

import fdp_jax as fdp
from fdp_jax._internal import _checks, _compilation
from fdp_jax._internal._concrete import is_traced
from fdp_jax._internal._host import calls_the_host
from fdp_jax.cli import main
from fdp_jax.losses import ComposedLoss, MassLoss
from fdp_jax.mechanisms import (
    ADD_OR_REMOVE_ONE,
    Search,
    parameter,
    relation_field,
)
from fdp_jax.plot._page import chart
from fdp_jax.sweeps import _run, _worker as workers
from fdp_jax.sweeps._problem import CONTOUR, UNSPLIT, WHOLE, Problem, fingerprint
from fdp_jax.sweeps._program import Asked
from fdp_jax.sweeps._queries import queries_of
from fdp_jax.sweeps._run import lasting
from fdp_jax.sweeps._store import Store
from fdp_jax.sweeps._worker import Worker

sys.path.append(str(pathlib.Path(__file__).parent))
from swept import COUNT, DELTAS, SCALES, swept

HERE = pathlib.Path(__file__).parent
GOOD = np.flatnonzero(SCALES > 0)


def _delta(scale, epsilon):
    """Balle and Wang (2018), Theorem 8."""
    a, b = 0.5 / scale, epsilon * scale
    return stats.norm.cdf(a - b) - np.exp(epsilon) * stats.norm.cdf(-a - b)


@pytest.fixture(scope="module")
def whole():
    """The sweep in one piece."""
    return swept()


def test_answers_are_those_of_the_closed_form(whole):
    assert whole.complete
    assert len(whole) == COUNT
    assert whole["advantage"].shape == (COUNT,)
    found = _delta(SCALES[GOOD], whole["epsilon_estimate"][GOOD])
    np.testing.assert_allclose(found, DELTAS[GOOD], rtol=1e-9, atol=1e-14)
    assert np.all(whole["epsilon_lower"][GOOD] <= whole["epsilon_upper"][GOOD])
    np.testing.assert_allclose(
        whole["advantage_estimate"][GOOD], _delta(SCALES[GOOD], 0.0), rtol=1e-12
    )
    assert np.array_equal(whole["epsilon"], whole["epsilon_upper"], equal_nan=True)


def test_gradients_are_those_of_the_closed_form(whole):
    found = whole["advantage_by_noise_multiplier"][GOOD]
    half = 0.5 / SCALES[GOOD]
    truth = -2 * stats.norm.pdf(half) * half / SCALES[GOOD]
    np.testing.assert_allclose(found, truth, rtol=1e-10)


def test_a_refused_configuration_has_a_reason_and_no_numbers(whole):
    reason = "noise_multiplier must be a positive number, got -1"
    assert whole.refused == {7: reason}
    assert np.isnan(whole["epsilon"][7])
    assert whole["epsilon_status"][7] == 3
    assert np.all(whole["epsilon_status"][GOOD] == 0)
    assert f"configuration 7: {reason}" in whole.summary()
    assert "epsilon: 59 tight, 1 refused" in whole.summary()


def test_a_refused_configuration_does_not_end_the_program(monkeypatch):
    """The others are not answered one by one by plain calls, which take long."""

    def plainly(self, row):
        raise AssertionError(row)

    monkeypatch.setattr(Problem, "with_known", plainly)
    found = fdp.sweep(
        fdp.Gaussian,
        {"noise_multiplier": [1.0, -2.0, 0.5]},
        queries={"advantage": {"epsilon": 0.0}, "delta": {"epsilon": 1.0}},
    )
    assert list(found.refused) == [1]
    truth = [_delta(s, 1.0) for s in (1.0, 0.5)]
    np.testing.assert_allclose(found["delta"][[0, 2]], truth, rtol=1e-10)


def test_a_folder_holds_the_same_numbers_and_a_stopped_sweep_goes_on(whole, tmp_path):
    found = swept(tmp_path)
    for name, values in whole.table.items():
        assert np.array_equal(values, found[name], equal_nan=True)
    files = {file: file.read_bytes() for file in tmp_path.glob("chunk-*")}
    assert len(files) == 9
    # As if it had been killed: some chunks are missing, one is half written.
    for file in list(files)[::2]:
        file.unlink()
    left = tmp_path / f".{next(iter(files)).name}.abc"
    left.write_bytes(b"PAR1")
    part = fdp.sweeps.load(tmp_path)
    assert not part.complete
    assert len(part) < COUNT
    assert np.all(np.isin(part["epsilon"][:3], whole["epsilon"]))
    again = swept(tmp_path)
    assert again.complete
    assert {file: file.read_bytes() for file in tmp_path.glob("chunk-*")} == files
    assert not left.exists()
    assert again.refused == whole.refused


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_a_damaged_or_foreign_file_is_refused_in_one_line(
    suffix, tmp_path, monkeypatch
):
    if suffix == ".npz":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    swept(tmp_path / "one")
    first, second = sorted((tmp_path / "one").glob(f"chunk-*{suffix}"))[:2]
    good = first.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 3] ^= 1
    for content in (good[:-20], b"", bytes(flipped), second.read_bytes()):
        first.write_bytes(content)
        with pytest.raises(ValueError, match="damaged or of another sweep") as raised:
            swept(tmp_path / "one")
        assert "\n" not in str(raised.value)
    first.write_bytes(good)
    swept(tmp_path / "one")


def test_another_sweep_in_the_folder_is_refused(tmp_path):
    ask = lambda scale: fdp.sweep(
        lambda noise_multiplier: fdp.Laplace(scale * noise_multiplier),
        {"noise_multiplier": [1.0, 2.0]},
        queries={"epsilon": {"delta": 1e-5}},
        folder=tmp_path,
    )
    first = ask(1.0)
    assert np.array_equal(ask(1.0)["epsilon"], first["epsilon"])
    with pytest.raises(ValueError, match="holds another sweep"):
        ask(1.5)
    with pytest.raises(ValueError, match="holds no sweep"):
        fdp.sweeps.load(tmp_path / "nowhere")


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    swept(tmp_path)
    store = Store.open(tmp_path)
    with store.locked(0), pytest.raises(ValueError, match="another process is writing"):
        swept(tmp_path)


def test_processes_must_share_their_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("fdp_jax.sweeps._run._PATIENCE", 0.0)
    with pytest.raises(ValueError, match=r"must share .*, but numbers \[1\] of them"):
        swept(tmp_path)


def test_a_grid_has_axes_and_names_are_kinds_of_their_own():
    found = fdp.sweep(
        lambda kind, noise_multiplier: getattr(fdp, kind)(noise_multiplier),
        {"kind": ["Laplace", "Gaussian"], "noise_multiplier": [1.0, 2.0, 4.0]},
        queries={"beta": {"alpha": [0.01, 0.1]}, "epsilon": {"delta": 1e-5}},
    )
    assert found.grid("beta").shape == (2, 3, 2)
    assert list(found.axes["kind"]) == ["Laplace", "Gaussian"]
    for i, kind in enumerate([fdp.Laplace, fdp.Gaussian]):
        for j, scale in enumerate([1.0, 2.0, 4.0]):
            truth = kind(scale).bounds(alpha=np.array([0.01, 0.1]))
            np.testing.assert_allclose(
                found.grid("beta")[i, j], truth.lower, rtol=1e-12
            )


def test_calibrations_and_functions_are_questions_too():
    target = lambda epsilon: fdp.targets.ApproxDP(epsilon=epsilon, delta=1e-5)
    found = fdp.sweep(
        fdp.Gaussian(),
        {"epsilon": [1.0, 3.0, -2.0]},
        queries={
            "noise_multiplier": target,
            "double": lambda epsilon: 2 * epsilon,
        },
    )
    for epsilon, noise in zip([1.0, 3.0], found["noise_multiplier"], strict=False):
        np.testing.assert_allclose(_delta(noise, epsilon), 1e-5, rtol=1e-9)
    assert list(found["double"][:2]) == [2.0, 6.0]
    assert set(found.refused) == {2}


def test_functions_are_asked_in_whole_programs_of_one_device():
    # Callbacks of float64 numbers and the BFGS method of a library fail elsewhere.
    seen = set()

    def look(epsilon):
        if is_traced(epsilon):
            mesh = jax.typeof(epsilon).sharding.mesh
            seen.add((calls_the_host(), mesh.manual_axes))
        return 2 * epsilon

    fdp.sweep(
        fdp.Gaussian(1.0),
        {"epsilon": [1.0, 3.0]},
        queries={"double": look},
        mesh=jax.sharding.Mesh(jax.local_devices()[:1], ("part",)),
    )
    assert seen == {(False, ())}


def test_what_python_decides_is_asked_by_plain_calls():
    def mechanism(noise_multiplier, num_steps):
        parts = [fdp.Gaussian(noise_multiplier)] * int(num_steps)
        return fdp.compose(*parts)

    found = fdp.sweep(
        mechanism,
        {"noise_multiplier": 2.0, "num_steps": [1, 4, -1]},
        queries={"advantage": {"epsilon": 0.0}},
    )
    np.testing.assert_allclose(
        found["advantage_estimate"][:2],
        [_delta(2.0, 0.0), _delta(1.0, 0.0)],
        rtol=1e-12,
    )
    assert 2 in found.refused


def _mine(factor):
    """A class of a user's own, who changes it and defines it again."""

    class Mine(fdp.AbstractMechanism):
        noise_multiplier: jax.Array = parameter(
            "noise_multiplier", _checks.finite_positive, Search(leaks=-1)
        )
        relation: fdp.NeighboringRelation = relation_field(ADD_OR_REMOVE_ONE)

        def loss(self):
            return fdp.Gaussian(factor * self.noise_multiplier).loss()

    return Mine


def test_a_class_that_was_defined_anew_is_another_one(tmp_path):
    for factor in (1.0, 2.0):
        found = fdp.sweep(
            _mine(factor),
            {"noise_multiplier": [1.0, 2.0]},
            queries={"advantage": {"epsilon": 0.0}},
            folder=tmp_path / str(factor),
        )
        truth = [_delta(factor * s, 0.0) for s in (1.0, 2.0)]
        np.testing.assert_allclose(found["advantage_estimate"], truth, rtol=1e-10)
    with pytest.raises(ValueError, match="holds another sweep"):
        fdp.sweep(
            _mine(2.0),
            {"noise_multiplier": [1.0, 2.0]},
            queries={"advantage": {"epsilon": 0.0}},
            folder=tmp_path / "1.0",
        )


def _with_loss(factor):
    """A mechanism whose loss alone is another one."""

    class Loss(MassLoss):
        scale: jax.Array

        def loss_range(self):
            return -factor * self.scale, factor * self.scale

        def cells(self, low, high):
            raise NotImplementedError

    class Mine(fdp.AbstractMechanism):
        noise_multiplier: jax.Array = parameter(
            "noise_multiplier", _checks.finite_positive, Search(leaks=-1)
        )
        relation: fdp.NeighboringRelation = relation_field(ADD_OR_REMOVE_ONE)

        def loss(self):
            one = jnp.ones_like(self.noise_multiplier)
            return ComposedLoss((Loss(self.noise_multiplier),), (one,))

    return Mine


def test_the_name_of_a_question_knows_the_losses_of_a_users_mechanism():
    names = ("noise_multiplier",)
    queries = queries_of({"advantage": {"epsilon": 0.0}}, names, ())
    texts = []
    for factor in (1.0, 1.0, 2.0):
        problem = Problem(_with_loss(factor), queries, ())
        found = fingerprint(problem, names, {})
        assert not found.whole
        texts.append(found.text)
    assert texts[0] == texts[1] != texts[2]


def test_few_configurations_have_the_programs_of_few_others():
    ask = lambda count: fdp.sweep(
        fdp.Laplace,
        {"noise_multiplier": np.linspace(1.0, 2.0, count)},
        queries={"epsilon": {"delta": 1e-5}},
    )
    ask(3)
    known = lasting.cache_info().misses
    scales = np.linspace(1.0, 2.0, 40)
    truth = 1 / scales + 2 * np.log1p(-1e-5)  # Laplace: delta = 1 - e^((eps - 1/s) / 2)
    np.testing.assert_allclose(ask(40)["epsilon_estimate"], truth, rtol=1e-12)
    assert known == lasting.cache_info().misses


def _worker(problem):
    mesh = jax.sharding.Mesh(np.asarray(jax.local_devices()), ("part",))
    asked = Asked(problem, ("noise_multiplier",), {}, None)
    return Worker(asked, 100, mesh, again=False, many=False, exact=False)


def test_devices_make_plain_calls_at_the_same_time():
    both, calls, asked = threading.Barrier(2), [], contextvars.ContextVar("asked")

    def mechanism(noise_multiplier):
        calls.append(asked.get())
        if len(calls) > 1:
            both.wait(timeout=60)
        return fdp.Gaussian(float(noise_multiplier))

    queries = queries_of({"advantage": {"epsilon": 0.0}}, ("noise_multiplier",), ())
    problem = Problem(mechanism, queries, ())
    worker = _worker(problem)
    worker.devices = 2
    columns = {"noise_multiplier": np.array([1.0, 2.0, -1.0, 0.5, 4.0])}
    asked.set("by the caller")
    found, refused = worker._plainly(columns, np.arange(5), {})
    assert list(refused) == [2]
    assert "noise_multiplier must be a positive number" in refused[2]
    assert np.isnan(found["advantage_estimate"][2])
    good, scales = np.array([0, 1, 3, 4]), columns["noise_multiplier"]
    error = found["advantage_estimate"][good] - _delta(scales[good], 0.0)
    assert np.max(np.abs(error)) < 1e-12
    # Threads, which all but the first one run on, have the caller's context.
    assert calls == ["by the caller"] * 5


@pytest.mark.parametrize("count", [2, 3])
def test_many_plain_calls_are_compiled_at_once(count, monkeypatch):
    monkeypatch.setattr(_run, "_MANY", 3)
    asked = []

    def mechanism(noise_multiplier):
        asked.append(_compilation._AT_ONCE.get())
        return fdp.Gaussian(float(noise_multiplier))

    scales = np.linspace(1.0, 2.0, count)
    found = fdp.sweep(
        mechanism,
        {"noise_multiplier": scales},
        queries={"advantage": {"epsilon": 0.0}},
    )
    wanted = [_delta(scale, 0.0) for scale in scales]
    np.testing.assert_allclose(found["advantage_estimate"], wanted, rtol=1e-12)
    assert asked[-1] is (count == 3)


def test_plain_calls_of_what_is_not_kept_do_not_wait_for_a_compiler(tmp_path):
    asked = []

    def mechanism(noise_multiplier):
        asked.append(_compilation._AT_ONCE.get())
        return fdp.Gaussian(float(noise_multiplier))

    for folder in (None, tmp_path):
        found = fdp.sweep(
            mechanism,
            {"noise_multiplier": [2.0]},
            queries={"advantage": {"epsilon": 0.0}},
            folder=folder,
        )
        assert found["advantage_estimate"] == pytest.approx(_delta(2.0, 0.0))
        assert asked[-1] is (folder is not None)


def test_an_error_in_a_plain_call_ends_the_others():
    asked = []

    def answer(noise_multiplier):
        asked.append(noise_multiplier)
        if noise_multiplier == 3.0:
            raise AttributeError("mine")
        time.sleep(0.05)
        return float(noise_multiplier)

    queries = queries_of({"answer": answer}, ("noise_multiplier",), ())
    problem = Problem(fdp.Gaussian, queries, ())
    worker = _worker(problem)
    worker.devices = 2
    columns = {"noise_multiplier": np.arange(1.0, 101.0)}
    with pytest.raises(AttributeError, match="mine"):
        worker._plainly(columns, np.arange(100), {})
    assert len(asked) < 20


@pytest.mark.parametrize("few", [8, pytest.param(0, marks=pytest.mark.slow)])
def test_an_accelerator_has_the_same_numbers(few, monkeypatch):
    """Batches of contours there, and the CPU for what these leave in doubt.

    By a program of its own, or by plain calls if it is little.
    """
    asked, program_for = [], workers.program_for

    def seen(*args):
        asked.append(args[-1])
        return program_for(*args)

    monkeypatch.setattr(workers, "program_for", seen)
    monkeypatch.setattr(workers, "is_accelerator", lambda device: True)
    monkeypatch.setattr(workers, "_FEW", few)
    monkeypatch.setattr(_run, "lasting", Worker)
    noise, prob = np.array([1.0, -1.0, 1.03]), np.array([0.01, 0.01, 0.0025])
    counts = np.array([1000, 1000, 150])
    found = fdp.sweep(
        fdp.DPSGD,
        fdp.sweeps.Columns(
            noise_multiplier=noise, sampling_prob=prob, num_steps=counts
        ),
        queries={"epsilon": {"delta": 1e-5}},
    )
    assert asked == ([CONTOUR] if few else [CONTOUR, UNSPLIT, WHOLE])
    assert set(found.refused) == {1}
    for row in (0, 2):
        run = fdp.DPSGD(
            noise_multiplier=noise[row],
            sampling_prob=prob[row],
            num_steps=int(counts[row]),
        )
        known = run.bounds(delta=1e-5)
        np.testing.assert_allclose(found["epsilon"][row], known.estimate, rtol=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queries": {}}, "queries must be a mapping such as"),
        ({"queries": {"epsilon": {"rate": 1}}}, "query 'epsilon' must be an argument"),
        ({"queries": {"epsilon": {"delta": "x"}}}, "must name one of the columns"),
        ({"gradients": ["x"]}, "gradients must name columns of numbers"),
        ({"configurations": {}}, "configurations must have a column"),
        ({"configurations": [1]}, "configurations must be a mapping"),
        (
            {"configurations": {"noise": [1.0]}},
            "no question or mechanism has a use for",
        ),
        ({"chunk_size": 0}, "chunk_size must be in"),
        ({"mechanism": 3}, "mechanism must be a function or a mechanism"),
        ({"gradients": None}, "gradients must be a list of names"),
        ({"mesh": 3}, "mesh must be a jax.sharding.Mesh or None"),
        ({"configurations": {"noise_multiplier": []}}, "a vector of at least one"),
        ({"configurations": {"noise_multiplier": {1.0}}}, "of them, got a set"),
        ({"configurations": {"noise_multiplier": [2**63]}}, "must be below 2.63"),
        ({"configurations": {"mechanism": [1.0]}}, "must not be named 'mechanism'"),
        (
            {"configurations": {x: np.ones(1000) for x in "abcde"}},
            "a grid may have 1e.12 configurations, got 1.0e.15",
        ),
        (
            {"configurations": {"noise_multiplier": np.ones(10**5), "x": range(2000)}},
            "without a folder there may be 100,000,000",
        ),
        (
            {"configurations": {"noise_multiplier": 1.0, "epsilon_upper": [0.5]}},
            "epsilon_upper is a part of the answer to query 'epsilon'",
        ),
        (
            {"queries": {"a": {"delta": 0.1}, "a_lower": {"delta": 0.2}}},
            "a_lower is a part of the answer to query 'a'",
        ),
        ({"queries": {"refused": {"delta": 0.1}}}, "may have the name 'refused'"),
        ({"queries": {"a": {"delta": []}}}, "delta of query 'a' must be a number"),
        ({"queries": {"a": {"delta": ["x"]}}}, "delta of query 'a' must be a number"),
        ({"queries": {"a": {"target": 3}}}, "target of query 'a' must be one of"),
        ({"queries": {"a": lambda z: z}}, "query 'a' has a parameter 'z' that is no"),
        ({"mechanism": lambda z: z}, "mechanism has a parameter 'z' that is no"),
        ({"queries": {"a": lambda: None}}, "query 'a' must return a target"),
        ({"queries": {"a": lambda: "text"}}, "query 'a' must return a target"),
        ({"folder": __file__}, "folder must not be a file or in one"),
    ],
)
def test_bad_arguments_get_one_line(given, message):
    arguments = {
        "mechanism": fdp.Laplace,
        "configurations": {"noise_multiplier": [1.0]},
        "queries": {"epsilon": {"delta": 1e-5}},
    }
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        fdp.sweep(**arguments | given)
    assert "\n" not in str(raised.value)


def test_a_table_has_rows_and_names_its_columns_once():
    with pytest.raises(ValueError, match="one of them must be a vector"):
        fdp.sweeps.Columns(noise_multiplier=1.0)
    frame = pandas.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    with pytest.raises(ValueError, match=r"name each column once, got \['a'\]"):
        fdp.sweep(fdp.Laplace, frame, queries={"epsilon": {"delta": 1e-5}})


def test_answers_of_different_shapes_are_an_error():
    ask = lambda: fdp.sweep(
        lambda: None, {"n": [1, 2]}, queries={"z": lambda n: np.ones(int(n))}
    )
    with pytest.raises(ValueError, match="z must have one shape for all"):
        ask()


def _doubled(folder=None, **axes):
    return fdp.sweep(
        lambda: None, axes, queries={"double": lambda n: 2 * n}, folder=folder
    )


def test_an_axis_may_hold_what_is_refused_and_files_of_others_are_left_alone(tmp_path):
    found = _doubled(tmp_path, n=[1.0, np.nan])
    assert list(found["double"][:1]) == [2.0]
    for name in ("notes.txt", "chunk-abc.parquet", "chunk-000000000 (copy).parquet"):
        (tmp_path / name).write_text("something else")
    assert _doubled(tmp_path, n=[1.0, np.nan]).complete
    manifest = tmp_path / "sweep.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"count": 2', '"count": 30'))
    with pytest.raises(ValueError, match=r"sweep.json is damaged"):
        _doubled(tmp_path, n=[1.0, np.nan])
    manifest.write_text(text.replace('"count"', '"number"'))
    with pytest.raises(ValueError, match=r"sweep.json is damaged"):
        fdp.sweeps.load(tmp_path)
    with pytest.raises(ValueError, match="holds no sweep"):
        fdp.sweeps.load(manifest)


def test_columns_can_be_added_and_are_listed():
    found = _doubled(n=range(1, 4))
    more = found.assign(half=found["double"] / 4)
    assert set(more) == {"n", "double", "half"}
    assert list(more.grid("half")) == [0.5, 1.0, 1.5]
    assert "half" not in found
    with pytest.raises(ValueError, match="there is a column 'n' already"):
        more.assign(n=more["n"])
    with pytest.raises(ValueError, match="half must have a row for each of 3"):
        found.assign(half=[1.0])


# ------------------------------------------------------------------- processes


def _process(*arguments, programs="off", **options):
    """Another Python, without what this one has set for the tests alone."""
    environment = dict(os.environ, JAX_ENABLE_X64="1", FDP_JAX_CACHE=str(programs))
    root = str(HERE.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        [root, *filter(None, [environment.get("PYTHONPATH")])]
    )
    command = [sys.executable, str(HERE / "swept.py"), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, **options)


def _kept(folder, out, devices):
    """What a sweep with programs on disk compiles."""
    options = {"stdout": subprocess.PIPE, "text": True}
    process = _process("-", out, devices, programs=folder, **options)
    compiled = process.communicate()[0].split()
    assert process.returncode == 0
    return compiled


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process on one device finds (compiled as elsewhere, not as here)."""
    folder = tmp_path_factory.mktemp("alone")
    file = folder / "one.npz"
    assert "jit(_over_rows)" in _kept(folder / "programs", file, 1)
    return file


def _same(file, other):
    with np.load(file) as found, np.load(other) as wanted:
        assert found.files == wanted.files
        for name in found.files:
            assert found[name].tobytes() == wanted[name].tobytes(), name


def _together(folder, tmp_path, count):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    outs = [tmp_path / f"{count}-{i}.npz" for i in range(count)]
    every = [_process(folder, out, 1, address, count, i) for i, out in enumerate(outs)]
    assert [process.wait() for process in every] == [0] * count
    return outs


@pytest.mark.parametrize("devices", [1, 2])
def test_all_devices_and_the_next_process_find_the_same_bits(alone, devices, tmp_path):
    """Of the next one with programs on disk; programs are those of their devices."""
    folder, out = alone.parent / "programs", tmp_path / "found.npz"
    if devices > 1:
        folder = tmp_path / "programs"
        assert "jit(_over_rows)" in _kept(folder, out, devices)
        _same(out, alone)
    assert "jit(_over_rows)" not in _kept(folder, out, devices)
    _same(out, alone)
    # The program, and what its trace has shown.
    assert len(list(folder.glob("*.program"))) == 2


def test_two_processes_find_the_same_bits(alone, tmp_path):
    for out in _together(tmp_path / "store", tmp_path, 2):
        _same(out, alone)


@pytest.mark.slow
def test_four_processes_without_a_folder_find_the_same_bits(alone, tmp_path):
    for out in _together("-", tmp_path, 4):
        _same(out, alone)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_bytes(tmp_path):
    place = tmp_path / "whole"
    began = time.perf_counter()
    assert _process(place, tmp_path / "whole.npz", 1).wait() == 0
    takes = time.perf_counter() - began
    files = {file.name: file.read_bytes() for file in place.glob("chunk-*")}
    moments = random.Random(3)
    for trial in range(20):
        folder = tmp_path / str(trial)
        process = _process(folder, tmp_path / "killed.npz", 1)
        time.sleep(takes * moments.uniform(0.2, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        status = _process(folder, tmp_path / "again.npz", 1).wait()
        assert status == 0, (trial, status)
        _same(tmp_path / "again.npz", tmp_path / "whole.npz")
        found = {file.name: file.read_bytes() for file in folder.glob("chunk-*")}
        assert found == files, trial


# ------------------------------------------------------- tables, pictures, commands


def _many(noise_multiplier, num_steps):
    return fdp.Gaussian(noise_multiplier).repeat(num_steps)


def test_tables_of_other_libraries_hold_the_same(tmp_path):
    found = fdp.sweep(
        _many,
        {"noise_multiplier": [1.0, -2.0], "num_steps": [1.0, 10.0, 100.0]},
        queries={"epsilon": {"delta": 1e-5}},
    )
    frame = found.to_pandas()
    assert list(frame["epsilon"][:3]) == list(found["epsilon"][:3])
    assert frame["refused"][4].startswith("noise_multiplier must be a positive")
    cube = found.to_xarray()
    picked = cube["epsilon"].sel(noise_multiplier=1.0, num_steps=10.0)
    assert float(picked) == found.grid("epsilon")[0, 1]
    again = fdp.sweep(
        _many,
        frame[["noise_multiplier", "num_steps"]],
        queries={"epsilon": {"delta": 1e-5}},
    )
    assert np.array_equal(again["epsilon"], found["epsilon"], equal_nan=True)
    ax = fdp.plot.sweep_map(found, "epsilon")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("num_steps", "noise_multiplier")
    front = fdp.plot.pareto_front(found, "num_steps", "epsilon")
    (line,) = [x for x in front.lines if x.get_drawstyle() == "steps-post"]
    assert list(np.asarray(line.get_ydata())) == [found["epsilon"][0]]
    with pytest.raises(ValueError, match="a map has two axes"):
        fdp.plot.sweep_map(found, "epsilon", at={"num_steps": 10.0})


def test_the_command_line_runs_and_goes_on(tmp_path, capsys):
    file, out = tmp_path / "sweep.toml", tmp_path / "out"
    file.write_text(
        'mechanism = "Gaussian"\n'
        "chunk_size = 4\n"
        "[grid]\n"
        'noise_multiplier = {from = 1.0, to = 8.0, count = 4, spacing = "log"}\n'
        "goal = [1.0, 3.0]\n"
        "[queries]\n"
        "epsilon = {delta = 1e-5}\n"
        'noise = {target = "ApproxDP", epsilon = "goal", delta = 1e-5, '
        'solve_for = "noise_multiplier"}\n'
    )
    picture, page = tmp_path / "map.png", tmp_path / "page.html"
    for plot in (picture, page):
        arguments = ["sweep", str(file), "--out", str(out), "--plot", str(plot)]
        assert main(arguments) == 0
        assert "epsilon: 8 tight" in capsys.readouterr().out
    found = fdp.sweeps.load(out)
    np.testing.assert_allclose(_delta(found["noise"], found["goal"]), 1e-5, rtol=1e-9)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<html" in page.read_text(encoding="utf-8").lower()[:500]
    file.write_text("grid = 3\nfoo = 1")
    assert main(arguments) == 2
    assert "foo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("[grid]\nnoise_multiplier = [1, 2]\ngoal = [1, 2]\nstart = [3, 4]", "goal"),
        ("[grid]\nnoise_multiplier = [1, 2]\ngoal = 1.0", r"\['noise_multiplier'\]"),
        ("[columns]\nnoise_multiplier = [1, 2]\ngoal = [1, 2]", r"over \[\]"),
    ],
)
def test_a_map_that_cannot_be_drawn_is_refused_before_the_sweep(
    columns, named, tmp_path, capsys
):
    file = tmp_path / "sweep.toml"
    file.write_text(f"{columns}\n[queries]\nepsilon = {{delta = 1e-5}}\n")
    out, picture = tmp_path / "out", tmp_path / "map.png"
    assert main(["sweep", str(file), "--out", str(out), "--plot", str(picture)]) == 2
    assert re.search(f"--plot draws a map.*{named}", capsys.readouterr().err)
    assert not out.exists()


@pytest.mark.parametrize(
    ("mechanism", "first", "target", "words"),
    [
        ("Laplac", 1, "ApproxDP", "got 'Laplac': did you mean Laplace?"),
        ("Laplace(-2)", 1, "ApproxDP", "positive number, got -2"),
        (
            "Laplace",
            -1,
            "ApproxDP",
            "from of noise_multiplier must be a finite positive number",
        ),
        ("Laplace", "'a'", "ApproxDP", "must be a finite positive number, got 'a'"),
        ("Laplace", 1, "AproxDP", "got 'AproxDP': did you mean ApproxDP?"),
    ],
)
def test_slips_in_a_file_are_one_line(
    mechanism, first, target, words, tmp_path, capsys
):
    file = tmp_path / "sweep.toml"
    file.write_text(
        f"mechanism = '{mechanism}'\n[grid]\nnoise_multiplier = "
        f"{{from = {first}, to = 2, count = 3, spacing = 'log'}}\n[queries]\nfound = "
        f"{{target = '{target}', epsilon = 1.0, delta = 1e-5, solve_for = 'x'}}\n"
    )
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert words in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grid = 3", "grid must be a table [grid], got 3"),
        ("queries = 3\n[grid]\nx = 1", "queries must be a table [queries], got 3"),
        ("[grid]\nx = {from = 1, to = 2, count = 2.5}", "count of x must be a Python"),
        ("[grid]\nx = {from = 1, to = 2, count = 0}", "count of x must be in [1,"),
        ("[grid]\nx = {from = 1, to = 2, count = 3, spacing = []}", "spacing 'linear'"),
    ],
)
def test_values_of_another_kind_are_one_line(text, words, tmp_path, capsys):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert words in error


def test_a_sweep_without_an_answer_is_status_3(tmp_path, capsys):
    file = tmp_path / "sweep.toml"
    file.write_text(
        "mechanism = 'Laplace'\n[grid]\nnoise_multiplier = [1.0, 2.0]\n"
        "[queries]\nepsilon = {delta = 3}\n"
    )
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 3
    assert "delta must be in [0, 1], got 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--xla_cpu_enable_fast_math=false", False),
        ("--xla_backend_extra_options=xla_cpu_flatten_after_fusion=true", True),
    ],
)
def test_the_command_line_asks_for_whole_loops(given, kept):
    """Of an XLA that takes the option, and never against what the user asked for."""
    code = (
        "import os, jax; from fdp_jax.cli import _sweep; _sweep._set_up_cpu();"
        "jax.jit(lambda x: 2 * x)(1.0); print(os.environ['XLA_FLAGS'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"XLA_FLAGS": given},
        capture_output=True,
        text=True,
        check=True,
    )
    flags = found.stdout.split()
    assert flags[0] == given
    assert any("small_while_loop" in flag for flag in flags[1:]) != kept


def test_pictures_take_names_and_refuse_what_they_cannot_draw():
    found = fdp.sweep(
        lambda kind: None,
        {"kind": ["a", "b"], "n": [1.0, 2.0]},
        queries={"z": lambda n: 2 * n, "list": lambda n: n * np.ones(2)},
    )
    ax = fdp.plot.sweep_map(found, "z")
    assert [x.get_text() for x in ax.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ValueError, match="one number at each place"):
        fdp.plot.sweep_map(found, "list")
    with pytest.raises(ValueError, match="at must be a mapping"):
        fdp.plot.sweep_map(found, "z", at=[1])  # pyright: ignore[reportArgumentType]
    for name in ("kind", "list"):
        with pytest.raises(ValueError, match=f"column '{name}' must hold one number"):
            fdp.plot.pareto_front(found, "z", name)
    for draw in (fdp.plot.sweep_map, fdp.plot.pareto_front):
        with pytest.raises(TypeError, match=r"source must be what fdp\.sweep returns"):
            draw(3, "z", "z")  # pyright: ignore


def _lines(axis, values):
    return fdp.sweep(
        lambda: None,
        {axis: values, "other": [2.0, 1.0], "same": 7},
        queries={"z": lambda same, **row: same * row[axis] / row["other"]},
    )


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (list(np.geomspace(0.6, 6.0, 12)), "log"),
        (list(np.linspace(0.6, 6.0, 12)), "linear"),
        ([1000.0, 10_000.0], "log"),
        ([1000.0, 2000.0], "linear"),
        ([1.0, 2.0, 5.0, 10.0, 20.0], "log"),
        ([-1.0, 1.0, 10.0], "linear"),
        ([0.0, 1.0, 100.0], "linear"),
        ([3.0], "linear"),
    ],
)
def test_maps_have_the_scale_of_the_grid_and_cells_around_its_values(values, scale):
    found = _lines("a", values)
    ax = fdp.plot.sweep_map(found, "z")
    assert ax.get_yscale() == scale
    assert ax.get_title().endswith("same = 7")
    (mesh,) = [x for x in ax.collections if isinstance(x, QuadMesh)]
    edges = np.asarray(mesh.get_coordinates())[:, 0, 1]
    assert np.all(edges[:-1] < values)
    assert np.all(values < edges[1:])
    assert scale == "linear" or edges[0] > 0
    # Columns are drawn in the order of their numbers: 1 before 2, as given or not.
    drawn = np.asarray(mesh.get_array()).reshape(len(values), 2)
    assert drawn == pytest.approx(found.grid("z")[:, ::-1])
    spec = chart(found, "z", x=None, y=None).to_dict()
    assert spec["title"] == ax.get_title()
    answers = spec["layer"][0]
    assert answers["mark"]["type"] == ("rect" if len(values) > 1 else "square")
    if len(values) > 1:
        assert answers["encoding"]["y"]["scale"]["type"] == scale
        (rows,) = spec["datasets"].values()
        assert [row["y to"] for row in rows] == pytest.approx(edges[1:].repeat(2))


def test_maps_tell_what_is_asked_at_and_have_round_lines():
    found = fdp.sweep(
        fdp.Gaussian,
        {"noise_multiplier": [0.5, 1.0, 4.0, 16.0], "delta": [1e-5, 1e-6]},
        queries={"at": {"delta": "delta"}, "fixed": {"delta": 1e-5}},
    )
    assert found.asked == {"at": {"delta": "delta"}, "fixed": {"delta": 1e-5}}
    assert fdp.plot.sweep_map(found, "at").get_title() == ""
    ax = fdp.plot.sweep_map(found, "fixed")
    assert ax.get_title() == "delta = 1e-05"
    (levels,) = [x.levels for x in ax.collections if isinstance(x, ContourSet)]
    assert set(levels) <= {k * 10.0**p for k in (1, 2, 3, 5) for p in range(-3, 3)}
    assert len(list(levels)) >= 3


def _page_of():
    found = fdp.sweep(
        lambda: None,
        {"kind": ["a", "b"], "n.1": [1.0, 2.0, 400.0], "m": [3, 4]},
        queries={"z": lambda **row: row["n.1"] * row["m"]},
    )
    return found.assign(half=found["z"] / 2)


def test_a_page_shows_what_the_table_holds():
    found = _page_of()
    spec = chart(found, "z", x=None, y=None).to_dict()
    (rows,) = spec["datasets"].values()
    assert len(rows) == 12
    for place, row in enumerate(rows):
        assert row["refused"] == ""
        for name in ("z", "n.1", "m", "kind", "half"):
            assert row[name] == found[name][place], name
    answers, refused = spec["layer"]
    encoding = answers["encoding"]
    assert (encoding["x"]["title"], encoding["y"]["title"]) == ("m", "n.1")
    assert refused["encoding"]["y"]["field"] == r"n\.1"
    assert encoding["color"]["field"] == "z"
    assert encoding["y"]["scale"]["type"] == "log"
    assert encoding["x"]["scale"]["type"] == "linear"
    told = {tip["title"] for tip in refused["encoding"]["tooltip"]}
    assert told == {*found, "refused"}
    (menu,) = [x for x in spec["params"] if "bind" in x and x["bind"] != "scales"]
    assert menu["bind"]["options"] == ["a", "b"]
    chosen = [x for x in spec["transform"] if menu["name"] in str(x["filter"])]
    assert chosen == [{"filter": f'datum["kind"] === {menu["name"]}'}]


def test_a_page_marks_what_has_no_number(tmp_path, monkeypatch):
    found = fdp.sweep(
        fdp.Laplace,
        {"noise_multiplier": [1.0, -1.0]},
        queries={
            "z": lambda noise_multiplier: noise_multiplier / 3,
            "lengths": lambda noise_multiplier: noise_multiplier * np.ones(2),
        },
    ).assign(much=[np.inf, 1.0])
    (rows,) = chart(found, "z", x=None, y=None).to_dict()["datasets"].values()
    assert rows[0]["z"] == found["z"][0]
    assert rows[0]["much"] == "inf"
    assert rows[1]["refused"] == found.refused[1]
    with pytest.raises(ValueError, match="'lengths' must have one number in a row"):
        fdp.plot.sweep_page(found, "lengths", tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"path must end in \.html, got .*x\.png"):
        fdp.plot.sweep_page(found, "z", tmp_path / "x.png")
    with pytest.raises(KeyError, match="no column 'nothing'"):
        fdp.plot.sweep_page(found, "z", tmp_path / "page.html", x="nothing")
    monkeypatch.setattr("fdp_jax.plot._page._MOST_ROWS", 1)
    with pytest.raises(ValueError, match="a page may have 1 configurations, got 2"):
        fdp.plot.sweep_page(found, "z", tmp_path / "page.html")
    monkeypatch.setattr("fdp_jax.plot._page._MOST_ROWS", 2)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"needs .*fdp-jax\[html\]"):
        fdp.plot.sweep_page(found, "z", tmp_path / "page.html")
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ImportError, match=r"needs .*fdp-jax\[html\]"):
        fdp.plot.sweep_page(found, "z", tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_page_is_whole(tmp_path):
    """Nothing is loaded from elsewhere: the programs are in the file."""
    pytest.importorskip("vl_convert")
    file = tmp_path / "page.html"
    fdp.plot.sweep_page(_page_of(), "z", file)
    text = file.read_text(encoding="utf-8")
    assert "<script src=" not in text
    assert "half" in text
    assert "vega" in text
