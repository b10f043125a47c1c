"""Have the machine's GPUs had errors in memory that they could not correct?"""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tailrace.faulttol.machine_checks.check import UnfitError

_QUERY = "index,ecc.errors.uncorrected.volatile.total"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Ask the driver for uncorrected errors since it was loaded. Plugin ``gpu-memory``.

    A machine without ``nvidia-smi`` has no GPU to check. A GPU without error correction says ``[N/A]`` and passes.

    Args:
        most_errors: uncorrected errors that a GPU may have had.
        answer_s: deadline for the driver's answer, in seconds. A driver that hangs is a fault.
    """

    most_errors: int = 0
    answer_s: float = 20.0

    def run(self, directory: Path) -> str:  # noqa: ARG002 - the protocol's argument
        """See `MachineCheck.run`."""
        program = shutil.which("nvidia-smi")
        if program is None:
            return "no GPU"
        command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(  # noqa: S603 - a program of the PATH, without input
                command, capture_output=True, text=True, timeout=self.answer_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UnfitError(f"nvidia-smi did not answer within {self.answer_s:.0f} s, expected it to") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise UnfitError(
                f"nvidia-smi ended with {done.returncode} ({said[0] if said else 'no message'}), expected 0"
            )
        rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row]
        for row in rows:
            if len(row) != 2 or not (row[1].isdecimal() or row[1] == "[N/A]"):
                raise UnfitError(f"nvidia-smi: found the row {','.join(row)!r}, expected the index and errors of a GPU")
            if row[1] != "[N/A]" and int(row[1]) > self.most_errors:
                raise UnfitError(
                    f"GPU {row[0]}: found {row[1]} uncorrected errors of memory, expected at most {self.most_errors}"
                )
        return f"{len(rows)} GPUs without uncorrected errors of memory" if rows else "no GPU"
