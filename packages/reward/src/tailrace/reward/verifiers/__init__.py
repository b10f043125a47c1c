"""Verifiers: each judges a response against an answer. Entry-point group ``tailrace.verifier``."""

from tailrace.reward.verifiers.exact import exact
from tailrace.reward.verifiers.numeric import numeric
from tailrace.reward.verifiers.protocol import Verifier, load_verifier, verifier_names

__all__ = ["Verifier", "exact", "load_verifier", "numeric", "verifier_names"]
