"""Makes imports cheap for the processes of a run: torch, Ray and vLLM are tens of thousands of lines.

If Python is told not to write bytecode, every process compiles them again, which on two cores takes half a minute before a run
starts. The run's processes then keep bytecode in Tailrace's own cache directory instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL
from types import TracebackType

from tailrace.processes import Child

HEAVY = ("torch", "transformers", "ray", "reasoning_gym", "vllm.v1.engine.llm_engine")


def keep_bytecode(cache: Path) -> None:
    """Have child processes keep bytecode, in `cache` if they must not keep it beside the sources."""
    if sys.dont_write_bytecode and not os.environ.get("PYTHONPYCACHEPREFIX"):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
        os.environ["PYTHONDONTWRITEBYTECODE"] = ""


class ImportsAhead:
    """Imports heavy modules once in another process, so that later processes find bytecode and cached files.

    Modules that are not installed are skipped. Leaving this context ends the process, even if it is not done.
    """

    def __init__(self, modules: Sequence[str] = HEAVY) -> None:
        lines = [f"try:\n    import {module}\nexcept ImportError:\n    pass" for module in modules]
        self._child = Child([sys.executable, "-c", "\n".join(lines)], stdout=DEVNULL, stderr=DEVNULL)

    def __enter__(self) -> ImportsAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
