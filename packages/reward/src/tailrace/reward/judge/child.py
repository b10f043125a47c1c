"""The child process of a judge, seen from an asyncio loop: started, asked, killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from tailrace.reward.errors import JudgeError, WorkerDiedError
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.items import JudgeItem, Judgement, Unjudged
from tailrace.reward.process import DEBUG

_LINE_BYTES = 1 << 24
_SAID_BYTES = 1 << 16
_REAP_S = 30.0


class JudgeChild:
    """One running judge process. `start` it once, `ask` it one thing at a time, `kill` it in the end."""

    def __init__(self, process: asyncio.subprocess.Process, said: IO[bytes] | None) -> None:
        self._process = process
        self._said = said

    @classmethod
    async def start(cls, config: JudgeConfig, timeout_s: float) -> JudgeChild:
        """Start a process and load the judge in it.

        Raises:
            JudgeError: it says that this judge cannot be made.
            WorkerDiedError: it ended, or did not finish within `timeout_s`.
        """
        said = None if os.environ.get(DEBUG) else tempfile.TemporaryFile("a+b")  # noqa: SIM115 - `kill` closes it
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tailrace.reward.judge.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=said,
            limit=_LINE_BYTES, start_new_session=True,
        )  # fmt: skip
        child = cls(process, said)
        try:
            found = await asyncio.wait_for(child._exchange({"judge": config.to_json()}), timeout_s)
            if "error" in found:
                raise JudgeError(found["error"])
        except BaseException as error:
            last = child.last_words()
            await child.kill()
            if isinstance(error, TimeoutError):
                raise WorkerDiedError(f"the judge was not loaded within {timeout_s:g} s and was killed{last}") from None
            raise
        return child

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def ask(self, items: Sequence[JudgeItem]) -> list[Judgement]:
        """One outcome for each item. Takes as long as it takes; the caller has the deadline.

        Raises:
            WorkerDiedError: the process ended, or failed and is of no more use: a device that failed once fails on.
        """
        found = await self._exchange({"items": [asdict(item) for item in items]})
        if "error" in found:
            raise WorkerDiedError(f"the judge failed: {found['error']}")
        return [Unjudged(**said) if isinstance(said, dict) else float(said) for said in found["outcomes"]]

    async def kill(self) -> None:
        """End the process and its children and reap it; its memory is free then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # a process that a driver holds in the kernel ends when that lets it go
            await asyncio.wait_for(self._process.wait(), _REAP_S)
        said, self._said = self._said, None
        if said is not None:
            said.close()

    def last_words(self) -> str:
        """The last line that the process printed, as the end of a sentence."""
        if self._said is None:
            return ""
        file = self._said.fileno()
        printed = os.pread(file, _SAID_BYTES, max(0, os.fstat(file).st_size - _SAID_BYTES))
        lines = printed.decode(errors="replace").strip().splitlines()
        return f"; the last that it printed: {lines[-1].strip():.200}" if lines else ""

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None  # opened as pipes above
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
            if not line.endswith(b"\n"):
                raise EOFError
            found: dict[str, Any] = json.loads(line)
        except (OSError, EOFError, ValueError):
            raise WorkerDiedError(f"the judge's process ended while it was needed{self.last_words()}") from None
        return found
