"""Many runs from one command; see docs/sweeps.md.

The way of a run through the sweep:

1. `command.py` reads the command line, `axes.py` makes points of `--set` and `--seeds`.
2. `plan.py` makes a config and a name of every point, and counts programs: runs that can share what they compile.
3. `scheduler.py` deals the programs as tasks to worker processes; `cluster.py` hands them to a cluster as jobs instead.
4. `worker.py` is such a process: `run_program` takes as many of its runs at a time as the device holds, and
   `fedjax_ssl.runs.loop.run_batch` trains them, each in a run folder of its own.
5. `results.py` reads from these folders where each run stands, and writes the tables.

In a search, `search.py` stands in the place of plan and scheduler, and `trials.py` in that of the worker: it asks the
study of `studies.py` for the next point.
"""
