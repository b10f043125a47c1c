"""Verifiers by name, generated verifiable tasks with a real long tail, and the scorer that applies them."""
