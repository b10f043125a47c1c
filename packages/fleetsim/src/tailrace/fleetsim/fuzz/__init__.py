"""Deterministic simulation testing: random pipelines, fleets and faults, with the invariants checked at every event."""
