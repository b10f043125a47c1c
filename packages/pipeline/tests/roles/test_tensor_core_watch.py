"""A real trainer on a real GPU that says nothing of its micro-batches: its tensor cores say whether it works."""

import functools

import pytest

from tailrace.contracts import Activity, Step, Stepped
from tailrace.faulttol.tensor_cores import open_tensor_cores
from tailrace.pipeline.roles import trainer
from tailrace.pipeline.roles.trainer_activity import TensorCoreWatch


@pytest.mark.gpu
def test_a_trainer_that_computes_is_seen_to_and_one_that_stands_still_is_not(
    make_trainer, data, gather, until, monkeypatch, tmp_path
):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    reader = open_tensor_cores(("0",))
    if reader is None:
        pytest.skip("neither DCGM nor NVML reads this GPU's tensor cores")
    reader.close()

    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.worker import TrainerWorker

    monkeypatch.setattr(TrainerWorker, "watch_micro_batches", lambda self, ended: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(trainer, "TensorCoreWatch", functools.partial(TensorCoreWatch, every_s=0.5))
    model = build_model(tmp_path / "model", vocab_size=64, hidden=2_048, layers=8, mlp=8_192)
    role = make_trainer(model=model, config=TrainerConfig(device="cuda", dtype="bfloat16"))
    role.ready(None)

    told, steps = [], 0

    def step():
        nonlocal steps
        steps += 1
        role.submit([Step(steps, steps, (data.batch(steps % 40),))])

    def progress():
        return max((one.progress for one in told if one.phase == "training"), default=0)

    def worked():
        step()
        events = gather(role, lambda events: any(isinstance(one, Stepped) for one in events), "a step")
        told.extend(one for one in events if isinstance(one, Activity))
        return progress() >= 2

    until(worked, "tensor cores that are seen to work", 120)

    data.go.clear()
    data.reached.clear()
    step()
    assert data.reached.wait(30)
    role.events(2.0)  # a reading may end with what worked before
    quiet = [one for _ in range(8) for one in role.events(0.5)]
    assert [one for one in quiet if isinstance(one, Activity)] == []
    data.go.set()
    gather(role, lambda events: any(isinstance(one, Stepped) for one in events), "the step")
