"""The process that a judge lives in: one JSON request per line on stdin, one JSON reply per line on stdout.

    {"judge": {settings}}  ->  {"ready": true}                  or {"error": one line}; the first request
    {"items": [{...}]}     ->  {"outcomes": [0.93, {"reason": "...", "permanent": true}]}  or {"error": one line}

It ends when its standard input closes, even in the middle of a pass, so it never outlives the process that started it.

Started by `JudgeProcess` as ``python -m tailrace.reward.judge.worker``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from tailrace.contracts import TailraceError
from tailrace.reward.errors import JudgeError
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.items import JudgeItem, Unjudged
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


def reply(judge: Judge | None, request: Mapping[str, Any]) -> tuple[Judge | None, dict[str, Any]]:
    """The judge and the reply to one request."""
    try:
        if "judge" in request:
            return make_judge(request["judge"]), {"ready": True}
        if judge is None:
            raise JudgeError("found items before a judge was made")
        outcomes = judge.score([JudgeItem(**item) for item in request["items"]])
    except TailraceError as error:
        return judge, {"error": str(error)}
    except Exception as error:
        return judge, {"error": f"{type(error).__name__}: {error}"}
    said = [
        {"reason": outcome.reason, "permanent": outcome.permanent} if isinstance(outcome, Unjudged) else outcome
        for outcome in outcomes
    ]
    return judge, {"outcomes": said}


def _read(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def main() -> None:
    """Serve requests until stdin closes."""
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    # Replies go through a private copy of stdout, so that what libraries print cannot garble them.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        judge: Judge | None = None
        while True:
            judge, said = reply(judge, json.loads(lines.get()))
            replies.write(json.dumps(said) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
