"""Heartbeats, failure isolation, recovery policies and scripted fault injection for RL post-training."""
