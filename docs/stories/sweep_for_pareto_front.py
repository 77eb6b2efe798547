"""A sweep over configurations, kept in a folder, and its Pareto front."""

import numpy as np

import fdp_jax as fdp

found = fdp.sweep(
    fdp.DPSGD,
    {
        "noise_multiplier": np.geomspace(0.8, 1.6, 3),
        "sampling_prob": [0.005, 0.01],
        "num_steps": 1000,
    },
    queries={"epsilon": {"delta": 1e-5}},
    folder="sweep",
)
ax = fdp.plot.pareto_front(found, "epsilon", "noise_multiplier")
ax.figure.savefig("front.pdf")
print(found.summary())
