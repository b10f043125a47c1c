"""The Ray host passes the contract suites of rounds, modes, restarts of the task, turns and balance: with --deep."""

import pytest

from tailrace.pipeline.testing.balance_contract import BalanceContract
from tailrace.pipeline.testing.executor_contract import TaskContract
from tailrace.pipeline.testing.modes_contract import ModesContract
from tailrace.pipeline.testing.ray_clusters import OnSharedCluster
from tailrace.pipeline.testing.rounds_contract import RoundsContract
from tailrace.pipeline.testing.turns_contract import TurnsContract

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytestmark = [pytest.mark.deep, pytest.mark.long]


class TestBalanceRay(OnSharedCluster, BalanceContract): ...


class TestTurnsRay(OnSharedCluster, TurnsContract): ...


class TestRoundsRay(OnSharedCluster, RoundsContract):
    @pytest.mark.parametrize("kills_lent", [True, False], ids=["lent", "kept"])
    def test_a_replica_killed_while_devices_are_lent_brings_them_back(self, tmp_path, model, kills_lent):
        """Two processes, each a cell on the device of a replica."""
        self.lends(tmp_path, model, kills_lent=kills_lent)


class TestModesRay(OnSharedCluster, ModesContract): ...


class TestTaskRay(OnSharedCluster, TaskContract): ...
