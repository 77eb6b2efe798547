"""The command line `fdp-jax`.

`epsilon`, `delta`, `calibrate` and `report` answer one question about one DP-SGD run;
`demo` recomputes published runs. Exit status: 0 if there is an answer, 2 for bad usage
or bad values (one line on standard error), 3 if the target cannot be reached or only
a vacuous bound could be certified.
"""

from ._main import main as main
