"""A whole run with another backend than FSDP2, or a critic: a killed trainer comes back, the audit finds the same bits."""

import json
from importlib.util import find_spec

import pytest

from tailrace.cli.main import main

PPO = 'loss = "ppo"\ncritic = { warmup_steps = 1 }'
RANKS = {  # of threads in this process, or of processes on Ray
    "deepspeed": ("local", 'backend = "deepspeed"\noptions = { lr = 1e-2, threads = 1 }'),
    "deepspeed zero-3": (
        "ray",
        'backend = "deepspeed"\nprocesses = 2\noptions = { lr = 1e-2, threads = 1, zero_stage = 3 }',
    ),
    "deepspeed with a critic": (
        "ray",
        f'backend = "deepspeed"\nprocesses = 2\n{PPO}\noptions = {{ lr = 1e-2, threads = 1, zero_stage = 3 }}',
    ),
    "fsdp2 with a critic": ("local", f"{PPO}\noptions = {{ lr = 1e-2, threads = 1 }}"),
    "megatron": ("local", 'backend = "megatron"\noptions = { lr = 1e-2, threads = 1 }'),
    "megatron with a critic": (
        "ray",
        f'backend = "megatron"\nprocesses = 2\n{PPO}\noptions = {{ lr = 1e-2, threads = 1, tensor_parallel = 2 }}',
    ),
    "megatron tensor-parallel": (
        "ray",
        'backend = "megatron"\nprocesses = 2\noptions = { lr = 1e-2, threads = 1, tensor_parallel = 2 }',
    ),
}


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RANKS)
def test_it_trains_comes_back_and_is_exported(name, small_run, capsys):
    if name.split()[0] != "fsdp2" and find_spec(name.split()[0]) is None:
        pytest.skip(f"needs tailrace-trainer[{name.split()[0]}]")
    executor, trainer = RANKS[name]
    run = small_run()
    run.train(trainer, executor)
    changed = run.trained()
    assert len([name for name in changed if name.endswith("proj.weight")]) == 14  # all of both layers
    if name.endswith("with a critic"):
        told = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
        steps = [step for step in told if "value_loss" in step]
        assert [step["lr"] for step in steps] == [0.0, *[0.01] * (len(steps) - 1)]
        again = [step["value_loss"] for step in steps if step["step"] == 2]  # the trainer was killed in it
        assert len(set(again)) == 1
        last = max((run.directory / "checkpoints").iterdir(), key=lambda path: int(path.name)) / "trainer.json"
        saved = last.read_bytes()
        capsys.readouterr()
        for change in ("trainer.loss.name=dapo", "trainer.advantages=group"):
            assert (
                main(["run", "--resume", str(run.directory), "--plain", "--set", "pipeline.steps=5", "--set", change])
                == 2
            )
            (line,) = capsys.readouterr().err.splitlines()
            assert "key 'trainer.critic': found settings of a critic with advantages 'group'" in line
        assert last.read_bytes() == saved
