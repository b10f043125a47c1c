"""The Ray host passes the contract suite of hosts. What is the same on all hosts runs here with --deep only."""

import importlib
import os
import signal
import threading

import pytest

from tailrace.contracts import Place
from tailrace.faulttol import FaultKind
from tailrace.pipeline.testing.busy_members import ask_behind_members
from tailrace.pipeline.testing.executor_contract import ExecutorContract
from tailrace.pipeline.testing.ray_clusters import OnSharedCluster
from tailrace.pipeline.testing.small_run import STEPS
from tailrace.runtime.executor.seam import MemberDeadError, RoleSpec

pytest.importorskip("torch", reason="a real trainer trains a real model")


@pytest.mark.long
@pytest.mark.inherited(
    keeps=[
        ExecutorContract.test_a_controller_that_died_is_replaced_and_nobody_restarts,
    ]
)
class TestRay(OnSharedCluster, ExecutorContract):
    @pytest.mark.deep
    def test_ranks_of_the_trainer_publish_their_own_shards(self, tmp_path, model):
        """Two processes and two relays; the master relay and the trainer die."""
        faults = ["relay:0@step1", "trainer@step3"]
        run = self.run(tmp_path, model, ranks=2, relays=2, faults=faults)
        assert sorted(role for role, _ in self.downs(tmp_path)) == ["relay", "trainer"]
        assert run.step == STEPS

    @pytest.mark.deep
    def test_a_cell_that_is_killed_takes_the_others_with_it(self, tmp_path, model):
        """Two processes, each a cell; the one that says nothing to the executor but what it added dies between groups."""
        self.killed_between_groups(tmp_path, model, rank="0.1", cells=2)

    @pytest.mark.parametrize(("nice", "taken"), [(0, True), (1, False)], ids=["as asked", "as another"])
    def test_a_process_that_was_started_ahead_is_taken_if_it_is_what_is_asked_for(self, nice, taken):
        import ray

        host = self.make_host(0.0)
        ray.get(host.prepare("counter", "0", RoleSpec(importlib.import_module, {"name": "colorsys"}), Place()))
        actor, *_ = host._prepared["counter", "0"]
        _, ahead, *_ = ray.get(actor.where.remote())
        member = host.spawn("counter", "0", 1, RoleSpec(dict, {"a": 1}, nice=nice), Place())
        assert member.call("get", "a").result(60) == 1
        assert host.caller("counter").call("get", "a", timeout_s=60) == 1
        assert (member.pid == ahead.pid) is taken
        host.close()

    def test_a_process_that_is_replaced_may_take_its_time_to_go(self, monkeypatch):
        """Ray ends actors when it comes to it, and until then their name is taken."""
        import ray

        host = self.make_host(0.0)
        ray.get(host.prepare("counter", "0", RoleSpec(importlib.import_module, {"name": "colorsys"}), Place()))
        kill = ray.kill
        monkeypatch.setattr(ray, "kill", lambda actor, **named: threading.Timer(1.0, kill, (actor,), named).start())
        member = host.spawn("counter", "0", 1, RoleSpec(dict, {"a": 1}, nice=1), Place())
        assert member.call("get", "a").result(60) == 1
        monkeypatch.undo()
        host.close()

    def test_a_member_that_stood_still_before_it_was_found_is_struck_and_ended(self):
        """Its process is unknown to who finds it, and a strike that it never answers fails while it is ended."""
        host = self.make_host(0.0)
        started = host.spawn("counter", "0", 1, RoleSpec(dict), Place())
        started.call("ready").exception(60)
        os.kill(started.pid, signal.SIGSTOP)
        found = host.find("counter", "0", 1)
        found.strike(FaultKind.KILL)
        ending = threading.Thread(target=found.kill, daemon=True)
        ending.start()
        ending.join(30)
        assert not ending.is_alive()
        with pytest.raises(MemberDeadError):
            found.call("get", "a").result(60)
        host.close()

    def test_a_controller_does_not_wait_behind_calls_of_members(self):
        host = self.make_host(0.0)
        ask_behind_members(host)
        host.close()

    def test_a_role_that_cannot_be_built_says_why_at_the_first_call(self):
        host = self.make_host(0.0)
        member = host.spawn("broken", "0", 1, RoleSpec(dict.fromkeys, {"iterable": 1}), Place())
        with pytest.raises(TypeError, match="fromkeys"):
            member.call("ready").result(60)
        host.close()
