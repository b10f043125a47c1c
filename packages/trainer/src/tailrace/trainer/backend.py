"""The door of a trainer's backends: what each rank of one offers to the trainer role, and what a run asks before it starts.

`tailrace.trainer.backends` has those that are built in.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.contracts import Experience, PluginError, plugins
from tailrace.paramserver.layout import Layout
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.errors import TrainerConfigError

if TYPE_CHECKING:
    import torch

    from tailrace.trainer.worker import TrainerWorker

GROUP = "tailrace.backend"


class TrainingBackend(Protocol):
    """One rank of a backend, group ``tailrace.backend``. The entry point names what builds it (`BuildsBackend`).

    Methods marked *collective* are called on every rank, in the same order; `accumulate` on every rank of a cell. Losses,
    advantages and metrics are those of `TrainerWorker`, whose docstrings give metrics and errors. An exception that ends a pass
    changes no weights, and no later step has gradients of it.
    `tailrace.trainer.testing.BackendContract` tries all of it.
    """

    on_phase: Callable[[str], None]
    """Called as "forward" and "backward" of a micro-batch, and the "optimizer" step, begin. The role sets it."""
    weights_version: int | None
    """The version of the weights, from which metrics count the staleness of tokens; None: they do not. The role sets it."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What this rank computes otherwise than its settings say, and why, a line each: the run's status and summary tell it.

        What all ranks do alike is said by the first.
        """
        ...

    def watch_micro_batches(self, ended: Callable[[], None]) -> bool:
        """Have a function called at the end of each micro-batch from now on, on the thread that computes it.

        Returns:
            Whether the backend does so. Of one that does not, tensor cores that work are the sign of life.
        """
        ...

    @property
    def expected_micro_batches(self) -> int:
        """About how many micro-batches the call under way has, on this rank; 0 if that is not known."""
        ...

    def step(self, mini_batches: Sequence[Sequence[Experience]]) -> dict[str, float]:
        """Do one optimizer step for each mini-batch. Returns metrics, the same on every rank but for seconds. Collective.

        Raises:
            BatchError: the batch cannot be trained on. Nothing was changed.
        """
        ...

    def accumulate(self, experiences: Sequence[Experience]) -> dict[str, float]:
        """Add the gradients of complete groups to this cell's, without an optimizer step. Collective in the cell."""
        ...

    def apply(self, rest: Sequence[Experience] = ()) -> dict[str, float]:
        """Add the gradients of what is left of the batch, and do one optimizer step on all of it. Collective."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under Hugging Face names, tied parameters once, in the dtype of the forward pass. Collective."""
        ...

    def layout(self) -> Layout:
        """Which rank (``rank0``, ``rank1``, ...) holds which part of which parameter. The same on every rank."""
        ...

    def shards(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's part of every parameter, as `layout` describes it. One at a time. Collective."""
        ...

    @property
    def offloads(self) -> frozenset[str]:
        """The parts that `offload` moves: some of ``"parameters"``, ``"gradients"``, ``"optimizer"``, or none."""
        ...

    def offload(self, what: Collection[str]) -> int:
        """Move parameters, gradients or optimizer into host memory, where nothing may use them. Collective in the cell.

        Device memory that is free then is given back to the system.

        Returns:
            Bytes that the cell's ranks moved.

        Raises:
            TrainerConfigError: the backend moves none of that.
        """
        ...

    def onload(self, what: Collection[str]) -> int:
        """Move parts back, bit for bit. Collective in the cell. Returns the bytes that its ranks moved."""
        ...

    def save(self, directory: str | Path, version: int, *, full: bool = True) -> Future[Path]:
        """Write a checkpoint. Returns once the state is copied. Collective.

        When the first rank's future is done, the directory is complete and durable; before that it does not exist.

        Args:
            directory: its name.
            version: its version.
            full: whether it has the state that `load` needs, or weights alone.
        """
        ...

    def load(self, directory: str | Path, weights: Mapping[str, torch.Tensor] | None = None) -> int:
        """Restore weights, optimizer and schedule from a checkpoint. Returns its version. Collective.

        Args:
            directory: the checkpoint.
            weights: whole parameters, named and in the dtype as `weights` gives them, to take in place of the checkpoint's; a
                run passes them with `checkpoint.newer_weights` only.

        Raises:
            CheckpointError: the checkpoint is missing, damaged, or of another model; or the weights are of another one.
        """
        ...

    def close(self) -> None:
        """Wait for the checkpoint under way and leave the process group."""
        ...


class BuildsBackend(Protocol):
    """What an entry point of the group names: a `BackendPlugin`, or a class or function that makes one rank."""

    def __call__(
        self, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
    ) -> TrainingBackend:
        """Make a rank; see `TrainerWorker` for the arguments."""
        ...


class BackendPlugin(ABC):
    """A `BuildsBackend` that can refuse settings before a run starts. Its module imports neither torch nor the backend.

    Attributes:
        adapters: whether it trains LoRA adapters (`TrainerConfig.adapter`).
        critics: whether it trains a critic (`TrainerConfig.critic`).
    """

    adapters: bool = False
    critics: bool = False

    @abstractmethod
    def __call__(
        self, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
    ) -> TrainingBackend:
        """Make a rank; see `TrainerWorker` for the arguments."""

    def check(self, config: TrainerConfig, processes: int) -> None:  # noqa: B027 - a backend may take any
        """Check what the backend can do, and that what it needs is installed. It takes milliseconds and imports no library.

        Args:
            config: the settings.
            processes: number of ranks.

        Raises:
            TrainerConfigError, MissingExtraError: what was found, and what would fit.
        """

    def check_model(self, model: Mapping[str, Any], config: TrainerConfig, processes: int) -> None:  # noqa: B027 - as above
        """Check that the backend can train a model.

        Args:
            model: its Hugging Face config, as a dict; of a model that a run will build the sizes and ``model_type``.
            config, processes: see `check`.

        Raises:
            TrainerConfigError: it cannot.
        """

    def import_ahead(self) -> None:  # noqa: B027 - some need nothing
        """Import what `__call__` needs, so that it takes less time later in this process."""


if TYPE_CHECKING:
    _fsdp2: BuildsBackend = TrainerWorker  # checked here


def check_backend(name: str, config: TrainerConfig, processes: int, model: Mapping[str, Any] | None = None) -> None:
    """Check before a run starts that a backend can do what the settings say; see `BackendPlugin.check` and `check_model`.

    Raises:
        PluginError: there is no such backend.
        TrainerConfigError, MissingExtraError: it cannot.
    """
    found = plugins.load(GROUP, name)
    if config.adapter.rank and not getattr(found, "adapters", False):
        raise TrainerConfigError(
            f"found an adapter of rank {config.adapter.rank} with the backend {name!r}, which trains none; expected "
            "'fsdp2' or 'deepspeed'"
        )
    if config.has_critic and not getattr(found, "critics", False):
        raise TrainerConfigError(
            f"found advantages {config.advantages_name!r} (of the loss {config.loss!r}) with the backend {name!r}, which "
            "trains no critic; expected 'fsdp2', 'deepspeed' or 'megatron', or advantages without one, such as 'group'"
        )
    if isinstance(found, BackendPlugin):
        found.check(config, processes)
        if model is not None:
            found.check_model(model, config, processes)


def import_backend(name: str) -> None:
    """Import what a backend needs, so that `build_backend` takes less time later in this process.

    Raises:
        PluginError: there is no such backend.
    """
    found = plugins.load(GROUP, name)
    if isinstance(found, BackendPlugin):
        found.import_ahead()


def build_backend(
    name: str, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
) -> TrainingBackend:
    """One rank of the backend with this name, for the arguments of `TrainerWorker`.

    Raises:
        PluginError: there is no such backend, or it lacks a part of `TrainingBackend`.
        TrainerConfigError, MissingExtraError: it cannot do what the settings say; see `check_backend`.
    """
    check_backend(name, config, world_size)
    build: BuildsBackend = plugins.load(GROUP, name)
    backend = build(model_path, config, rank=rank, world_size=world_size, rendezvous=rendezvous)
    asked = ["on_phase", *(part for part in vars(TrainingBackend) if not part.startswith("_"))]
    # looked up, not asked: a property may need what the first call brings
    if missing := [part for part in asked if inspect.getattr_static(backend, part, None) is None]:
        raise PluginError(f"backend {name!r} lacks {missing[0]}, expected what tailrace.trainer.TrainingBackend has")
    return backend
