"""The command line `fdp-jax`.

`epsilon`, `delta`, `beta`, `tpr`, `bayes-error`, `advantage`, `calibrate`, `report` and
`compare` answer one question about DP-SGD runs or other mechanisms; `verify` computes
an answer again by other means; `sweep` asks about many configurations; `warm` compiles
programs beforehand; `demo` recomputes published runs; `completion` prints a shell's
completions.  Exit status: 0 if there is an answer, 2 for bad usage or bad values (one
line on standard error), 3 if the target cannot be reached, only a vacuous bound could
be certified, or `verify` finds a contradiction.
"""

from ._main import main as main
