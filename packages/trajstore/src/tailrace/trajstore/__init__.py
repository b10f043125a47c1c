"""Prompt pool, partial-response pool and experience buffer for asynchronous RL: capacity, samplers,
eviction, durability.
"""
