"""A run whose adapter does not reach the engine ends at its first pull, with one line."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from tailrace.controller.controller import Controller
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.testing.small_run import make_deployment, make_files, make_spec
from tailrace.runtime.errors import RunFailedError
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.local import LocalHost
from tailrace.trainer import AdapterConfig

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs PEFT")


def with_adapter(role, rank):
    """The same role, whose settings have an adapter of this rank."""
    settings = role.arguments["settings"]
    adapter = AdapterConfig(rank=rank)
    changed = (
        {"config": replace(settings.config, adapter=adapter)} if hasattr(settings, "config") else {"adapter": adapter}
    )
    return RoleSpec.of(role.factory, replace(settings, **changed))


def test_a_replica_that_expects_another_adapter(tmp_path):
    deployment = make_deployment(tmp_path / "run", make_files(tmp_path))
    roles = deployment.roles
    wrong = {TRAINER: with_adapter(roles[TRAINER], 2), REPLICA: with_adapter(roles[REPLICA], 3)}
    deployment = replace(deployment, roles={**roles, **wrong})
    controller = Controller(make_spec())
    executor = Executor(LocalHost(0.0), deployment)
    try:
        with EventLog(tmp_path / "run" / "events.jsonl") as log, pytest.raises(RunFailedError) as failed:
            executor.run(controller, log)
    finally:
        executor.close()
    assert controller.view.step == 0
    (line,) = str(failed.value).splitlines()
    assert (
        "to pull version 0: AdapterError: found 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'"
        in line
    )
    assert line.endswith("of shape [2, 16], expected one of rank 3")
