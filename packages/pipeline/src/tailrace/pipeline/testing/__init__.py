"""For tests: a world in virtual time for the controller, and the contract that every executor's host passes."""

from tailrace.pipeline.testing.world import World, replay, replay_calls

__all__ = ["World", "replay", "replay_calls"]
