"""Many runs from one command; see docs/sweeps.md.

1. `command.py` reads the command line, `axes.py` makes points of `--set` and `--seeds`.
2. `sweep_plan.py` makes a config and a name of every point, and tells which runs share a compiled
   program.
3. `workers.py` deals the programs to processes of this machine; `cluster.py` hands them to a
   cluster as jobs instead.
4. `results.py` reads from the run folders how each run ended, and writes the tables.

In a search, `search.py` takes the place of the plan: each worker asks an Optuna study for the next
points.
"""
