"""Programs on disk: the same numbers, whatever stands in the folder."""

import concurrent.futures
import functools
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys

import equinox as eqx
import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax._internal import _program_cache as cache
from fdp_jax._internal._compilation import (
    _lasting_name,
    compiled_for,
    foreign_classes,
    jit_on_its_own,
)
from fdp_jax._internal._files import write_at_once
from fdp_jax.curves._queries import epsilon_bounds

PROGRAM = """
import json, sys
import jax.monitoring

made = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **named: made.append(named.get("fun_name"))
    if event.endswith(sys.argv[1]) else None
)
import fdp_jax as fdp

bounds = fdp.Gaussian(1.7).bounds(epsilon=2.0)
refused = ""
try:
    normal = lambda x, u: -0.5 * (x - u) ** 2
    pair = fdp.FromLogDensities(
        normal, normal, support=(-9.0, 9.0), params=0.0, log_beyond=-40.0
    )
    pair.delta(epsilon=1.0)
except RuntimeError as error:
    refused = str(error)
ends = [float(x).hex() for x in (bounds.lower, bounds.estimate, bounds.upper)]
print(json.dumps([ends, sum("flat" in name for name in made), bounds.method, refused]))
"""


_MADE = {"off": "backend_compile_duration", "on": "jaxpr_trace_duration"}
"""What happens to a program that is not on disk, by whether it may be interpreted."""


def _ask(folder: pathlib.Path | str, interpret: str = "off") -> subprocess.Popen:
    environment = dict(os.environ, FDP_JAX_CACHE=str(folder), JAX_ENABLE_X64="1")
    environment["FDP_JAX_INTERPRET"] = interpret
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, _MADE[interpret]],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen) -> tuple[list[str], int, str]:
    out, _ = process.communicate()
    assert process.returncode == 0
    ends, made, method, refused = json.loads(out.splitlines()[-1])
    assert "must integrate to 1" in refused  # checks work with and without the folder
    return ends, made, method


@pytest.mark.parametrize("interpret", _MADE)
def test_numbers_are_the_same_from_disk_and_damaged_files_do_no_harm(
    tmp_path, interpret
):
    ask = functools.partial(_ask, interpret=interpret)
    place = tmp_path / "programs"
    # Two writers at once, of compiled programs (the later may find all that the earlier
    # has made); those that are interpreted are files, too.
    both = [_answer(x) for x in [ask(place) for _ in range(1 + (interpret == "off"))]]
    fresh = _answer(ask("off"))
    assert any(made > 0 for _, made, _ in both)
    files = sorted(place.iterdir())
    assert files
    assert all(file.suffix == ".program" for file in files)
    again = _answer(ask(place))
    assert again[1] < fresh[1]
    assert both[0][::2] == both[-1][::2] == again[::2] == fresh[::2]

    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        if number % 2:
            content = content[: len(content) // 2]
        else:
            content[-7] ^= 1
        file.write_bytes(content)
    damaged = _answer(ask(place))
    assert damaged[1] == fresh[1]
    assert damaged[::2] == fresh[::2]
    # They have been replaced.
    assert _answer(ask(place))[1] == again[1]


def test_what_another_cache_had_is_not_kept(tmp_path, monkeypatch):
    """JAX's own: its programs, written once more, are no longer whole."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "of_jax"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    first = _answer(_ask(tmp_path / "one"))
    assert list((tmp_path / "of_jax").iterdir())
    # The last one would find what the one before has kept.
    for _ in range(2):
        assert _answer(_ask(tmp_path / "other")) == first


SLOPE = """
import jax
import jax.monitoring

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **named: compiled.append(named.get("fun_name"))
    if event.endswith("backend_compile_duration") else None
)
import fdp_jax as fdp

slope = jax.grad(lambda s: fdp.Gaussian(s).epsilon(delta=1e-5))(1.7)
print(float(slope).hex(), sum("flat" in name for name in compiled if name))
"""


def test_slopes_outside_of_programs_are_kept_too(tmp_path):
    def ask(folder):
        environment = dict(os.environ, FDP_JAX_CACHE=str(folder))
        environment |= {"JAX_ENABLE_X64": "0", "FDP_JAX_INTERPRET": "off"}
        found = subprocess.run(
            [sys.executable, "-c", SLOPE],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        slope, compiled = found.stdout.split()
        return slope, int(compiled)

    first, again = ask(tmp_path), ask(tmp_path)
    assert first[0] == again[0]
    assert first[1] > again[1] == 0


def test_names_depend_on_all_that_programs_do(monkeypatch):
    known = cache.key_of("epsilon", "f64[]")
    assert known == cache.key_of("epsilon", "f64[]")
    assert known != cache.key_of("epsilon", "f64[2]")
    assert known != cache.key_of("epsilonf64[]", "")
    # Addresses say nothing of what stands there in another process.
    assert cache.key_of("<function f at 0x7f0000>") is None
    with jax.debug_nans(True):
        assert known != cache.key_of("epsilon", "f64[]")
    version = lambda name: "0.0.0"
    monkeypatch.setattr(cache.importlib.metadata, "version", version)
    cache._surroundings.cache_clear()
    try:
        assert known != cache.key_of("epsilon", "f64[]")
    finally:
        cache._surroundings.cache_clear()


class Mine(eqx.Module):
    """A class of a user's, which may be another one in the next process."""

    inner: fdp.Gaussian


