"""What an attack has shown about a run, beside what the run guarantees."""

import fdp_jax as fdp

run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
curve = run.curve()
counts = fdp.audit.Counts(
    true_positives=400, false_negatives=600, false_positives=250, true_negatives=750
)
shown = fdp.audit.epsilon_lower_bound(counts, delta=1e-5, confidence=0.95)
print(f"{shown:.4f} <= epsilon <= {curve.epsilon(delta=1e-5):.4f}")
for claim in (curve, fdp.tradeoff.Gaussian(0.1)):
    verdict = fdp.audit.falsifies(claim, counts, level=0.01)
    print(f"falsified: {verdict.falsified}, p-value {verdict.p_value:.2g}")
fdp.plot.audit(curve, counts).figure.savefig("audit.pdf")
