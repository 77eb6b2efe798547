"""Batch size and number of steps by gradient through the calibrated noise."""

import jax
import jax.numpy as jnp

import fdp_jax as fdp

records, examples, dimension = 60_000, 600_000, 1_000
target = fdp.targets.ApproxDP(epsilon=3.0, delta=1e-5)


def noise(batch):
    run = fdp.DPSGD(sampling_prob=batch / records, num_steps=examples / batch)
    return fdp.calibrate(run, target, solve_for="noise_multiplier").value


def cost(z):  # few steps cost as much as noise does
    batch = jnp.exp(z)
    return batch / examples + 0.01 * dimension * (noise(batch) / batch) ** 2


z = jnp.log(300.0)
for _ in range(8):
    z -= 0.5 * jax.grad(lambda z: jnp.log(cost(z)))(z)
print(f"batch size {jnp.exp(z):.0f}, noise multiplier {noise(jnp.exp(z)):.4f}")