class Thing:
    """What JAX knows nothing about."""


class Holder(eqx.Module):
    """A class with something in it that is no tree."""

    thing: Thing = eqx.field(static=True)


def test_only_arguments_of_this_package_are_kept():
    foreign = lambda tree: set(foreign_classes(jax.tree.structure(tree)))
    assert not foreign((fdp.Gaussian(1.0), {"x": [1.0]}, None))
    assert foreign(Mine(fdp.Gaussian(1.0))) == {Mine}
    assert foreign((1.0, {"x": Mine(fdp.Gaussian(1.0))})) == {Mine}
    assert foreign(Holder(Thing())) == {Holder, Thing}
    leaves, structure = jax.tree.flatten((1.0, np.float64(1.0), Thing()))
    assert set(foreign_classes(structure, leaves)) == {Thing}


def test_only_functions_that_hold_on_to_nothing_are_kept():
    kept = inspect.unwrap(epsilon_bounds)
    assert _lasting_name(kept) == "fdp_jax.curves._queries.epsilon_bounds"
    assert _lasting_name(functools.partial(kept)) is None
    assert _lasting_name(lambda x: x) is None
    assert _lasting_name(foreign_classes) is not None
    assert _lasting_name(json.dumps) is None


def test_the_folder_is_bounded_and_can_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("FDP_JAX_CACHE", "off")
    assert cache.folder() is None
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    assert cache.folder() == tmp_path
    monkeypatch.setattr(cache, "_MOST_BYTES", 250)
    for index in range(4):
        write_at_once(tmp_path / f"{index}.program", bytes(100), private=True)
        os.utime(tmp_path / f"{index}.program", (index, index))
    cache._make_room(tmp_path)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["2.program", "3.program"]


def test_a_folder_is_looked_through_once_for_many_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_MOST_UNSEEN", 2500)
    looked, look = [], cache._make_room
    monkeypatch.setattr(cache, "_make_room", lambda x: looked.append(x) or look(x))
    monkeypatch.setattr(cache, "_MOST_BYTES", 3000)
    for index in range(6):
        cache.store(str(index), None, bytes(900))
        os.utime(tmp_path / f"{index}.program", (index, index))
    # Before anything is known of a folder, and then once for what was written since.
    assert looked == [tmp_path, tmp_path]
    assert cache.load("0") is None
    assert cache.load("5") is not None


def _kept(folder, monkeypatch):
    """A folder with one program, and its name."""
    monkeypatch.setenv("FDP_JAX_CACHE", str(folder))
    compiled = jax.jit(lambda leaves: [2 * leaves[0]]).lower([1.0]).compile()
    cache.store("first", compiled, "beside")
    found = cache.load("first")
    assert found is not None
    assert found[0]([3.0])[0] == 6
    assert found[1] == "beside"


def test_files_under_another_name_or_of_others_are_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "programs"
    _kept(folder, monkeypatch)
    shutil.copy(folder / "first.program", folder / "second.program")
    assert cache.load("second") is None
    os.chmod(folder / "first.program", 0o666)
    assert cache.load("first") is None
    os.chmod(folder / "first.program", 0o600)
    assert cache.load("first") is not None
    os.chmod(folder, 0o777)
    assert cache.load("first") is None


def cache_probe(x):
    return x + 1


cache_probe.__module__ = "fdp_jax.probe"  # as if it were the package's own


def test_threads_do_not_share_results(tmp_path, monkeypatch):
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    asked = jit_on_its_own(cache_probe)
    values = [float(k) for k in range(200)]
    ask = lambda x: asked(np.asarray(x)).item()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, values)) == [x + 1 for x in values]


def test_programs_of_one_text_are_told_apart_by_what_they_take(tmp_path, monkeypatch):
    """A text neither names the arguments nor has those that are not used."""
    monkeypatch.setenv("FDP_JAX_INTERPRET", "off")
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    given = [np.asarray(x) for x in (5.0, 2.0, 1.0)]
    for used, expected in ((slice(0, 2), 3.0), (slice(1, 3), 1.0), (slice(2), 3.0)):
        closed = jax.make_jaxpr(lambda *x, used=used: [jnp.subtract(*x[used])])(*given)
        assert jit_on_its_own(jec.jaxpr_as_fun(closed))(*given)[0] == expected
    fewer = jax.make_jaxpr(lambda x, y: [x - y])(*given[:2])
    assert jit_on_its_own(jec.jaxpr_as_fun(fewer))(*given[:2])[0] == 3.0
    devices, kind = jax.local_devices()[:1], jax.ShapeDtypeStruct((), float)
    columns = {"a": given[0], "b": given[1], "c": given[2]}
    for names in (("a", "b"), ("a", "c"), ("b", "c")):
        ask = lambda x, one, other: {one: x[one] - x[other]}
        ask = functools.partial(ask, one=names[0], other=names[1])
        run = compiled_for(devices, ask, [dict.fromkeys(columns, kind)], None)
        expected = {names[0]: columns[names[0]] - columns[names[1]]}
        assert run(columns) == expected
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 100])
def test_files_that_are_none_count_as_missing(tmp_path, monkeypatch, content):
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    (tmp_path / "k.program").write_bytes(content)
    assert cache.load("k") is None
    assert cache.load("other") is None
