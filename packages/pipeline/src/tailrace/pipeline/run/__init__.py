"""A run: its directory, event log, metrics, status and report."""
