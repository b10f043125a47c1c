"""Generated, verifiable tasks by name.

``long-chain-sum`` has a real long tail of response lengths; ``short-chain-sum`` has responses of nearly equal length, and
``brief-chain-sum`` shorter ones, for mixes with a task of longer ones. These need the extra ``reasoning-gym``.
``programs`` has a tail of response lengths and of times to run, and needs a sandbox to be scored. ``tool-sums`` has several
turns, which a Python tool answers in a sandbox.
"""

from __future__ import annotations

from tailrace.contracts import expected_one_of
from tailrace.reward.errors import UnknownTaskError
from tailrace.reward.tasks.chain_sum import ChainSum
from tailrace.reward.tasks.programs import Programs
from tailrace.reward.tasks.protocol import Demonstration, GeneratedTask, Split, TaskRow, split_of, write_jsonl
from tailrace.reward.tasks.tool_sums import TOOL_SUMS, ToolSums

_TASKS: dict[str, GeneratedTask] = {
    task.name: task
    for task in (
        ChainSum("long-chain-sum", min_terms=3, max_terms=24, exponent=1.8, warm_exponent=1.2, misread=0.65),
        ChainSum("short-chain-sum", min_terms=4, max_terms=5, exponent=0.0, warm_exponent=0.0, misread=0.65),
        ChainSum("brief-chain-sum", min_terms=2, max_terms=5, exponent=1.8, warm_exponent=0.0, misread=0.65),
        Programs(
            "programs",
            min_clauses=2,
            max_clauses=20,
            exponent=1.8,
            warm_exponent=1.2,
            repeated=0.2,
            misread=0.65,
            endless=0.12,
        ),
        TOOL_SUMS,
    )
}


def task_names() -> list[str]:
    """The names of the generated tasks."""
    return sorted(_TASKS)


def get_task(name: str) -> GeneratedTask:
    """The task of that name.

    Raises:
        UnknownTaskError: no task has this name.
    """
    if name not in _TASKS:
        raise UnknownTaskError(f"found the task {name!r}, {expected_one_of(name, task_names())}")
    return _TASKS[name]


__all__ = [
    "ChainSum",
    "Demonstration",
    "GeneratedTask",
    "Programs",
    "Split",
    "TaskRow",
    "ToolSums",
    "get_task",
    "split_of",
    "task_names",
    "write_jsonl",
]
