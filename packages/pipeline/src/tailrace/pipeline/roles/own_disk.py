"""Where the trainer's checkpoints lie when every machine has a directory of its own: on the disk of the trainer's machine.

RUN/checkpoints ──link──► RUN/machines/0/checkpoints      machine 0 is gone with its disk: the link leads nowhere
                ──link──► RUN/machines/1/checkpoints      the trainer starts on machine 1
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from tailrace.pipeline.hosts.ray_machines import own_machine


def on_own_disk(checkpoints: Path) -> None:
    """See that the directory of checkpoints lies on a disk that is there: else on that of this process's machine.

    What lies on another machine's disk stays there while that machine lives. Several ranks may call it at once.

    Args:
        checkpoints: where all others look for checkpoints.
    """
    machine = own_machine()
    if machine is None:
        return
    own = machine / checkpoints.name
    own.mkdir(parents=True, exist_ok=True)
    if not checkpoints.is_symlink():
        with suppress(OSError):  # another rank was first, or a run that had no machines has filled it
            checkpoints.rmdir()
    if checkpoints.exists():
        return
    link = checkpoints.with_name(f".{checkpoints.name}.{secrets.token_hex(4)}")
    link.symlink_to(os.path.relpath(own, checkpoints.parent), target_is_directory=True)
    link.replace(checkpoints)
