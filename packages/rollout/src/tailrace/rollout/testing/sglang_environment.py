"""An environment in which SGLang's own server runs on a CPU, for the long tests of its engine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tailrace.rollout.sglang_server import TRIED


def sglang_python(tools: Path) -> str:
    """The interpreter of an environment with SGLang: that in TAILRACE_SGLANG_PYTHON, or one that is made once and kept.

    Where it cannot be made, the test is skipped.

    Args:
        tools: the folder ``tools/sglang`` of a checkout.
    """
    if given := os.environ.get("TAILRACE_SGLANG_PYTHON"):
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
    folder = cache / f"sglang-{TRIED[-1]}"
    if not (tools / "make").exists() or shutil.which("uv") is None:
        pytest.skip("found no tools/sglang/make or no uv, expected both: they make SGLang's environment")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "sglang.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            made = subprocess.run([tools / "make", folder], capture_output=True, text=True, timeout=900, check=False)  # noqa: S603
            if made.returncode:
                pytest.skip(f"SGLang's environment cannot be made here: {made.stderr.strip()[-300:]}")
            (folder / "made").touch()
    return str(folder / "bin" / "python")
