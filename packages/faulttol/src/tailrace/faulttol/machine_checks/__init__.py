"""Is a machine fit to be used again? Checks of its disk, memory, arithmetic, loopback and GPUs, each with a deadline.

Entry-point group ``tailrace.machine_check``.
"""

from tailrace.faulttol.machine_checks.arithmetic import Arithmetic
from tailrace.faulttol.machine_checks.check import GROUP, Finding, MachineCheck, UnfitError, check_machine
from tailrace.faulttol.machine_checks.disk import Disk
from tailrace.faulttol.machine_checks.gpu_memory import GpuMemory
from tailrace.faulttol.machine_checks.loopback import Loopback
from tailrace.faulttol.machine_checks.memory import Memory

__all__ = [
    "GROUP",
    "Arithmetic",
    "Disk",
    "Finding",
    "GpuMemory",
    "Loopback",
    "MachineCheck",
    "Memory",
    "UnfitError",
    "check_machine",
]
