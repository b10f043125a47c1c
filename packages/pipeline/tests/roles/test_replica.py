"""The replica role with a fake engine, on a real store and a real relay: the data role's death costs it nothing."""

import time

import pytest

from tailrace.contracts import (
    Activity,
    Finished,
    Interrupt,
    Interrupted,
    Pull,
    Pulled,
    PullFailed,
    Route,
    Score,
    TrajectoryRef,
)
from tailrace.faulttol import FaultKind
from tailrace.paramserver import Publisher
from tailrace.pipeline.roles.data import DataRole
from tailrace.pipeline.roles.prompts import DecodingMode, SamplingTable
from tailrace.pipeline.roles.replica import ReplicaRole, ReplicaSettings
from tailrace.rollout.testing import FakeEngine, fake_token
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready

LENGTH = 60


class SlowEngine(FakeEngine):
    def load_weights(self, weights):
        (pair,) = weights
        super().load_weights([("w", int(pair[1][0]))])

    def step(self):
        time.sleep(0.005)
        return super().step()


class FakeReplica(ReplicaRole):
    def build_engine(self, engine, model, options):
        return SlowEngine(max_num_seqs=16, max_model_len=256)


@pytest.fixture
def make(caller, data_settings, model, token, tmp_path, split_settings):
    roles, caller.role = [], DataRole(data_settings)

    def start(**options):
        arguments = {
            "id": "r0",
            "incarnation": 1,
            "engine": "fake",
            "model": model,
            "options": {},
            "store": caller,
            "sampling": SamplingTable(1.0, LENGTH, (), {"sampled": DecodingMode()}),
            "token": token,
            "checkpoints": tmp_path,
            "snapshot_s": 0.1,
            "flush_s": 0.1,
        }
        roles.append(FakeReplica(*split_settings(ReplicaSettings, **{**arguments, **options})))
        return roles[-1]

    yield start
    for role in roles:
        role.close()
    caller.role.close()


@pytest.fixture
def relay(spawn, token):
    torch = pytest.importorskip("torch")
    relay = spawn()
    with Publisher(relay.address, token=token) as publisher:
        for version in (4, 5):
            publisher.publish(version, [("w", torch.full((10,), version, dtype=torch.int32))])
            publisher.wait(version, 20)
    return relay


def refs(*names):
    return tuple(TrajectoryRef(name, 0, index, prompt=index) for index, name in enumerate(names))


def fold(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_pulls_from_its_sources_and_generates(make, relay, caller, gather):
    role = make()
    assert role.ready() == Ready()
    role.submit([Pull(1, "r0", 4, 0, (relay.address,)), Route(2, "r0", refs("a", "b"), 1)])
    events = gather(role, lambda events: len(fold(events, Finished)) == 2, "both responses")
    assert fold(events, Pulled) == [Pulled("r0", 4, answers=1)]
    for experience in caller.role.experiences(["a", "b"]):
        assert experience.tokens == tuple(fake_token(4, experience.prompt, i)[0] for i in range(LENGTH))
    role.adopt()
    role.submit([Pull(1, "r0", 5, 0, ("127.0.0.1:1", relay.address))])
    gather(role, lambda events: fold(events, Pulled) == [Pulled("r0", 5, answers=1)], "the newer version")
    role.submit([Pull(2, "r0", 9, 1, ())])
    (failed,) = fold(gather(role, lambda events: fold(events, PullFailed), "the pull to fail"), PullFailed)
    assert "neither a relay nor a checkpoint of version 9" in failed.reason
    with pytest.raises(RoleError, match="got Score"):
        role.submit([Score(3, ())])


def test_it_outlives_the_data_role(make, relay, caller, gather, data_settings):
    role = make()
    role.submit([Pull(1, "r0", 4, 0, (relay.address,)), Route(2, "r0", refs("a", "b"), 1)])
    gather(role, lambda _: sum(p[1] for p in caller.role.ready().partial.values()) > 20, "some tokens")
    for _ in range(2):
        died, caller.role = caller.role, None
        died.close()
        assert not fold(role.events(0.3), Finished)
        caller.role = DataRole(data_settings)
        caller.role.ready(None)
    role.submit([Route(3, "r0", refs("a", "b", "c")[2:], 2)])
    gather(role, lambda events: len(fold(events, Finished)) == 3, "all responses")
    assert {e.trajectory: len(e.tokens) for e in caller.role.experiences(["a", "b", "c"])} == dict.fromkeys(
        "abc", LENGTH
    )


def test_a_data_role_that_does_not_come_back_breaks_it(make, relay, caller, gather, data_settings):
    role = make(data_s=0.3)
    role.submit([Pull(1, "r0", 4, 0, (relay.address,)), Route(2, "r0", refs("a"), 1)])
    gather(role, lambda _: caller.role.ready().partial.get("a", (0, 0))[1] > 5, "some tokens")
    died, caller.role = caller.role, None
    died.close()
    with pytest.raises(Exception, match=r"the data role is gone|did not acknowledge"):
        gather(role, lambda _: False, "its end")
    caller.role = DataRole(data_settings)


def test_a_stalled_engine_stands_still_in_a_process_that_answers(make, relay, gather):
    role = make()
    assert not role.strike(FaultKind.KILL)
    role.submit([Pull(1, "r0", 4, 0, (relay.address,)), Route(2, "r0", refs("a"), 1)])
    gather(role, lambda events: fold(events, Pulled), "the pull")
    assert role.strike(FaultKind.STALL)
    events = gather(role, lambda events: fold(events, Activity), "it to say so")
    assert fold(events, Activity)[-1].still_s > 0
    assert not fold(events, Finished)
    role.submit([Interrupt(3, "r0", ("a",), 2)])
    assert not fold(role.events(0.5), Interrupted)
