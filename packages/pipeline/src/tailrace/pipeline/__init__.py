"""The pure controller, its event log, the local and Ray executors, the run directory, metrics and the report."""
