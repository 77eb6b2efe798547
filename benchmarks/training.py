"""Private training steps beside optax.contrib's, and what the account costs.

By turns in one process: a step of `fdp_jax.training` on a Poisson sample and on a batch
of a fixed size, per-example gradients of a batch of that size with
`optax.contrib.dpsgd`, and what a step does for the account, alone.

    python benchmarks/training.py
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

import fdp_jax as fdp

RECORDS, BATCH, WIDTH, INPUTS = 10_000, 256, 256, 784
TURNS = 40


def loss(model: Any, example: Any) -> Any:
    """Cross entropy of one example."""
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(model(image), label)


def data() -> Any:
    """Random images and labels: times do not depend on them."""
    random = np.random.default_rng(0)
    images = random.normal(size=(RECORDS, INPUTS)).astype(np.float32)
    return jnp.asarray(images), jnp.asarray(random.integers(0, 10, RECORDS))


def ours(scheme: Any, **options: Any) -> Callable[[], Any]:
    """Steps of a plan."""
    run = fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=100_000, **options)
    plan = fdp.training.Plan(run, num_records=RECORDS, clipping=1.0)
    trainer = fdp.training.Trainer(plan, loss, optax.sgd(0.1))
    model = eqx.nn.MLP(INPUTS, 10, WIDTH, 2, key=jax.random.key(0))
    held, records = [trainer.init(jax.random.key(1), model)], data()

    def step() -> Any:
        held[0], seen = trainer.step(held[0], records)
        return seen.size

    return step


def theirs() -> Callable[[], Any]:
    """The same of batches that are drawn by NumPy, as its users do."""
    model = eqx.nn.MLP(INPUTS, 10, WIDTH, 2, key=jax.random.key(0))
    trained, fixed = eqx.partition(model, eqx.is_inexact_array)
    transform: Any = contrib.dpsgd(0.1, 1.0, 1.0, 2)
    records, random = data(), np.random.default_rng(0)

    @jax.jit
    def one(trained: Any, state: Any, places: Any) -> Any:
        batch = jax.tree.map(lambda x: x[places], records)
        slope = jax.grad(lambda w, e: loss(eqx.combine(w, fixed), e))
        slopes = jax.vmap(slope, in_axes=(None, 0))(trained, batch)
        updates, state = transform.update(slopes, state, trained)
        return optax.apply_updates(trained, updates), state

    held = [(trained, transform.init(trained))]

    def step() -> Any:
        held[0] = one(*held[0], random.integers(0, RECORDS, BATCH))
        return jax.tree.leaves(held[0][0])[0]

    return step


def account() -> Callable[[], Any]:
    """What a step does for the account, alone: counts, checks and looks epsilon up."""
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=BATCH / RECORDS, num_steps=1000)
    plan = fdp.training.Plan(run, num_records=RECORDS, clipping=1.0)
    spent, transform = plan.progress(delta=1e-5), fdp.training.add_noise
    noise: Any = transform(plan, jax.random.key(0))
    nothing = jnp.zeros(0)
    held = [noise.init(nothing)]

    @eqx.filter_jit
    def one(state: Any) -> Any:
        empty = fdp.training.GradientSum.zero(nothing, plan.clipping, state.norm)
        _, state = noise.update(empty, state)
        return state, spent.at(state.step)

    def step() -> Any:
        held[0], epsilon = one(held[0])
        return epsilon

    return step


def main() -> None:
    """Measure and print the table."""
    rate = BATCH / RECORDS
    fixed = fdp.sampling.FixedSize(batch_size=BATCH, dataset_size=RECORDS)
    steps = {
        "optax.contrib.dpsgd": theirs(),
        "Poisson": ours(fdp.sampling.Poisson(rate)),
        "fixed size": ours(fixed, relation="replace_one"),
        "the account alone": account(),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            began = time.perf_counter()
            jax.block_until_ready(step())
            times[name].append(time.perf_counter() - began)
    first = times["optax.contrib.dpsgd"][3:]
    print("| step | ms, median | least | of optax.contrib's, median of turns | least |")
    print("|---|--:|--:|--:|--:|")
    for name, found in times.items():
        own = found[3:]
        ratios = [x / y for x, y in zip(own, first, strict=True)]
        numbers = [1e3 * statistics.median(own), 1e3 * min(own)]
        numbers += [statistics.median(ratios), min(own) / min(first)]
        print(f"| {name} | " + " | ".join(f"{x:.4g}" for x in numbers) + " |")


if __name__ == "__main__":
    main()
