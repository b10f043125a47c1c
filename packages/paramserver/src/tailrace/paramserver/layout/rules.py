"""Layouts by rules: a table that says for every tensor's name how it is cut, and what its local parameter is called.

    tensors + rules + the position of each rank  ->  by_rules  ->  Layout

The tables for Qwen models are in `megatron.py` and `vllm.py`. Another model needs other rules, nothing else: rules put
before a table take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout, LocalBuffer, Piece, Shard
from tailrace.paramserver.layout.splits import Seat, SplitRule


@dataclass(frozen=True, slots=True)
class Rule:
    """How tensors of some names are cut.

    Args:
        pattern: regular expression for the whole name. A group `layer` is the number of a layer, which decides the
            pipeline stage; a group `expert` the number of an expert, which decides the expert-parallel rank.
        buffer: name of the local parameter, a `str.format` template. It may use the pattern's named groups, `local_layer`
            (counted from 0 in its stage, or in its chunk of a stage), `local_expert` and `chunk` (of a stage that has
            several). Tensors whose buffers get one name share it.
        split: how it is cut.
        stage: the pipeline stages that have a tensor without a layer.
        of_experts: whether it is cut over the experts' groups; it is in any case if the pattern has a group `expert`.
    """

    pattern: str
    buffer: str
    split: SplitRule
    stage: Literal["first", "last", "every"] = "every"
    of_experts: bool = False


class Position(NamedTuple):
    """Where a rank stands in each parallel dimension. Data-parallel replicas have equal positions.

    Args:
        stage: pipeline stage.
        part, parts: index in the tensor-parallel group, and its size.
        expert_part, expert_parts: the same within one expert.
        expert_rank, expert_ranks: index among the ranks that share out the experts, and their number.
    """

    stage: int = 0
    part: int = 0
    parts: int = 1
    expert_part: int = 0
    expert_parts: int = 1
    expert_rank: int = 0
    expert_ranks: int = 1


#: For each pipeline stage its chunks, each a range of layers. A stage has one chunk unless stages are interleaved.
Stages = Sequence[Sequence[range]]


class _Home(NamedTuple):
    """Where a layer lives: its stage, the chunk in it and its number in the chunk."""

    stage: int
    chunk: int
    local: int


def by_rules(
    tensors: Iterable[GlobalTensor],
    rules: Sequence[Rule],
    positions: Mapping[str, Position],
    stages: Stages,
    experts: int = 0,
) -> Layout:
    """The layout that rules give.

    On each rank a tensor goes by the first rule whose pattern matches its whole name and whose stage is the rank's.
    Experts are shared out in order, the first ranks taking one more where they do not divide evenly.

    Args:
        tensors: the model.
        rules: the table.
        positions: each rank's position, by the rank's name.
        stages: the layers of each pipeline stage.
        experts: number of experts in a layer, if there are any.

    Raises:
        LayoutInvalid: no rule matches a tensor, a layer is in no stage, a tensor cannot be cut as its rule says, or tensors
            that share a buffer do not agree on its shape; names the tensor.
    """
    tensors = tuple(tensors)
    homes = {
        layer: _Home(stage, chunk, local)
        for stage, chunks in enumerate(stages)
        for chunk, layers in enumerate(chunks)
        for local, layer in enumerate(layers)
    }
    compiled = [(re.compile(rule.pattern), rule) for rule in rules]
    matches = [(tensor, _matching(tensor, compiled, homes)) for tensor in tensors]
    made: dict[Position, Shard] = {}
    shards = {}
    for rank, position in positions.items():
        if position not in made:
            made[position] = _shard(matches, position, homes, stages, experts)
        shards[rank] = made[position]
    return Layout(tensors, shards)


class _Match(NamedTuple):
    rule: Rule
    groups: dict[str, str]
    layer: int | None
    expert: int | None


def _matching(
    tensor: GlobalTensor, rules: Sequence[tuple[re.Pattern[str], Rule]], homes: Mapping[int, _Home]
) -> list[_Match]:
    found = []
    for pattern, rule in rules:
        match = pattern.fullmatch(tensor.name)
        if match is None:
            continue
        groups = {key: value for key, value in match.groupdict().items() if value is not None}
        layer, expert = (int(groups[key]) if key in groups else None for key in ("layer", "expert"))
        if layer is not None and layer not in homes:
            raise LayoutInvalid(
                f"{tensor.name!r}: layer {layer} is in no pipeline stage, expected 0 to {len(homes) - 1}"
            )
        found.append(_Match(rule, groups, layer, expert))
    if not found:
        raise LayoutInvalid(f"{tensor.name!r}: no rule matches; put one for it before the others")
    return found


def _shard(
    matches: Sequence[tuple[GlobalTensor, list[_Match]]],
    position: Position,
    homes: Mapping[int, _Home],
    stages: Stages,
    experts: int,
) -> Shard:
    first, last = expert_range(experts, position.expert_rank, position.expert_ranks)
    shapes: dict[str, tuple[tuple[int, ...], str, str]] = {}
    pieces: dict[str, list[Piece]] = {}
    for tensor, candidates in matches:
        match = next((found for found in candidates if _lives_here(found, position, homes, len(stages))), None)
        if match is None or (match.expert is not None and not first <= match.expert < last):
            continue
        local_expert = (match.expert or first) - first
        if match.rule.of_experts or match.expert is not None:
            seat = Seat(position.expert_part, position.expert_parts, local_expert, (first, last))
        else:
            seat = Seat(position.part, position.parts)
        if match.layer is None:
            chunk, local = (0 if match.rule.stage == "first" else len(stages[position.stage]) - 1), 0
        else:
            _, chunk, local = homes[match.layer]
        name = match.rule.buffer.format(**match.groups, local_layer=local, local_expert=local_expert, chunk=chunk)
        shape, boxes = match.rule.split.place(tensor, seat)
        known, dtype, other = shapes.setdefault(name, (shape, tensor.dtype, tensor.name))
        if (known, dtype) != (shape, tensor.dtype):
            raise LayoutInvalid(
                f"{tensor.name!r}: found {tensor.dtype} {shape} for the buffer {name!r}, expected {dtype} {known} "
                f"as {other!r} has it"
            )
        pieces.setdefault(name, []).extend(Piece(tensor.name, box, at) for box, at in boxes)
    return Shard(
        tuple(LocalBuffer(name, dtype, shape, tuple(pieces[name])) for name, (shape, dtype, _) in shapes.items())
    )


def _lives_here(match: _Match, position: Position, homes: Mapping[int, _Home], stages: int) -> bool:
    if match.layer is not None:
        return homes[match.layer].stage == position.stage
    return position.stage == {"first": 0, "last": stages - 1}.get(match.rule.stage, position.stage)


def expert_range(experts: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and one past the last expert of a rank."""
    share, rest = divmod(experts, ranks)
    first = rank * share + min(rank, rest)
    return first, first + share + (rank < rest)
