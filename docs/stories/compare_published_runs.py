"""Two runs that both print (8, 1e-5), told apart."""

import fdp_jax as fdp

one = fdp.DPSGD(noise_multiplier=0.5415, sampling_prob=0.01, num_steps=500)
other = fdp.DPSGD(noise_multiplier=1.5857, sampling_prob=0.1, num_steps=534)
for run in (one, other):
    print(f"epsilon <= {run.epsilon(delta=1e-5):.3f}")
found = fdp.delta_divergence(one, other)
print(f"other instead of one: up to {found.value.upper:.4f} less error")
comparison = fdp.compare(one, other)
print(comparison)
