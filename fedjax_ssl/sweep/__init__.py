"""Many runs from one command; see docs/sweeps.md.

1. `command.py` reads the command line, `axes.py` makes points of `--set` and `--seeds`.
<<<<<<< HEAD
2. `plan.py` makes a config and a name of every point, and counts programs: runs that can share what they compile.
3. `scheduler.py` deals the programs as tasks to worker processes; `cluster.py` hands them to a cluster as jobs instead.
4. `worker.py` is such a process: `run_program` takes as many of its runs at a time as the device holds, and
   `fedjax_ssl.runs.loop.run_batch` trains them, each in a run folder of its own.
5. `results.py` reads from these folders where each run stands, and writes the tables.
=======
2. `plan.py` makes a config and a name of every point, and tells which runs share a compiled program.
3. `workers.py` deals the programs to processes of this machine; `cluster.py` hands them to a cluster as jobs instead.
4. `results.py` reads from the run folders how each run ended, and writes the tables.
>>>>>>> cf3d58d (sweep: worker processes by multiprocessing, one plan per file line, searches by optuna's ask and tell in one file)

In a search, `search.py` takes the place of the plan: each worker asks an Optuna study for the next points.
"""
