"""What a member that is about to start is given: the resources of its size, of its pool if it has one."""

import dataclasses

import pytest
from scripted_host import LIMITS

from tailrace import contracts as c
from tailrace.runtime.errors import MachineUnfitError
from tailrace.runtime.executor.deployment import Deadlines, Deployment, MachineChecks, PoolReplicas, start_checked
from tailrace.runtime.executor.seam import RoleSpec


class Callers:
    def caller(self, role, id_="0"):
        return None


def made(**_):
    """A member."""


BUNDLE = object()
DEPLOYMENT = Deployment(
    "run", "token", {"replica": RoleSpec(made, cpus=2.0, gpus=4.0)}, deadlines=LIMITS, tp=2,
    pools={"large": PoolReplicas(RoleSpec(made, cpus=3.0, gpus=8.0), tp=4)}, bundles={("replica", "r0"): BUNDLE},
)  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "tp", "cpus", "gpus"),
    [("", None, 2, 4), ("", 1, 1, 2), ("", 2, 2, 4), ("", 4, 4, 8), ("large", None, 3, 8), ("large", 2, 1.5, 4)],
)
def test_a_replica_of_another_size_gets_resources_in_proportion(pool, tp, cpus, gpus):
    role = DEPLOYMENT.role(Callers(), "replica", "r0", 1, tp=tp, place=c.Place(pool=pool))
    assert (role.cpus, role.gpus) == (cpus, gpus)
    assert role.bundle is (BUNDLE if tp in (None, 2) else None)
    assert role.arguments["start"].tp == tp


def test_one_deadline_for_all_leaves_that_for_silence_its_own():
    deadlines = dataclasses.asdict(Deadlines.all(7.0, suspect_s=1.0))
    assert deadlines.pop("suspect_s") == 1.0
    assert set(deadlines.values()) == {7.0}


def test_the_ranks_of_each_start_of_a_trainer_and_of_each_cluster_meet_elsewhere(tmp_path):
    def meeting(token, incarnation, **changes):
        roles = {"trainer": RoleSpec(made)}
        deployment = Deployment("run", token, roles, deadlines=LIMITS, **{"trainer_ranks": 2, **changes})
        return deployment.role(Callers(), "trainer", "0", incarnation).arguments["start"].rendezvous

    there = [meeting(token, start, rendezvous=tmp_path) for token in ("a", "b") for start in (1, 2)]
    assert len(set(there)) == 4
    assert all(place.parent == tmp_path for place in there)
    assert meeting("a", 1) is None
    assert meeting("a", 1, rendezvous=tmp_path, trainer_ranks=1) is None


def test_a_role_is_built_only_where_the_machine_passes_its_checks(tmp_path):
    checks = MachineChecks(("disk",), tmp_path, timeout_s=60.0)
    assert start_checked(dict, checks, start="r0") == {"start": "r0"}
    gone = dataclasses.replace(checks, directory=tmp_path / "gone")
    with pytest.raises(MachineUnfitError, match=r"its machine did not pass the check 'disk': .*No such file"):
        start_checked(dict, gone, start="r0")
