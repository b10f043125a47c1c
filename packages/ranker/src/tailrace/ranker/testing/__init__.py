"""For tests: the contract of a method of your own, and examples to learn from."""

from tailrace.ranker.testing.contract import check_method
from tailrace.ranker.testing.corpus import made_examples

__all__ = ["check_method", "made_examples"]
