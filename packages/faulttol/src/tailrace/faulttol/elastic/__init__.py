"""Elastic groups of workers on Ray, found by name: for ranks, replicas or environments of any system (RobustRL, Figure 10).

Needs the extra ``ray``; nothing of it is imported before the first actor starts.
"""

from tailrace.faulttol.elastic.actors import NamedActors, NamedCaller, actor_name
from tailrace.faulttol.elastic.group import ElasticGroup, Hooks, Liveness, Worker, cause_of_death
from tailrace.faulttol.elastic.keeper import Change, Does, GroupKeeper

__all__ = [
    "Change",
    "Does",
    "ElasticGroup",
    "GroupKeeper",
    "Hooks",
    "Liveness",
    "NamedActors",
    "NamedCaller",
    "Worker",
    "actor_name",
    "cause_of_death",
]
