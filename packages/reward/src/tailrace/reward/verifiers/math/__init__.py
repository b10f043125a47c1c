"""Verifier ``math``: judges mathematical answers by what they mean. Needs the extra ``math``.

    response ─extraction─► answer ─notation─► plain LaTeX ─structure─► its parts ─┬─ quantities: exact values and units
                                                                                 ├─ words: texts and choices
                                                                                 └─ expressions: math-verify and its parser

A comparison goes from the cheap and certain to the dear: equal text, exact numbers, units, words, structure, and only then
algebra. The library's parser reads every expression. Its own comparison is asked for sets and inequalities; expressions
are compared by their values to many digits, since the library calls small unequal numbers equal and may simplify for ever.
"""

from tailrace.reward.verifiers.math.verifier import math

__all__ = ["math"]
