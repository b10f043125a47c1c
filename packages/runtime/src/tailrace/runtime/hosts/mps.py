"""Whether NVIDIA's Multi-Process Service is there, so that processes on one GPU compute beside each other, not in turns.

A process joins the service whose control daemon listens in its `CUDA_MPS_PIPE_DIRECTORY`, as CUDA starts in it.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
PROGRAM = "nvidia-cuda-mps-control"
_DEFAULT = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class MpsState:
    """What was found of the service.

    Args:
        installed: whether its control program is there.
        directory: where its daemon would listen.
        runs: whether it does.
    """

    installed: bool
    directory: Path
    runs: bool


def mps_state(environment: Mapping[str, str] = os.environ) -> MpsState:
    """Look for the service that a process with this environment would join."""
    directory = Path(environment.get(DIRECTORY) or _DEFAULT)
    return MpsState(shutil.which(PROGRAM) is not None, directory, _listens(directory / "control"))


def _listens(control: Path) -> bool:
    """Whether a daemon answers at its socket, which stays behind when it ends."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_S)
        try:
            asking.connect(str(control))
        except OSError:
            return False
    return True
