"""Measures this machine: a short real run of a configuration yields a file that a simulation reads.

tailrace profile laminar --out mine.toml          run.py: the run with clocks in its roles; fit.py: what they say
tailrace simulate laminar --set fleet.profile=mine.toml                                     fleet.py
"""
