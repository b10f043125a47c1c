"""What follows from a command, by its reason."""

from __future__ import annotations

from tailrace.contracts import Why

ANEW = frozenset({Why.VERSION_GONE, Why.EVALUATION, Why.SESSION_LOST, Why.TASK_RESTART})
"""Reasons of an `Abort` after which its trajectories begin anew."""
AGAIN = frozenset({Why.NOT_SCORED_YET, Why.DEFERRED, Why.DELAYED_AGAIN})
"""Reasons of an `Abort` of a group whose prompt comes again."""
DELAYED = frozenset({Why.DELAYED, Why.DELAYED_AGAIN})
"""Reasons of an `Abort` of a group that training waited for too long."""
AGAIN_IN_ROUNDS = frozenset({Why.EXPIRED, Why.OVER})
"""The same, where batching launches rounds."""
RELEASING = frozenset({Why.MOVED, Why.STOPPING, Why.RESIZING})
"""Reasons of an `Interrupt` that empties its replica."""
