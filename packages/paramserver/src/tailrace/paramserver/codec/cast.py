"""Lossy casts at publication: bfloat16, or float8_e4m3fn with a scale for each row. Half or a quarter of float32's bytes.

    publisher.publish(7, Cast("float8_e4m3fn").apply(model.named_parameters()))
    with reader.lease(7) as weights:
        model.load_state_dict(dict(restore(weights, "bfloat16")))

A cast is written straight into the memory of the version, without a second copy of the tensor; for a tensor on a device
the cast runs there, so that less crosses to the host. What a cast loses is stated at `Cast`; the way back loses nothing
more if the dtype asked for holds the result: float32 does, and bfloat16 from 2**-126 on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace.contracts import Weights, named_tensors
from tailrace.paramserver.dlpack import flat_torch, speaks_dlpack, torch_view
from tailrace.paramserver.errors import CastImpossible, ManifestInvalid
from tailrace.paramserver.manifest import byte_size
from tailrace.paramserver.tensors import TensorSource, source

SCALE = ".scale"  # what the name of a tensor's scales adds to the tensor's
_TARGETS = ("bfloat16", "float8_e4m3fn")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SMALLEST_EXPONENT = -126  # of a scale: the smallest normal float32
_SLAB_ELEMENTS = 2**20  # cast at a time: what is needed beside the tensor is bounded


def matrices(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """The rule of which tensors to cast that holds unless another is given: floating, of two dimensions or more.

    So norms and biases, which are small and sensitive, stay as they are.
    """
    del name
    return dtype in _FLOATS and len(shape) >= 2


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast of some tensors of a version to a smaller dtype.

    A tensor that `which` selects is cast if that makes it smaller, its scales included; otherwise, and if it has no
    dimensions, it stays.

    `bfloat16` rounds to the nearest, ties to even. Against the value v the error is at most 2**-8 |v| for
    |v| >= 2**-126, and at most 2**-134 below. Values that bfloat16 holds, zeros of both signs and infinities stay the
    same; a NaN stays a NaN; what is beyond the largest bfloat16 by half a step or more becomes infinite.

    `float8_e4m3fn` stores v / s rounded to the nearest, ties to even, where s is the row's scale: the smallest power of
    two, from 2**-126, at which no finite value of the row exceeds 448 s. A row lies along the last dimension: in a
    linear layer's weight it belongs to one output. The error is at most max(2**-4 |v|, 2**-10 s). Division by a power of
    two is exact, so values of the form q s with q an e4m3 number stay the same, and to cast what was restored changes
    no value. A NaN stays a NaN; infinities, which e4m3fn lacks, become NaN too; what rounds to 2**128 is restored as
    infinite. The scales travel beside the tensor as float32, named `<name>.scale`, of the tensor's shape with 1 for its
    last dimension.

    float64 is rounded to float32 first, which adds 2**-24 to each relative error.

    Args:
        dtype: `bfloat16` or `float8_e4m3fn`.
        which: called with a name, a dtype and a shape: whether to cast that tensor.

    Raises:
        CastImpossible: the dtype is another one.
    """

    dtype: str
    which: Callable[[str, str, tuple[int, ...]], bool] = matrices

    def __post_init__(self) -> None:
        if self.dtype not in _TARGETS:
            raise CastImpossible(f"found a cast to {self.dtype!r}, expected one of {', '.join(_TARGETS)}")

    def apply(self, weights: Weights) -> Iterator[tuple[str, Any]]:
        """The same tensors in the same order, to be handed to `Publisher.publish`, those selected as casts.

        Args:
            weights: names and tensors as `Publisher.publish` takes them. Tied tensors stay tied.

        Raises:
            CastImpossible: `which` selects a tensor that is not floating, or torch is not installed.
            ManifestInvalid: a tensor cannot be published.
        """
        weights = named_tensors(weights, ManifestInvalid)
        for name, value in weights:
            original = source(name, value)
            original = replace(original, lasting=original.lasting or isinstance(weights, list))
            if not self.which(name, original.dtype, original.shape):
                yield name, original
                continue
            if original.dtype not in _FLOATS:
                raise CastImpossible(
                    f"{name!r}: found the dtype {original.dtype} to cast to {self.dtype}, expected one of "
                    f"{', '.join(_FLOATS)}"
                )
            scaled = self.dtype == "float8_e4m3fn"
            scales = byte_size("float32", _scale_shape(original.shape)) if scaled else 0
            if not original.shape or byte_size(self.dtype, original.shape) + scales >= original.nbytes:
                yield name, original
            elif scaled:
                yield from _scaled(name, _torch_of(name, value, original), original)
            else:
                yield name, _rounded(_torch_of(name, value, original), original, self.dtype)


