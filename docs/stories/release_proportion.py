"""A private proportion with a p-value and an interval, from one noisy count."""

import jax

import fdp_jax as fdp

f = fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
found = fdp.inference.binomial_test(
    jax.random.key(0), 62, 100, 0.5, f, alternative="greater"
)
print(found)
