"""Data rows, which tasks generate and data files hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

Split = Literal["train", "heldout"]

_HELDOUT_SHARE = 10  # one question text in ten


class TaskRow(TypedDict):
    """One prompt with the answer, verifier and metadata to score its responses."""

    prompt: str
    answer: str
    verifier: str
    metadata: dict[str, Any]


def split_of(question: str) -> Split:
    """The split of a question, by a hash of its text, so that splits never overlap, whatever their sizes and seeds."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest) % _HELDOUT_SHARE == 0 else "train"


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line and replace the file at once. Returns the number of rows."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    partial.replace(target)
    return count
