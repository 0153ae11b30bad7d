"""Tables and figures of papers, from one command; see the end of docs/results.md.

1. `table.py` holds a table as data: rows, columns, the config of every cell, the paper's numbers. A
   paper is one file of `tables/`.
2. `scales.py` makes the configs of a table at a scale, for the machine and the data that are there.
3. `command.py` reads the command line, `running.py` has the sweep's workers do the runs.
4. `results.py` reads the paper's numbers and ours side by side, and writes them.
"""

from experiments.papers.table import LABELLED_ONLY, Table, without_unlabelled
