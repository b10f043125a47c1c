"""The backends that are built in: what each refuses before a run starts. Their libraries are imported when a rank is made."""

from __future__ import annotations

from pathlib import Path

from tailrace.trainer.backend import BackendPlugin, TrainingBackend
from tailrace.trainer.config import TrainerConfig


class Fsdp2(BackendPlugin):
    """PyTorch's FSDP2; see `tailrace.trainer.fsdp2`."""

    adapters = True

    def __call__(
        self, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
    ) -> TrainingBackend:
        from tailrace.trainer import TrainerWorker

        return TrainerWorker(model_path, config, rank=rank, world_size=world_size, rendezvous=rendezvous)

    def import_ahead(self) -> None:
        from tailrace.trainer import TrainerWorker  # noqa: F401 - with torch and transformers


fsdp2 = Fsdp2()
