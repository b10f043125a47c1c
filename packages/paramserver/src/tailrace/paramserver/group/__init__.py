"""Relays together: their order, and how long a broadcast takes."""
