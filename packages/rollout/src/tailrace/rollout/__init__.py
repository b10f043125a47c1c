"""Rollout engines (vLLM, transformers continuous batching) behind one protocol, and the replica
worker that drives them.
"""
