"""A noise schedule by gradient; every iterate is (1, 1e-5)-DP."""

import jax
import jax.numpy as jnp

import fdp_jax as fdp

target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
weights = jnp.array([1.0, 4.0, 9.0, 16.0])  # later noise harms more


def noise(z):
    schedule = fdp.Schedule(fdp.Gaussian, jnp.exp(z))
    return fdp.scale_to_budget(schedule, target).steps.noise_multiplier


slope = jax.jit(jax.grad(lambda z: jnp.log(jnp.sum(weights * noise(z) ** 2))))
z = jnp.zeros(4)
for _ in range(60):
    z -= 0.5 * slope(z)
print(*(f"{x:.4f}" for x in noise(z)))
