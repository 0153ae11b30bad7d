"""Many runs from one command: points, plan, workers, tables; see docs/sweeps.md."""
