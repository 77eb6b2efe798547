"""Times of calibrations, warm: single ones, a schedule's gradient, and a batch.

python benchmarks/calibration.py [--batch 1000] [--steps 1000]
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fdp_jax as fdp

_REPEATS = 5


def _median(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the first call and the median of later ones."""
    started = time.perf_counter()
    jax.block_until_ready(call())
    first = time.perf_counter() - started
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return first, float(np.median(times))


def _report(name: str, call: Callable[[], Any]) -> None:
    first, later = _median(call)
    print(f"{name:44} first {first:7.2f} s, then {1e3 * later:10.2f} ms", flush=True)


def _single(target: fdp.targets.AbstractTarget) -> Callable[[], Any]:
    family = fdp.DPSGD(sampling_prob=256 / 60_000, num_steps=14_062)
    return lambda: fdp.calibrate(family, target, solve_for="noise_multiplier").value


def _steps(log_noise: jax.Array) -> fdp.Schedule:
    step = lambda s: fdp.PoissonSubsampled(fdp.Gaussian(s), 0.01)
    return fdp.Schedule(step, jnp.exp(log_noise))


def _schedule(num_steps: int) -> Callable[[], Any]:
    spent = lambda log_noise: _steps(log_noise).epsilon(delta=1e-6)
    both = jax.jit(jax.value_and_grad(spent))
    log_noise = jnp.linspace(-0.2, 0.2, num_steps)
    return lambda: both(log_noise)


def _scaled_schedule(num_steps: int) -> Callable[[], Any]:
    target = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-6)

    @jax.jit
    @jax.value_and_grad
    def cost(log_noise: jax.Array) -> jax.Array:
        scaled = fdp.scale_to_budget(_steps(log_noise), target)
        noise = jax.tree.leaves(scaled)[0]
        return jnp.mean(jnp.square(noise))

    log_noise = jnp.linspace(-0.2, 0.2, num_steps)
    return lambda: cost(log_noise)


def _batch(size: int) -> Callable[[], Any]:
    """A part of the batch on every device: see docs/performance.md."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "part")
    parts = jax.sharding.PartitionSpec("part")
    place = jax.sharding.NamedSharding(mesh, parts)
    size -= size % mesh.size
    random = np.random.default_rng(0)
    drawn = (
        10 ** random.uniform(-3.5, -1.5, size),
        10 ** random.uniform(2.5, 4.5, size),
        random.uniform(0.5, 8.0, size),
    )
    arguments = jax.device_put(drawn, place)

    @jax.vmap
    def noise(q: jax.Array, steps: jax.Array, epsilon: jax.Array) -> jax.Array:
        target = fdp.targets.ApproxDP(epsilon=epsilon, delta=1e-5)
        family = fdp.DPSGD(sampling_prob=q, num_steps=steps)
        return fdp.calibrate(family, target, solve_for="noise_multiplier").value

    each = jax.shard_map(
        noise, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False
    )
    compiled = jax.jit(each)
    return lambda: compiled(*arguments)


def main() -> None:
    """Print one line for each task."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    targets = fdp.targets
    point = targets.ApproxDP(epsilon=3.0, delta=1e-5)
    _report("noise for (3, 1e-5)-DP", _single(point))
    rates = targets.ErrorRates(alpha=0.01, beta=0.9)
    _report("noise for beta >= 0.9 at alpha = 0.01", _single(rates))
    schedule = _schedule(arguments.steps)
    _report(f"epsilon of {arguments.steps} steps, with gradient", schedule)
    scaled = _scaled_schedule(arguments.steps)
    _report(f"{arguments.steps} steps scaled to a budget, with gradient", scaled)
    _report(f"{arguments.batch} calibrations in a batch", _batch(arguments.batch))
    reference = fdp.tradeoff.Gaussian(0.6)
    _report("noise for a trade-off function", _single(targets.TradeOff(reference)))


if __name__ == "__main__":
    main()
