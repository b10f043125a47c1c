"""Processes as records and messages name them, so that whoever reads one can ask whether the process lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.errors import ProtocolError
from tailrace.processes import ProcessId


def own_fields() -> dict[str, Any]:
    """The fields that name this process."""
    me = ProcessId.current()
    return {"pid": me.pid, "started": me.started, "namespace": me.namespace}


def process_of(fields: Mapping[str, Any]) -> ProcessId | None:
    """The process that a record or a message names; None if it names none.

    Raises:
        ProtocolError: the fields do not fit together.
    """
    if (pid := fields.get("pid")) is None:
        return None
    namespace, started = fields.get("namespace"), fields.get("started")
    if not isinstance(namespace, str) or type(pid) is not int or not isinstance(started, int | None):
        raise ProtocolError(f"pid: found {pid!r}, expected it with started and namespace")
    return ProcessId(pid, started, namespace)
