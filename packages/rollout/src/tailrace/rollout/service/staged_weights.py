"""Complete weight versions on disk, from which every replica loads.

    update ──► stage: written whole, checked against the model's own names and shapes, renamed ──► load, by every replica

Version 0 is the model directory itself. Any later one is a safetensors file in the service's own directory. So a replica that
starts again later loads the version that the others serve, and nothing of an update that is refused is ever loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.contracts import Weights, extra, named_tensors
from tailrace.rollout.errors import ModelLoadError, UpdateRefusedError
from tailrace.rollout.model_files import parameter_names, tied_names

_PARTIAL = ".part"


class StagedWeights:
    """Weight versions of a model, as files.

    Args:
        model: Hugging Face model directory with safetensors files: version 0.
        directory: where later versions are written. It need not be there yet.

    Raises:
        ModelLoadError: the model's files cannot be read, or there are none.
    """

    def __init__(self, model: Path, directory: Path) -> None:
        self._model, self._directory = model, directory
        names = parameter_names(str(model))
        self._files = sorted(model.glob("*.safetensors"))
        try:
            shapes = {name: shape for path in self._files for name, shape in _shapes(path).items()}
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"cannot read the weights of {model}: {error}") from error
        if not names or not names <= shapes.keys():
            raise ModelLoadError(f"found no complete weights in {str(model)!r}, expected *.safetensors")
        self._shapes = {name: shapes[name] for name in names}
        self._tied = tied_names(str(model)) | (shapes.keys() - names)  # they may come, and are not needed

    @property
    def directory(self) -> Path:
        """Where versions are written."""
        return self._directory

    def incoming(self, version: int) -> Path:
        """Where an update that arrives as a file is to be written, before `accept`."""
        return self._directory / f"{version}.safetensors{_PARTIAL}"

    def stage(self, weights: Weights, version: int) -> None:
        """Write a version and check it.

        Args:
            weights: all tensors by name, on any device.
            version: its number.

        Raises:
            UpdateRefusedError: it is not the whole model, or has a value that is no finite number.
        """
        with extra("tailrace-rollout", "transformers"):
            from safetensors.torch import save_file
        pairs = named_tensors(weights, UpdateRefusedError)
        # a copy of each: tied tensors share their memory, which the format refuses
        found = ((name, tensor) for name, tensor in pairs if name not in self._tied)
        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found}
        self._check({name: tuple(tensor.shape) for name, tensor in tensors.items()}, version)
        path = self.incoming(version)
        try:
            save_file(tensors, path)
        except BaseException:
            path.unlink(missing_ok=True)  # what is left of it would fill the disk
            raise
        self.accept(version)

    def accept(self, version: int) -> None:
        """Check the file at `incoming` and keep it as this version. One that is refused is deleted.

        Raises:
            UpdateRefusedError: it is damaged or not the whole model, or has a value that is no finite number.
        """
        path = self.incoming(version)
        try:
            try:
                found = _shapes(path)
            except (OSError, ValueError) as error:
                raise UpdateRefusedError(f"version {version} is no complete safetensors file: {error}") from error
            self._check(found, version)
            self._check_values(path, version)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        path.rename(path.with_suffix(""))

    def forget(self, version: int) -> None:
        """Delete a version that no replica will load again. Version 0, the model itself, stays."""
        (self._directory / f"{version}.safetensors").unlink(missing_ok=True)

    @contextmanager
    def load(self, version: int, timeout_s: float) -> Iterator[Iterable[tuple[str, Any]]]:  # noqa: ARG002 - the port's
        """The tensors of a version, valid inside the context.

        Raises:
            FileNotFoundError: the version was not staged, or was forgotten.
        """
        files = self._files if version == 0 else [self._directory / f"{version}.safetensors"]
        yield self._tensors(files)

    def _tensors(self, files: Iterable[Path]) -> Iterator[tuple[str, Any]]:
        from safetensors import safe_open

        for path in files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    if name in self._shapes:
                        yield name, file.get_tensor(name)

    def _check(self, found: Mapping[str, tuple[int, ...]], version: int) -> None:
        missing = sorted(self._shapes.keys() - found.keys())
        if missing:
            raise UpdateRefusedError(
                f"version {version} is partial: found {len(self._shapes) - len(missing)} of {len(self._shapes)} "
                f"parameters, {missing[0]!r} is missing"
            )
        unknown = sorted(found.keys() - self._shapes.keys() - self._tied)
        if unknown:
            raise UpdateRefusedError(f"version {version} has {unknown[0]!r}, which the model does not have")
        for name, shape in self._shapes.items():
            if found[name] != shape:
                raise UpdateRefusedError(
                    f"version {version} has {name!r} of shape {list(found[name])}, expected {list(shape)}"
                )

    def _check_values(self, path: Path, version: int) -> None:
        """A model with NaN in it generates nothing any more, and says so of no sample."""
        import torch

        for name, tensor in self._tensors([path]):
            values = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # nothing is defined of single bytes
            if tensor.is_floating_point() and not torch.isfinite(values).all():
                raise UpdateRefusedError(f"version {version} has NaN or infinity in {name!r}, expected finite numbers")


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file. The library checks that the file is as long as its header says."""
    with extra("tailrace-rollout", "transformers"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error