def restore(weights: Mapping[str, Any], dtype: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a version with its casts undone, one after the other, in the version's order.

    A float8_e4m3fn tensor beside its scales becomes their product in `dtype`, and the scales are left out. A bfloat16
    or float16 tensor is widened to `dtype` if that holds all its values. Every other tensor comes as it is: a view on
    the version's memory, to be copied if it must outlive the lease.

    Args:
        weights: a lease, or any mapping of names to torch tensors.
        dtype: `bfloat16`, `float16`, `float32` or `float64`. In float16 the product may round again, and overflow.

    Raises:
        CastImpossible: the dtype is another one, or a tensor's scales do not fit it.
        LeaseExpired: the lease is over.
    """
    if dtype not in _FLOATS:
        raise CastImpossible(f"found {dtype!r} to restore to, expected one of {', '.join(_FLOATS)}")
    import torch

    wanted = getattr(torch, dtype)
    wider = (torch.bfloat16, torch.float16) if dtype in ("float32", "float64") else ()
    for name in weights:
        scaled = name.removesuffix(SCALE)
        if scaled != name and scaled in weights and weights[scaled].dtype == torch.float8_e4m3fn:
            continue
        tensor = weights[name]
        if tensor.dtype == torch.float8_e4m3fn and name + SCALE in weights:
            yield name, _product(name, tensor, weights[name + SCALE], wanted)
        else:
            yield name, tensor.to(wanted) if tensor.dtype in wider else tensor


def through(cast: Cast, weights: Weights) -> dict[str, Any]:
    """Torch tensors as a reader of a version finds them whose weights were cast at publication, without publishing them.

    Raises:
        CastImpossible, ManifestInvalid: see `Cast.apply`.
    """
    found = dict[str, Any]()
    for name, item in cast.apply(weights):
        memory = memoryview(bytearray(item.nbytes))
        item.copy_to(memory)
        found[name] = _target(memory, item.dtype, item.shape) if item.nbytes else _torch_of(name, item, item)
    return found


def _rounded(tensor: Any, original: TensorSource, dtype: str) -> TensorSource:
    def copy_to(view: memoryview) -> None:
        for target, slab in _slabs(_target(view, dtype, original.shape), tensor):
            target.copy_(slab.float() if original.dtype == "float64" else slab)

    nbytes, memory = byte_size(dtype, original.shape), (*original.memory, dtype)
    return replace(original, dtype=dtype, nbytes=nbytes, copy_to=copy_to, memory=memory)


def _scaled(name: str, tensor: Any, original: TensorSource) -> Iterator[tuple[str, TensorSource]]:
    """The tensor as float8_e4m3fn, then its scales. Nothing is computed before it is wanted: of tied tensors only one is."""
    dtype, shape, scale_shape = "float8_e4m3fn", original.shape, _scale_shape(original.shape)

    @functools.cache
    def rows() -> tuple[Any, bool]:
        import torch

        parts = [_row_exponents(slab) for (slab,) in _slabs(tensor)]
        return torch.cat([exponents for exponents, _ in parts]), all(finite for _, finite in parts)

    def copy_to(view: memoryview) -> None:
        exponents, finite = rows()
        for target, slab, exponent in _slabs(_target(view, dtype, shape), tensor, exponents):
            scaled = (slab.float() if original.dtype == "float64" else slab) * _power_of_two(-exponent)  # in float32
            if not finite:  # some versions of torch saturate: an infinite weight must not become a finite one
                scaled.masked_fill_(scaled.isinf(), math.nan)
            target.copy_(scaled)

    def copy_scales_to(view: memoryview) -> None:
        _target(view, "float32", scale_shape).copy_(_power_of_two(rows()[0]))

    memory = (*original.memory, dtype)
    alive, lasting = original.alive, original.lasting
    yield name, TensorSource(dtype, shape, byte_size(dtype, shape), copy_to, memory, alive, lasting)
    nbytes, memory = byte_size("float32", scale_shape), (*memory, SCALE)
    yield name + SCALE, TensorSource("float32", scale_shape, nbytes, copy_scales_to, memory, alive, lasting)


def _row_exponents(slab: Any) -> tuple[Any, bool]:
    """The exponent of each row's scale (int32), and whether all values are finite.

    The exponent is the smallest k >= -126 with every finite value <= 448 * 2**k.
    """
    import torch

    values = slab.float() if slab.dtype == torch.float64 else slab
    largest = values.abs().amax(-1, keepdim=True)
    finite = bool(largest.isfinite().all())
    if not finite:
        largest = torch.where(values.isfinite(), values, 0).abs().amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(largest.float())  # of 448: 0.875 and 9
    exponent = exponent - 9 + (mantissa > 0.875)
    exponent = torch.where(largest == 0, _SMALLEST_EXPONENT, exponent).clamp(min=_SMALLEST_EXPONENT)
    return exponent.to(torch.int32), finite


def _power_of_two(exponent: Any) -> Any:
    """2**k for int32 k in -126..127, from the bits of a float32: exact on every device, as pow need not be."""
    import torch

    return ((exponent + 127) << 23).view(torch.float32)


def _product(name: str, tensor: Any, scale: Any, dtype: Any) -> Any:
    import torch

    expected = _scale_shape(tuple(tensor.shape))
    if scale.dtype != torch.float32 or tuple(scale.shape) != expected:
        raise CastImpossible(
            f"{name + SCALE!r}: found {str(scale.dtype).removeprefix('torch.')} {tuple(scale.shape)}, "
            f"expected float32 {expected}, a scale for each row of {name!r}"
        )
    result = torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    for target, slab, factor in _slabs(result, tensor, scale):
        target.copy_(slab.float() * factor)
    return result


def _torch_of(name: str, value: Any, original: TensorSource) -> Any:
    """A published tensor as a torch tensor, without a copy if torch can read it where it is."""
    try:
        import torch
    except ImportError as error:
        raise CastImpossible(f"{name!r}: a cast needs torch; pip install 'tailrace-paramserver[torch]'") from error
    if isinstance(value, torch.Tensor):
        return value.detach()
    if speaks_dlpack(value):
        try:
            return torch_view(name, value)
        except ManifestInvalid:
            pass  # numpy has strides and byte orders that torch lacks: copied below
    memory = bytearray(original.nbytes)
    original.copy_to(memoryview(memory))
    return flat_torch(memoryview(memory)).view(getattr(torch, original.dtype)).reshape(original.shape)


def _scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], 1)


def _target(view: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(view, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def _slabs(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """The same slices of tensors of equal first dimension, so that what is computed for one of them stays small."""
    rows = tensors[0].shape[0]
    step = max(1, _SLAB_ELEMENTS * rows // max(tensor.numel() for tensor in tensors))
    for start in range(0, rows, step):
        yield tuple(tensor[start : start + step] for tensor in tensors)
