"""Least noise for (1, 1e-5)-DP, handed to optax, in a script of float32 numbers."""

import jax
import optax
from optax import contrib

import fdp_jax as fdp

target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
run = fdp.DPSGD(sampling_prob=256 / 60_000, num_steps=3_500)
found = fdp.calibrate(run, target, solve_for="noise_multiplier")
noise = float(found.value)
private = contrib.differentially_private_aggregate(1.5, noise, jax.random.key(0))
optimizer = optax.chain(private, optax.sgd(0.25))
print(f"noise multiplier {noise:.4f}")
