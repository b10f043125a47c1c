"""Executors: they carry commands out and report events."""
