"""A short run on the local host, all real but the engine, whose steps take a known time: what comes out is that machine."""

import pytest

pytest.importorskip("torch")

from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit import profile_machine
from tailrace.fleetsim.profile.machine import machine_toml
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.testing.small_run import FakeReplicaRole, make_files


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(ReplicaRole, "build_engine", FakeReplicaRole.build_engine)
    model = make_files(tmp_path)
    return validate(
        [
            (
                "test",
                {
                    "app": "laminar",
                    "task": {
                        "train": str(tmp_path / "train.jsonl"),
                        "held_out": str(tmp_path / "held_out.jsonl"),
                        "verifier": "exact",
                        "held_out_size": 40,
                    },
                    "model": {"path": str(model)},
                    "pipeline": {"steps": 8, "prompts_per_step": 4, "samples_per_prompt": 4, "prompts_per_replica": 4},
                    "rollout": {"max_tokens": 60, "engine": "transformers"},
                    "evaluation": {"every": 4},
                    "executor": {"name": "local"},
                    "faults": ["replica@1s"],
                },
            )
        ]
    )


def test_a_machine_out_of_a_run(config, tmp_path):
    told = []
    found = profile_machine(
        config, tmp_path / "run", "here", steps=7, progress=lambda what, share: told.append((what, share))
    )
    machine = found.machine
    assert told[-1][0] == "updates of several sizes"
    assert ("step 7 of 7", 1.0) in told
    assert not any("of 8" in what for what, _ in told)
    assert machine.name == "here"
    assert machine.decode.max_running == 16  # the fake's, which evaluations fill
    assert machine.training.fixed_s + 300 * machine.training.per_token_s > 0.0005
    assert 0 < machine.weights.pull_s + machine.delays.route_s < 5.0
    assert 0.0 < machine.delays.report_s < 2.0
    assert len(machine.workload.groups) >= 7 * 4
    assert all(len(lengths) == len(rewards) == 4 for _, _, lengths, rewards in machine.workload.groups)
    assert machine.sharing is not None
    assert machine.sharing.alone_s > 0.0
    path = tmp_path / "here.toml"
    path.write_text(machine_toml(machine))
    simulated = simulate(config.model_copy(update={"fleet": {"profile": str(path)}, "faults": ()}))
    assert simulated.failure is None
    assert simulated.trajectories == 8 * 16


def test_a_glance_is_no_measurement(config, tmp_path):
    with pytest.raises(ProfileError, match="found 3 steps to measure, expected at least 5"):
        profile_machine(config, tmp_path / "run", "here", steps=3, progress=lambda what, share: None)
