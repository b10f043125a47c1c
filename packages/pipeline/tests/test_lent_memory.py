"""A real engine gives its memory to the trainer for each step, and generates on with the new weights after it."""

from dataclasses import replace

import pytest

from tailrace.contracts import Finished, Lent, Offloaded, Pulled, Returned, Snapshot, Stepped
from tailrace.controller.controller import Controller
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.roles.prompts import SamplingTable
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.run.eventlog import EventLog, read_log
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.testing.modes_contract import make_mode_spec
from tailrace.pipeline.testing.small_run import LOG, MODES, events_of, make_deployment, make_files, policy
from tailrace.runtime.executor.deployment import DATA, REPLICA
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytest.importorskip("transformers", reason="a real engine generates")

STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose weights are large beside what else comes and goes in a process: 25 MB."""
    from tailrace.trainer.small_model import build_model

    model = make_files(tmp_path_factory.mktemp("files"))
    build_model(model, vocab_size=64, hidden=512, layers=2, heads=8, kv_heads=2, head_dim=64, mlp=1536, seed=0)
    return model


@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.deep), 2])
@pytest.mark.deep
def test_the_engine_sleeps_for_every_step_and_frees_its_memory(tmp_path, model, level):
    spec = replace(make_mode_spec("sync", steps=STEPS), provisioning=policy("provisioning", "hybrid", count=1))
    spec = replace(spec, batch_groups=2, evaluation=replace(spec.evaluation, size=0))
    deployment = make_deployment(tmp_path, model)
    kv_bytes = 32 << 20
    settings = replace(
        deployment.roles[REPLICA].settings,
        engine="transformers",
        options={"kv_cache_bytes": kv_bytes, "max_num_seqs": 16, "max_model_len": 64, "threads": 1, "device": "cpu"},
        sampling=SamplingTable(1.0, 8, (1, 2), MODES),
        sleep_level=level,
    )
    deployment = replace(deployment, roles={**deployment.roles, REPLICA: RoleSpec.of(ReplicaRole, settings)})
    controller, executor = Controller(spec), Executor(LocalHost(0.0), deployment)
    try:
        with EventLog(tmp_path / LOG) as log:
            executor.run(controller, log)
        audit = DATA_DOOR.open(executor.host.caller(DATA)).audit()
    finally:
        executor.close()
    assert controller.view.finished
    assert (audit["consumed_twice"], audit["inconsistent"]) == ([], [])
    assert audit["consumed"] == STEPS * 2 * 4
    lent, returned = events_of(tmp_path, Lent), events_of(tmp_path, Returned)
    assert len(lent) == STEPS
    assert len(returned) >= STEPS - 1  # the last may come as the run ends
    weight_bytes = (model / "model.safetensors").stat().st_size
    assert weight_bytes > 24e6
    for event in lent:
        assert event.level == level
        freed = event.awake_bytes - event.asleep_bytes
        assert freed > 0.8 * weight_bytes if level == 2 else freed > 0, (event, weight_bytes)
        assert event.seconds > 0
    check_order(tmp_path)
    figures = ReplicaFigures()
    follow(read_log(tmp_path / LOG), figures)
    plain = figures.plain()
    assert (plain["loans"], plain["sleep"]["times"]) == (STEPS, STEPS)
    assert plain["lend_s"] > 0
    assert plain["return_s"] > 0


def check_order(root):
    """Tokens are saved before the engine sleeps, the trainer leaves before it wakes, and it pulls once it is awake."""
    asleep = there = False
    for event in events_of(root, Finished, Lent, Offloaded, Pulled, Returned, Snapshot, Stepped):
        match event:
            case Lent():
                asleep = True
            case Stepped():
                assert asleep
                there = True
            case Offloaded():
                there = False
            case Returned():
                assert asleep
                assert not there
                asleep = False
            case Finished() | Pulled():
                assert not asleep, event
            case _:
                pass
