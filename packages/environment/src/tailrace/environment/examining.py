"""Whether an environment can be had, and what it offers, before long work that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tailrace.environment.workers import Abilities, Workers

_SILENT_S = 10.0


def examine_environment(
    environment: str, options: Mapping[str, Any] | None = None, *, python: str = "", start_s: float = 60.0
) -> Abilities:
    """Start one worker, have it load the environment with these options, and end it. Not for a thread with an event loop.

    Args:
        environment: a registered name, ``module:Class`` or ``file.py:Class``.
        options: its options; JSON values.
        python: the interpreter; empty: this one.
        start_s: deadline.

    Raises:
        SetupError: the environment cannot be had; one line says why.
    """

    async def examine() -> Abilities:
        workers = Workers(environment, options or {}, 1, python, start_s, _SILENT_S)
        await workers.start()
        await workers.stop()
        return workers.abilities

    return asyncio.run(examine())
