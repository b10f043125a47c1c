"""The child process of a judge: started with a model, asked, killed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from tailrace.reward.errors import JudgeError, WorkerDiedError, WorkerTimeoutError
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.items import JudgeItem, Judgement, Unjudged
from tailrace.reward.process import WorkerProcess


class JudgeChild:
    """One running judge process. `start` it once, `ask` it one thing at a time, `kill` it in the end."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process

    @classmethod
    async def start(cls, config: JudgeConfig, timeout_s: float) -> JudgeChild:
        """Start a process and load the judge in it.

        Raises:
            JudgeError: it says that this judge cannot be made.
            WorkerDiedError: it ended, or did not finish within `timeout_s`.
        """
        process = WorkerProcess([sys.executable, "-m", "tailrace.reward.judge.worker"])
        try:
            found = await process.ask({"judge": config.to_json()}, timeout_s, "loading the judge")
        except WorkerTimeoutError as error:
            raise WorkerDiedError(str(error)) from None
        if "error" in found:
            await process.stop()
            raise JudgeError(found["error"])
        return cls(process)

    @property
    def pid(self) -> int | None:
        """The process's id; None once it has ended."""
        return self._process.pid

    async def ask(self, items: Sequence[JudgeItem]) -> list[Judgement]:
        """One outcome for each item. Takes as long as it takes; the caller has the deadline, and cancelling kills the process.

        Raises:
            WorkerDiedError: the process ended, or failed and is of no more use: a device that failed once fails on.
        """
        found = await self._process.ask({"items": [asdict(item) for item in items]}, None, "the judge")
        if "error" in found:
            raise WorkerDiedError(f"the judge failed: {found['error']}")
        return [Unjudged(**said) if isinstance(said, dict) else float(said) for said in found["outcomes"]]

    async def kill(self) -> None:
        """End the process and its children and reap it; its memory is free then."""
        await self._process.stop()
