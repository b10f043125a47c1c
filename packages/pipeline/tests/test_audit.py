"""Runs that really die on the way end on the bits of a training on their recorded batches alone."""

from dataclasses import replace

import pytest

from tailrace.pipeline.run.audit import Retraining, experience, read_archive, train_again, trained_once, updates
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.testing.real_runs import RealRuns
from tailrace.pipeline.testing.small_run import (
    GROUPS,
    LOG,
    TRAINED,
    make_deployment,
    make_files,
    make_spec,
    policy,
)
from tailrace.runtime.executor.deployment import TRAINER
from tailrace.runtime.hosts.local import LocalHost
from tailrace.trainer.weights_file import weights_sha256

TRAINING = {
    "in parts": policy("training", "dynamic-batch", parts=GROUPS),
    "streamed": policy("training", "streamed", groups=1),
}
STEPS = 6
FAULTS = ["trainer@step2", "replica@step3", "trainer@step4", "relay:0@step4"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("audited"))


class TestAudit(RealRuns):
    def make_host(self, started_s):
        return LocalHost(started_s)

    @pytest.mark.parametrize("training", ["streamed", pytest.param("in parts", marks=pytest.mark.deep)])
    @pytest.mark.deep
    def test_a_run_with_faults_ends_on_the_bits_of_one_without(self, tmp_path, model, training, deep):
        """The trainer dies twice, a replica and a relay once."""
        spec = make_spec(steps=STEPS, training=TRAINING[training], fence=training == "streamed")
        run = self.run(tmp_path, model, spec=spec, faults=FAULTS)
        rows, made = read_archive(tmp_path / TRAINED), updates(read_log(tmp_path / LOG))
        assert len(made) == STEPS
        assert trained_once(made, rows)
        assert not trained_once(made, [*rows, rows[0]])
        assert not trained_once(made[:-1], rows)
        settings = make_deployment(tmp_path / "again", model).roles[TRAINER].settings
        experiences = {row["trajectory"]: experience(row) for row in rows}
        again = Retraining(model, settings.backend, settings.config, 1, 1, made, experiences)
        assert train_again(again) == weights_sha256(tmp_path / "checkpoints" / str(run.version))
        if deep:
            before = weights_sha256(tmp_path / "checkpoints" / str(made[-2].version))
            assert train_again(replace(again, updates=made[:-1])) == before
