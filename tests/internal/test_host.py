"""Questions of compiled programs, which are left to the programs of plain calls."""

import functools
import os
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax._internal import _float64_call
from fdp_jax._internal._host import (
    asked_of_host,
    closes_over_traced,
    whole_programs,
)
from fdp_jax._internal._precision import in_float64


def _run(noise, prob=0.01, steps=1000.0):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


QUESTIONS = {
    "epsilon": lambda s: _run(s).epsilon(delta=1e-5),
    "delta": lambda s: _run(s).delta(epsilon=1.0),
    "few steps": lambda s: _run(s, 0.3, 4.0).epsilon(delta=1e-6),
    "beta": lambda s: _run(s).beta(alpha=0.1),
    "bounds": lambda s: _run(s).bounds(delta=np.asarray([1e-3, 1e-6])),
    "remove": lambda s: _run(s).remove.log_delta(epsilon=2.0),
    "composed": lambda s: fdp.compose(_run(s), fdp.Laplace(s)).delta(epsilon=3.0),
}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_those_of_plain_calls(name, double):
    with jax.enable_x64(double):
        noise = jnp.asarray(1.25)
        plain, jitted = QUESTIONS[name](noise), jax.jit(QUESTIONS[name])(noise)
        for one, other in zip(*map(jax.tree.leaves, (plain, jitted)), strict=True):
            assert one.dtype == other.dtype
            # One may be interpreted still when the other is compiled.
            rtol = 1e-12 if double else 2e-7
            np.testing.assert_allclose(one, other, rtol=rtol)


