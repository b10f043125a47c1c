"""Tailrace on the command line: run, resume and watch reinforcement-learning post-training of language models."""
