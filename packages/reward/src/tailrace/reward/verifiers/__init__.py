"""Verifiers: each judges a response against an answer. Entry-point group ``tailrace.verifier``."""

from tailrace.reward.verifiers.basic import environment, exact, numeric
from tailrace.reward.verifiers.protocol import (
    Verdict,
    Verifier,
    check_signature,
    cpu_budget_s,
    load_verifier,
    read_verdict,
    verifier_names,
    with_cpu_budget,
)
from tailrace.reward.verifiers.reference import is_reference, load_reference, unmatched, written

__all__ = [
    "Verdict",
    "Verifier",
    "check_signature",
    "cpu_budget_s",
    "environment",
    "exact",
    "is_reference",
    "load_reference",
    "load_verifier",
    "numeric",
    "read_verdict",
    "unmatched",
    "verifier_names",
    "with_cpu_budget",
    "written",
]
