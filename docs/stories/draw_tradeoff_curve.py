"""The trade-off curve of a run, and what no attacker can exceed."""

import fdp_jax as fdp

run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
curve = run.curve()
ax = fdp.plot.tradeoff(curve, scale="log")
ax.figure.savefig("tradeoff.pdf")
print(f"epsilon <= {curve.epsilon(delta=1e-5):.4f} at delta = 1e-5")
print(f"TPR <= {curve.tpr(fpr=1e-3):.5f} at FPR = 1e-3")
print(f"TPR - FPR <= {curve.advantage():.4f}")
print(f"error >= {curve.bayes_error(prior=0.5):.4f} at prior 1/2")
