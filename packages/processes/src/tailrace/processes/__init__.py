"""Child processes: lines of JSON with deadlines, an end that is sure, and death with the parent. Standard library only.

`Child` is a child from its owner's side; ``tailrace.processes.asynchronous`` has `AsyncChild`, for an event loop. `serve`,
`private_streams`, `at_end_of`, `die_with_parent`, `wait_for_parent` and `Ending` are for the child.
"""

from tailrace.processes.child import Child
from tailrace.processes.death import Ending, at_end_of, die_with_parent, wait_for_parent
from tailrace.processes.errors import ChildEndedError, ChildError, ChildTimeoutError, LineError
from tailrace.processes.identity import ProcessId
from tailrace.processes.serving import private_streams, serve

__version__ = "0.1.0"
__all__ = [
    "Child",
    "ChildEndedError",
    "ChildError",
    "ChildTimeoutError",
    "Ending",
    "LineError",
    "ProcessId",
    "at_end_of",
    "die_with_parent",
    "private_streams",
    "serve",
    "wait_for_parent",
]
