"""The table `environment` of a configuration file: what answers the turns of a response."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tailrace.pipeline.config.fields import FilePath, Positive, Seconds


class EnvironmentTable(BaseModel):
    """The environment that answers the turns of a response, for tasks that have one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)
    name: str | None = None
    """a plugin of tailrace.environment, module:Class or file.py:Class; none: the generated task's own, if it has one"""
    members: Positive = 1
    """members of the role, each with workers and sessions of its own"""
    workers: Positive = 2
    """worker processes of each member; each has many sessions"""
    sessions: Positive = 64
    """sessions that each member has at work; further trajectories wait"""
    call_s: Seconds = 60.0
    """deadline of one call: a session that misses it is over, and its group fails"""
    start_s: Seconds = 60.0
    """deadline of a worker's start, with all that its environment imports and starts"""
    max_turns: Positive = 16
    """most turns that the environment answers in a response; the answer to the last of them ends it"""
    python: FilePath | None = None
    """the interpreter of the workers, for an environment whose packages cannot be installed beside ours; none: this one"""
    options: dict[str, Any] = {}
    """options of the environment"""
