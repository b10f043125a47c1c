"""Layouts of a model over ranks, and reshard plans between any two of them.

    from_fsdp2, from_megatron, from_vllm, by_rules, Layout.of_boxes  ->  Layout
    reshard_plan(source, target), or Planner, which keeps plans      ->  ReshardPlan
    message(plan, sender, receiver); pack, unpack, copy              ->  bytes

Pure: no threads, clocks, sockets or randomness, and the standard library only, until torch tensors are handed in.
"""

from tailrace.paramserver.errors import LayoutInvalid, LayoutMismatch
from tailrace.paramserver.layout.boxes import Box
from tailrace.paramserver.layout.fsdp2 import from_fsdp2
from tailrace.paramserver.layout.megatron import from_megatron
from tailrace.paramserver.layout.message import Message, SliceCopy, SlicePlace, copy, message, pack, unpack
from tailrace.paramserver.layout.model_config import qwen_tensors
from tailrace.paramserver.layout.reshard_plan import LinkCosts, Planner, ReshardPlan, Slice, Transfer, reshard_plan
from tailrace.paramserver.layout.rules import Position, Rule, by_rules
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout, LocalBuffer, Piece, Shard
from tailrace.paramserver.layout.splits import (
    Even,
    HeadSplit,
    InStack,
    Placed,
    Seat,
    SplitRule,
    Stacked,
    Vocabulary,
    Whole,
)
from tailrace.paramserver.layout.vllm import from_vllm

__all__ = [
    "Box",
    "LocalBuffer",
    "Even",
    "GlobalTensor",
    "HeadSplit",
    "InStack",
    "Layout",
    "LayoutInvalid",
    "LayoutMismatch",
    "LinkCosts",
    "Message",
    "SliceCopy",
    "Piece",
    "SlicePlace",
    "Placed",
    "Planner",
    "Position",
    "ReshardPlan",
    "Rule",
    "Seat",
    "Shard",
    "Slice",
    "SplitRule",
    "Stacked",
    "Transfer",
    "Vocabulary",
    "Whole",
    "by_rules",
    "copy",
    "from_fsdp2",
    "from_megatron",
    "from_vllm",
    "message",
    "pack",
    "qwen_tensors",
    "reshard_plan",
    "unpack",
]
