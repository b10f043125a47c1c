"""The host of threads passes the contract suite of hosts."""

import pytest

from tailrace.pipeline.testing.busy_members import ask_behind_members
from tailrace.pipeline.testing.executor_contract import ExecutorContract
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")


@pytest.mark.long
@pytest.mark.inherited(
    deep=[
        ExecutorContract.test_any_relay_may_die_and_no_step_is_lost,
        ExecutorContract.test_a_ranker_learns_unasked_and_its_successor_goes_on_with_what_it_has_learned,
        ExecutorContract.test_a_replica_is_struck_in_each_of_its_phases,
        ExecutorContract.test_a_trainer_is_struck_in_each_of_its_phases,
        ExecutorContract.test_with_a_fence_no_replica_is_newer_than_the_trainer_can_be_again,
        ExecutorContract.test_a_trainer_killed_between_full_states_goes_on_from_the_last,
        ExecutorContract.test_a_machine_that_passes_its_checks_is_used_again,
    ]
)
class TestLocal(ExecutorContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


def test_a_controller_does_not_wait_behind_calls_of_members():
    host = LocalHost(0.0)
    ask_behind_members(host)
    host.close()
