"""Generated, verifiable tasks by name. They need the extra ``reasoning-gym``.

``long-chain-sum`` has a real long tail of response lengths; ``short-chain-sum`` has responses of nearly equal length.
"""

from __future__ import annotations

from tailrace.contracts import expected_one_of
from tailrace.reward.errors import UnknownTaskError
from tailrace.reward.tasks.chain_sum import ChainSum
from tailrace.reward.tasks.demonstrations import Demonstration
from tailrace.reward.tasks.rows import Split, TaskRow, split_of, write_jsonl

_TASKS = {
    task.name: task
    for task in (
        ChainSum("long-chain-sum", min_terms=3, max_terms=24, exponent=1.8, warm_exponent=1.2, misread=0.65),
        ChainSum("short-chain-sum", min_terms=4, max_terms=5, exponent=0.0, warm_exponent=0.0, misread=0.65),
    )
}


def task_names() -> list[str]:
    """The names of the generated tasks."""
    return sorted(_TASKS)


def get_task(name: str) -> ChainSum:
    """The task of that name.

    Raises:
        UnknownTaskError: no task has this name.
    """
    if name not in _TASKS:
        raise UnknownTaskError(f"found the task {name!r}, {expected_one_of(name, task_names())}")
    return _TASKS[name]


__all__ = ["ChainSum", "Demonstration", "TaskRow", "Split", "get_task", "split_of", "task_names", "write_jsonl"]
