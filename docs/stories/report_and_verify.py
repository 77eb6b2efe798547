"""A report for a model card, and a check of it by other means."""

import shlex

from fdp_jax.cli import main

run = "--noise-multiplier 1 --sampling-prob 0.01 --num-steps 1000"
main(shlex.split(f"report {run} --delta 1e-5 --json report.json"))
status = main(shlex.split("verify report.json"))  # 3 if something is contradicted
