"""The host of threads passes the contract suites of rounds, modes, restarts of the task, turns and balance."""

import pytest

from tailrace.pipeline.testing.balance_contract import BalanceContract
from tailrace.pipeline.testing.executor_contract import TaskContract
from tailrace.pipeline.testing.modes_contract import ModesContract
from tailrace.pipeline.testing.rounds_contract import RoundsContract
from tailrace.pipeline.testing.turns_contract import TurnsContract
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytestmark = pytest.mark.long


@pytest.mark.inherited(deep=[RoundsContract.test_a_member_that_hangs_in_a_round_is_replaced])
class TestRoundsLocal(RoundsContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


@pytest.mark.inherited(
    deep=[ModesContract.test_a_trainer_struck_in_every_phase_ends_on_the_bits_of_a_run_without_faults]
)
class TestModesLocal(ModesContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


class TestTaskLocal(TaskContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


class TestTurnsLocal(TurnsContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


@pytest.mark.inherited(deep=[BalanceContract.test_one_joins_a_slow_generation_and_leaves_a_fast_one])
class TestBalanceLocal(BalanceContract):
    def make_host(self, started_s):
        return LocalHost(started_s)
