"""The process that a judge lives in: one JSON request per line on stdin, one JSON reply per line on stdout.

    {"judge": {settings}}  ->  {"ready": true}                  or {"error": one line}; the first request
    {"items": [{...}]}     ->  {"outcomes": [0.93, {"reason": "...", "permanent": true}]}  or {"error": one line}

It ends when its standard input closes, even in the middle of a pass, so it never outlives the process that started it.

Started by `JudgeProcess` as ``python -m tailrace.reward.judge.worker``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tailrace.contracts import TailraceError
from tailrace.processes import serve
from tailrace.reward.errors import JudgeError
from tailrace.reward.items import JudgeItem, Unjudged
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.judge import Judge


def make_judge(settings: Mapping[str, Any]) -> Judge:
    """The judge of these settings, in a process of its own."""
    config = JudgeConfig(**settings)
    if config.threads:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)  # before torch is there
    judge = Judge(config)
    import torch

    if judge.device.startswith("cuda") and config.memory_bytes is not None:
        # Freed blocks that the allocator keeps would be missing to the replica on the same device.
        total = torch.cuda.get_device_properties(judge.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, config.memory_bytes / total), judge.device)
    return judge


class _Serving:
    """Replies to requests, with the judge once it is made."""

    def __init__(self) -> None:
        self._judge: Judge | None = None

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        try:
            if "judge" in request:
                self._judge = make_judge(request["judge"])
                return {"ready": True}
            if self._judge is None:
                raise JudgeError("found items before a judge was made")
            outcomes = self._judge.score([JudgeItem(**item) for item in request["items"]])
        except TailraceError as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"outcomes": [asdict(outcome) if isinstance(outcome, Unjudged) else outcome for outcome in outcomes]}


if __name__ == "__main__":
    serve(_Serving().reply)
