"""An account of steps with changing noise and batch size, saved and taken up again."""

import fdp_jax as fdp

accountant = fdp.Accountant()
for noise, prob in ((1.2, 0.01), (1.0, 0.02)):
    step = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=1)
    accountant = accountant.step(step, count=300)
    print(f"so far: epsilon <= {accountant.epsilon(delta=1e-5):.4f}")
accountant.save("account")
resumed = fdp.Accountant.load("account")
left = resumed.remaining(fdp.targets.ApproxDP(epsilon=3.0, delta=1e-5), step)
print(f"{left} more such steps up to epsilon = 3")
