"""The executor that carries out what the controller decides, the mailboxes before its members, hosts in threads and on Ray."""

from tailrace.runtime.errors import AnswerError, DeadlineError, RoleError, RunFailedError, SupersededError
from tailrace.runtime.executor.deployment import Deadlines, Deployment
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import MemberDeadError, MemberStart, RoleSpec
from tailrace.runtime.role_worker import RoleWorker

__version__ = "0.1.0"
__all__ = [
    "AnswerError",
    "Deadlines",
    "DeadlineError",
    "Deployment",
    "Executor",
    "MemberDeadError",
    "MemberStart",
    "Ready",
    "RoleError",
    "RoleSpec",
    "RoleWorker",
    "RunFailedError",
    "SupersededError",
]
