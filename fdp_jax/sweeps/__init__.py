"""Sweeps: very many configurations, in chunks, on all devices and several processes.

In come named axes or columns and what is asked; out comes a table with certified bounds
for each configuration, which grows in a folder if there is one, where a sweep that was
stopped goes on.
"""

from ._configurations import Columns as Columns
from ._result import Sweep as Sweep, load as load
from ._run import sweep as sweep
