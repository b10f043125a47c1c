"""What a run takes of its devices and hosts, by arithmetic before anything starts: memory by owner, transfers, and the step.

    configuration ──► standing (who stands where) ──► memory   (bytes by place, owner and phase; what is missing)
                  └─► model                       └─► transfers (bytes and seconds) ──► forecast (the simulator's step)

No torch, and nothing is started. `footprint` has it all; refusals before a run are its `shortages`.
"""

from tailrace.fleetsim.footprint.footprint import Footprint, footprint
from tailrace.fleetsim.footprint.machines import Machines, read_machines
from tailrace.fleetsim.footprint.memory import MemoryPlace, OwnedBytes

__all__ = ["Footprint", "Machines", "OwnedBytes", "MemoryPlace", "footprint", "read_machines"]