def _equations(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count(" = ")


def test_programs_are_small_unless_an_engine_is_named():
    epsilon = lambda run: run.epsilon(delta=1e-5)
    asked = jax.make_jaxpr(lambda s, q, n: epsilon(_run(s, q, n)))
    assert str(asked(1.0, 0.01, 1000.0)).count(" = ") < 250
    named = lambda s, q, n: epsilon(_run(s, q, n).using("contour"))
    assert _equations(named, 1.0, 0.01, 1000.0) > 1000
    assert "pure_callback" not in str(jax.make_jaxpr(epsilon)(fdp.Gaussian(1.0)))


@in_float64
def _large(x, scale):
    for _ in range(20):
        x = jnp.sin(x) + scale
    return x, x > 0


@pytest.fixture
def small_ones_are_large(monkeypatch):
    monkeypatch.setattr(_float64_call, "_MOST_EQUATIONS", 30)


@pytest.mark.usefixtures("small_ones_are_large")
@pytest.mark.parametrize("double", [True, False])
def test_large_programs_run_on_the_host_and_transform_as_any(double):
    with jax.enable_x64(double):
        rtol = 1e-12 if double else 2e-7
        same = functools.partial(np.testing.assert_allclose, rtol=rtol)
        at = jnp.asarray(0.25), jnp.asarray(0.125)
        value = lambda *x: _large(*x)[0]
        assert "callback" in jax.jit(_large).lower(*at).as_text()
        for one, other in zip(jax.jit(_large)(*at), _large(*at), strict=True):
            assert one.dtype == other.dtype
            same(one, other)
        exact = jax.jit(lambda: _large(0.1, at[1])[0])()  # not the float32 next to it
        same(exact, _large(0.1, at[1])[0])
        slope = jax.grad(value, (0, 1))
        same(jax.jit(slope)(*at), slope(*at))
        bent = jax.grad(lambda *x: slope(*x)[1], 1)
        same(jax.jit(bent)(*at), bent(*at))
        many = jnp.linspace(0.125, 0.5, 4)
        each = [value(x, at[1]) for x in many]
        over = jax.vmap(value, (0, None))
        assert jax.jit(over).lower(many, at[1]).as_text().count("callback") == 1
        same(jax.jit(over)(many, at[1]), each)
        same(jax.jit(lambda x: jax.lax.map(lambda y: value(y, at[1]), x))(many), each)


@pytest.mark.usefixtures("small_ones_are_large")
def test_what_is_exported_or_must_not_call_back_holds_all_equations():
    at = jnp.asarray(0.25), jnp.asarray(0.125)
    found = jax.export.export(jax.jit(_large))(*at).call(*at)
    np.testing.assert_allclose(found[0], _large(*at)[0], rtol=1e-12)
    with whole_programs():
        assert "callback" not in jax.jit(lambda *x: _large(*x)).lower(*at).as_text()


LARGE = {
    "curve": lambda s: _run(s).curve().both.log_delta_grid.estimate,
    "divergence": lambda s: fdp.delta_divergence(_run(s), fdp.Gaussian(s)).value,
    "release": lambda s: fdp.RandomizedResponse(s).beta(alpha=0.125),
    "truncated": lambda s: _run(s, 0.25, 1.0).beta(alpha=0.125),
    "area": lambda s: fdp.divergences.auc(fdp.Laplace(s)),
}


@pytest.mark.parametrize("name", LARGE)
def test_no_answer_makes_a_large_program(name):
    text = jax.jit(LARGE[name]).lower(1.25).as_text()
    assert len(text.splitlines()) < 1_000


def test_derivatives_of_every_order_are_those_of_plain_calls():
    epsilon = lambda s, q, n: _run(s, q, n).epsilon(delta=1e-5)
    at, every = (1.25, 0.01, 1000.0), (0, 1, 2)
    slopes = jax.grad(epsilon, every)
    np.testing.assert_allclose(jax.jit(slopes)(*at), slopes(*at), rtol=1e-12)
    curved = jax.grad(jax.grad(epsilon))
    np.testing.assert_allclose(jax.jit(curved)(*at), curved(*at), rtol=1e-9)
    ahead = jax.jit(lambda *x: jax.jvp(epsilon, x, (1.0, 0.0, 2.0))[1])(*at)
    first, _, last = slopes(*at)
    np.testing.assert_allclose(ahead, first + 2 * last, rtol=1e-12)


def test_derivatives_in_several_numbers_at_once():
    asked = lambda s, deltas: _run(s).epsilon(delta=deltas)
    deltas = jnp.asarray([1e-4, 1e-6])
    found = jax.jit(jax.jacobian(asked, (0, 1)))(1.25, deltas)
    for i, delta in enumerate(deltas):
        one = jax.grad(lambda s, d: _run(s).epsilon(delta=d), (0, 1))(1.25, delta)
        np.testing.assert_allclose(found[0][i], one[0], rtol=1e-9)
        np.testing.assert_allclose(found[1][i], one[1] * np.eye(2)[i], rtol=1e-9)


def test_batches_of_batches_and_loops():
    epsilon = lambda s, q: _run(s, q).epsilon(delta=1e-5)
    noises, probs = np.asarray([1.0, 1.25]), np.asarray([0.01, 0.02, 0.03])
    wanted = np.asarray([[epsilon(s, q) for q in probs] for s in noises])
    over = lambda f, axes: jax.vmap(f, in_axes=axes)
    batch = over(over(epsilon, (None, 0)), (0, None))
    np.testing.assert_allclose(jax.jit(batch)(noises, probs), wanted, rtol=1e-12)
    mapped = jax.jit(lambda x: jax.lax.map(lambda s: epsilon(s, 0.01), x))(noises)
    np.testing.assert_allclose(mapped, wanted[:, 0], rtol=1e-12)
    enough = jax.jit(
        lambda s: jax.lax.while_loop(
            lambda s: epsilon(s, 0.01) > 1.5, lambda s: s + 0.125, s
        )
    )
    assert enough(1.0) == 1.125
    slopes = jax.vmap(jax.grad(epsilon), (0, None))
    np.testing.assert_allclose(
        jax.jit(slopes)(noises, 0.01), slopes(noises, 0.01), rtol=1e-12
    )


def test_rows_of_a_batch_that_are_in_doubt_are_asked_as_plain_calls():
    # The first engine leaves jumps loose: here values by a third, and derivatives six
    # times too steep.
    def leaked(scale, epsilon):
        return fdp.Laplace(scale).repeat(2).delta(epsilon=epsilon, bound="estimate")

    noises, epsilons = np.asarray([1.0, 2.0]), np.asarray([0.5, 0.7])
    step = 1e-3
    wanted = np.asarray(
        [
            (leaked(s + step, epsilons) - leaked(s - step, epsilons)) / (2 * step)
            for s in noises
        ]
    )
    in_both = lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None))
    found = in_both(leaked)(noises, epsilons)
    exact = [leaked(s, epsilons) for s in noises]
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    # One row of each kind, and two where they might be mixed up.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5)
    close(in_both(jax.grad(leaked))(noises, epsilons[:1]), wanted[:, :1])
    total = lambda s: jax.vmap(lambda e: leaked(s, e))(epsilons).sum()
    close(jax.vmap(jax.grad(total))(noises[:1]), np.sum(wanted[:1], axis=1))
    ahead = jax.jacfwd(lambda s: jax.vmap(lambda x: leaked(x, 0.7))(s))(noises)
    close(ahead, np.diag(wanted[:, 1]), atol=1e-12)
    with jax.enable_x64(False):
        first = noises[:1].astype("float32")
        single = jax.vmap(jax.grad(leaked), (0, None))(first, 0.7)
        assert single.dtype == jnp.float32
    close(single, wanted[:1, 1])


