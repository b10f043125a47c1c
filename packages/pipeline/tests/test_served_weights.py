"""Engines that do not load what they are given: nothing is generated with it, and the run goes on or ends with one line."""

from dataclasses import replace

import pytest

from tailrace.contracts import EngineAbilities, Pulled, PullFailed, Restart, Why
from tailrace.controller.controller import Controller
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import check
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.testing.small_run import (
    LOG,
    FakeReplicaRole,
    SlowEngine,
    check_run,
    commands_of,
    events_of,
    make_deployment,
    make_files,
    make_spec,
)
from tailrace.runtime.errors import RunFailedError
from tailrace.runtime.executor.deployment import REPLICA
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")

SKIPPED = "model.layers.0.mlp.down_proj.weight"


class SkipsLayer(SlowEngine):
    """It has zeros for one parameter, whatever it is given."""

    def load_weights(self, weights):
        super().load_weights(weights)
        self.tensors = {**self.tensors, SKIPPED: 0 * self.tensors[SKIPPED]}


class SkipsFirst(FakeReplicaRole):
    """A replica whose first engines, so many as the options say, skip a layer."""

    def __init__(self, settings, start):
        self._faulty = start.id == "r0" and start.incarnation <= settings.options["incarnations"]
        super().__init__(settings, start)

    def build_engine(self, engine, model, options):
        return (SkipsLayer if self._faulty else SlowEngine)(max_num_seqs=16, max_model_len=256)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def start(tmp_path, model):
    executors = []

    def run(incarnations):
        deployment = make_deployment(tmp_path, model)
        settings = deployment.roles[REPLICA].arguments["settings"]
        faulty = RoleSpec.of(SkipsFirst, replace(settings, options={"incarnations": incarnations}))
        deployment = replace(deployment, roles={**deployment.roles, REPLICA: faulty})
        controller = Controller(make_spec())
        executors.append(Executor(LocalHost(0.0), deployment))
        with EventLog(tmp_path / LOG) as log:
            executors[-1].run(controller, log)
        return controller, executors[-1]

    yield run
    for executor in executors:
        executor.close()


def test_an_engine_that_skips_a_layer_is_replaced_and_nothing_is_generated_with_it(start, tmp_path):
    controller, executor = start(incarnations=1)
    (failed,) = events_of(tmp_path, PullFailed)
    assert (failed.replica, failed.differs) == ("r0", SKIPPED)
    (restart,) = commands_of(tmp_path, Restart)
    assert (restart.id, restart.reason.why, restart.reason.numbers["version"]) == ("r0", Why.DIFFERS, failed.version)
    assert {event.compared for event in events_of(tmp_path, Pulled)} == {1.0}
    check_run(controller, executor, tmp_path)  # every token is drawn from the weights of its version


def test_a_run_ends_with_one_line_if_the_engine_that_takes_its_place_has_other_weights_too(start, tmp_path):
    with pytest.raises(RunFailedError) as failed:
        start(incarnations=9)
    (line,) = str(failed.value).splitlines()
    assert line.startswith("replica r0 has other weights than were published, after a restart too: parameter")
    assert f"{SKIPPED!r} of version 0, elements [" in line
    assert [(command.id, command.reason.why) for command in commands_of(tmp_path, Restart)] == [("r0", Why.DIFFERS)]
    assert not [event for event in events_of(tmp_path, Pulled) if event.replica == "r0"]


def test_digests_are_not_asked_of_an_engine_that_gives_none(monkeypatch):
    def told(rollout):
        return validate(
            [("my.toml", {"task": {"name": "long-chain-sum"}, "rollout": {"engine": "transformers", **rollout}})]
        )

    check(told({"digest_bytes": 4096}))
    monkeypatch.setattr("tailrace.rollout.engine_abilities", lambda *_: EngineAbilities(seeds=True))
    with pytest.raises(
        ConfigError,
        match=r"found 'transformers', which lacks digests of its weights, asked for by rollout.digest_bytes = 4096",
    ):
        check(told({"digest_bytes": 4096}))
    check(told({}))
    check(told({"digest_bytes": 0}))
