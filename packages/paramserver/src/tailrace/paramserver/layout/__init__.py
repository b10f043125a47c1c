"""Layouts of a model over ranks, and reshard plans between them."""

from tailrace.paramserver.layout.boxes import Box
from tailrace.paramserver.layout.errors import LayoutInvalid, LayoutMismatch
from tailrace.paramserver.layout.execute import copy, pack, unpack
from tailrace.paramserver.layout.links import LinkCosts
from tailrace.paramserver.layout.message import Message, Move, Place, message
from tailrace.paramserver.layout.plan import ReshardPlan, Transfer, reshard_plan
from tailrace.paramserver.layout.planner import Planner
from tailrace.paramserver.layout.sharding import Buffer, GlobalTensor, Layout, Piece, Shard
from tailrace.paramserver.layout.slices import Slice
from tailrace.paramserver.layout.wire import from_wire, to_wire

__all__ = [
    "Box",
    "Buffer",
    "GlobalTensor",
    "Layout",
    "LayoutInvalid",
    "LayoutMismatch",
    "LinkCosts",
    "Message",
    "Move",
    "Piece",
    "Place",
    "Planner",
    "ReshardPlan",
    "Shard",
    "Slice",
    "Transfer",
    "copy",
    "from_wire",
    "message",
    "pack",
    "reshard_plan",
    "to_wire",
    "unpack",
]