def test_calibration_and_its_derivative():
    target = functools.partial(fdp.targets.ApproxDP, delta=1e-5)
    noise = lambda epsilon, prob: fdp.calibrate(
        fdp.DPSGD(sampling_prob=prob, num_steps=1000),
        target(epsilon=epsilon),
        solve_for="noise_multiplier",
    )
    at = 2.0, 0.01
    found, plain = jax.jit(noise)(*at), noise(*at)
    assert found.value == plain.value
    assert found.status == plain.status
    assert found.mechanism.epsilon(delta=1e-5) == plain.mechanism.epsilon(delta=1e-5)
    value = jax.grad(lambda *x: noise(*x).value, (0, 1))
    np.testing.assert_allclose(jax.jit(value)(*at), value(*at), rtol=1e-9)
    assert _equations(lambda *x: noise(*x).value, *at) < 400


def test_what_may_need_a_traced_number_behind_our_back_is_told():
    flat = lambda x, s: -0.5 * jnp.square(x / s)
    seen = []

    def held(noise):
        inner = lambda x, s: flat(x - noise, s)
        outer = lambda x, s: inner(x, s)
        by_default = lambda x, s=noise: flat(x, s)

        def again(x):
            return again(x - 1) if x > 1 else outer(x, 1.0)

        values = flat, inner, outer, by_default, again, {"a": [outer]}, np.zeros(2)
        seen.append([closes_over_traced(value) for value in values])
        return noise

    jax.jit(held)(1.0)
    assert seen.pop() == [False, *[True] * 5, False]
    held(1.0)
    assert not any(seen.pop())

    class Own:  # of which nothing is known
        def itself(self):
            return super().__init__()

    assert closes_over_traced(Own())


def test_numbers_of_another_precision_and_empty_batches():
    with jax.enable_x64(True):
        epsilon = lambda s: _run(s).epsilon(delta=1e-5)
        slope = jax.jit(jax.grad(epsilon))(np.float32(1.25))
        assert slope.dtype == np.float32
        np.testing.assert_allclose(slope, jax.grad(epsilon)(1.25), rtol=1e-6)
        assert jax.jit(jax.vmap(epsilon))(np.zeros(0)).shape == (0,)


def test_what_the_host_raises_comes_out():
    def refuse(x):
        raise ValueError(f"no {float(x)} here")

    number = jax.ShapeDtypeStruct((), float)
    asked = jax.jit(lambda x: asked_of_host(refuse, x, [(number, True)]))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"no 2\.0 here"):
        jax.block_until_ready(asked(2.0))


def test_whole_numbers_have_no_derivative():
    number = jax.ShapeDtypeStruct((), float)
    count = jax.ShapeDtypeStruct((), np.int32)
    asked = lambda x, n: asked_of_host(
        lambda args: (args[0] ** args[1], np.int32(3)),
        (x, n),
        [(number, True), (count, False)],
    )
    found, slope = jax.jit(jax.value_and_grad(lambda x: asked(x, 4)[0]))(3.0)
    assert (found, slope) == (81, 108)
    assert jax.jit(asked)(3.0, 4)[1] == 3
    assert jax.jit(jax.grad(jax.grad(lambda x: asked(x, 4)[0])))(3.0) == 108


_ONE_CORE = """
import os, sys, threading
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp
import fdp_jax as fdp
run = lambda s: fdp.DPSGD(noise_multiplier=s, sampling_prob=0.01, num_steps=1000.0)

@jax.jit
def asked(s):
    x = jnp.ones((300, 300)) * s
    for _ in range(3):
        x = jnp.tanh(x @ x * 1e-3)
    return [run(s + 0.1 * i).epsilon(delta=1e-5) for i in range(6)], x.sum()

def ask(s):
    jax.block_until_ready([asked(s + 0.01 * i) for i in range(8)])

threads = [threading.Thread(target=ask, args=(1.0 + i,)) for i in range(4)]
[x.start() for x in threads]
[x.join() for x in threads]
print(float(asked(1.0)[0][0]))
"""


_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import fdp_jax as fdp
run = lambda s: fdp.DPSGD(noise_multiplier=s, sampling_prob=0.01, num_steps=1000)
each = lambda s: jax.lax.map(lambda x: run(x).epsilon(delta=1e-5), s)
mesh = jax.sharding.Mesh(np.array(jax.devices()), "part")
parts = jax.sharding.PartitionSpec("part")
sweep = jax.shard_map(each, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)
lowered = jax.jit(sweep).lower(jnp.linspace(0.8, 1.2, 32))
print(lowered.as_text().count("callback"))
"""


def test_programs_of_several_devices_do_not_call_the_host():
    """Their threads, which would wait for answers, are all that could find them."""
    done = subprocess.run(
        [sys.executable, "-c", _DEVICES],
        env=dict(os.environ, EQX_ON_ERROR="nan"),  # nor by checks of numbers
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == 0


def test_one_core_answers_many_questions_at_once():
    """A program that waits for the host must not keep it from answering."""
    done = subprocess.run(
        [sys.executable, "-c", _ONE_CORE],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert float(done.stdout) == pytest.approx(1.8282367, rel=1e-6)
