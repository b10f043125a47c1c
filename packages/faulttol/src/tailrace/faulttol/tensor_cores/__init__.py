"""Whether the tensor cores of GPUs work: the sign of a trainer that says nothing of its micro-batches (RobustRL, section 4).

A rank that waits for another in a collective keeps its GPU busy and answers its heartbeat; its tensor cores stand still. They
are read through DCGM (Volta and later, a running host engine), else through NVML's performance metrics (Hopper and later).
"""

from tailrace.faulttol.errors import UnreadableError
from tailrace.faulttol.tensor_cores.reading import TensorCores, open_tensor_cores, own_devices

__all__ = ["TensorCores", "UnreadableError", "open_tensor_cores", "own_devices"]
