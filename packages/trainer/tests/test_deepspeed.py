"""The DeepSpeed backend: its contract at each stage of ZeRO, and two real processes that compute what one of FSDP2 does."""

import dataclasses
import functools
import gc
import subprocess
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes
from dear_contract_tests import DEAR

from tailrace.trainer import NonFiniteGradientError, TrainerConfig, TrainerConfigError
from tailrace.trainer.backend import check_backend
from tailrace.trainer.backends import deepspeed
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import BackendContract

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="the extra tailrace-trainer[deepspeed] is not installed"),
]
# Stage 3 divides all that the others do, and parameters.
RARELY = [pytest.param(stage, marks=pytest.mark.deep) for stage in (1, 2)]
STAGES = [*RARELY, 3]


class _Contract(BackendContract):
    stage: int

    def build(self, model_path, config):
        return deepspeed(model_path, zero(self.stage, config), rank=0, world_size=1, rendezvous=None)


def zero(stage, config=trainer_processes.CONFIG):
    return dataclasses.replace(config, zero_stage=stage)


@pytest.mark.inherited(deep=[*DEAR, BackendContract.test_gradients_that_were_added_make_the_step_of_the_whole_batch])
class TestZero3(_Contract):
    stage = 3


@pytest.mark.inherited(keeps=[])
class TestZero1(_Contract):
    stage = 1


@pytest.mark.inherited(keeps=[])
class TestZero2(_Contract):
    stage = 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FSDP2 in one process and each stage in two, by name: plain steps, and batches that are added up group by group."""
    root = tmp_path_factory.mktemp("ranks")
    # Sizes that do not divide evenly between two ranks.
    model = build_model(root / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)

    @functools.cache
    def run(name):
        plain, streamed = root / name / "plain", root / name / "streamed"
        for out in (plain, streamed):
            out.mkdir(parents=True)
        if name == "fsdp2":
            trainer_processes.train(0, 1, model, None, plain)
            trainer_processes.stream(0, 1, 1, None, model, None, streamed)
            return root / name
        config, meet = zero(int(name.removeprefix("zero"))), f"file://{root}/meet-{name}"
        trainer_processes.run_all(trainer_processes.train, 2, model, meet, plain, config)
        # four groups one after another, and the rest with the step
        trainer_processes.run_all(trainer_processes.stream, 2, 1, (4,), model, f"{meet}-streamed", streamed, config)
        return root / name

    return run


def close(found, expected):
    """The difference that another order of float32 sums allows.

    1e-6 on gradients of order 0.01 to 1. Weights and metrics of later steps: 1e-4, since Adam divides by the gradient, and
    small gradients lose digits.
    """
    assert found.keys() == expected.keys()
    assert sum(float(value.abs().sum()) for key, value in expected.items() if key.startswith("gradient/")) > 0.1
    for key, value in expected.items():
        absolute = 1e-6 if key.startswith("gradient/") else 1e-4
        torch.testing.assert_close(found[key], value, atol=absolute, rtol=1e-4, msg=key)


@pytest.mark.parametrize("kind", ["plain", "streamed"])
@pytest.mark.parametrize("stage", STAGES)
def test_gradients_metrics_and_weights_of_two_ranks_are_those_of_one_of_fsdp2(runs, stage, kind):
    found = load_file(runs(f"zero{stage}") / kind / "result.safetensors")
    close(found, load_file(runs("fsdp2") / kind / "result.safetensors"))


@pytest.mark.parametrize(
    ("saved_by", "ranks", "stage"),
    [
        ("zero3", 1, None),
        ("fsdp2", 2, 3),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (("zero1", 1, 1), ("zero2", 1, 3), ("zero3", 1, 2), ("zero2", 2, None), ("fsdp2", 2, 1))
        ),
    ],
)
@pytest.mark.deep
def test_a_run_goes_on_with_other_ranks_another_stage_or_another_backend(runs, saved_by, ranks, stage, tmp_path):
    directory, out = runs(saved_by) / "plain" / "checkpoint", tmp_path / "resumed"
    if ranks == 1:
        trainer_processes.resume(0, 1, directory, None, out, zero(stage))
    else:
        trainer_processes.run_all(trainer_processes.resume, 2, directory, f"file://{tmp_path}/meet", out, zero(stage))
    expected = load_file(runs(saved_by) / "plain" / "result.safetensors")
    for name, tensor in load_file(out).items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_go_on_bit_for_bit(runs, stage, tmp_path):
    directory, out = runs(f"zero{stage}") / "plain" / "checkpoint", tmp_path / "resumed"
    trainer_processes.run_all(trainer_processes.resume, 2, directory, f"file://{tmp_path}/meet", out, zero(stage))
    expected = load_file(runs(f"zero{stage}") / "plain" / "result.safetensors")
    for name, tensor in load_file(out).items():
        assert torch.equal(tensor, expected[name]), name


def stream_by_rows(rank, world_size, model, rendezvous, out: Path, config):
    """`trainer_processes.stream` of a model that counts as large: no rank may load it whole, nor the reference model."""
    trainer_processes.never_whole()
    trainer_processes.stream(rank, world_size, 1, (2,), model, rendezvous, out, config)


@pytest.mark.parametrize(
    ("stage", "ranks", "changes"),
    [
        (2, 1, {"dtype": "bfloat16"}),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (
                (3, 2, {}),
                (3, 2, {"adapter": AdapterConfig(rank=3)}),
                (3, 1, {"dtype": "bfloat16"}),
                (3, 1, {}),
                (3, 1, {"adapter": AdapterConfig(rank=3)}),
                (3, 2, {"dtype": "bfloat16"}),
                (1, 2, {}),
                (2, 2, {"dtype": "bfloat16"}),
                (2, 2, {"dtype": "bfloat16", "adapter": AdapterConfig(rank=3)}),
                (
                    2,
                    2,
                    {"dtype": "bfloat16", "loss": "ppo", "advantages_options": {"whiten": False}, "advantages": "gae"},
                ),
            )
        ),
    ],
)
@pytest.mark.deep
def test_no_rank_loads_a_large_model_whole(stage, ranks, changes, tmp_path):
    if "adapter" in changes:
        pytest.importorskip("peft", reason="the extra tailrace-trainer[adapters] is not installed")
    model = build_model(tmp_path / "model", vocab_size=31, hidden=15, layers=2, heads=2, head_dim=6, mlp=17)
    config = dataclasses.replace(trainer_processes.CONFIG, activation_checkpointing="off", **changes)
    for out in ("whole", "rows"):
        (tmp_path / out).mkdir()
    arguments = (1, (2,), model, f"file://{tmp_path}/one", tmp_path / "whole", zero(stage, config))
    trainer_processes.run_all(trainer_processes.stream, ranks, *arguments)
    arguments = (model, f"file://{tmp_path}/other", tmp_path / "rows", zero(stage, config))
    trainer_processes.run_all(stream_by_rows, ranks, *arguments)
    found, expected = (load_file(tmp_path / out / "result.safetensors") for out in ("rows", "whole"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("stage", STAGES)
def test_a_gradient_that_is_not_finite_changes_nothing(stage, tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=16, layers=1, head_dim=8, mlp=32)
    batches = [trainer_processes.batch(seed) for seed in range(3)]
    with trainer_processes.build(model, zero(stage), 0, 1, None) as worker:
        worker.step([batches[0]])
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        broken = [dataclasses.replace(e, segments=[_unlikely(s) for s in e.segments]) for e in batches[1]]
        with pytest.raises(NonFiniteGradientError):
            worker.step([broken])
        worker.accumulate(broken)
        with pytest.raises(NonFiniteGradientError):
            worker.apply()
        for name, tensor in worker.weights():
            assert torch.equal(tensor, before[name]), name
        worker.step([batches[2]])
        after = {name: tensor.clone() for name, tensor in worker.weights()}
    with trainer_processes.build(model, zero(stage), 0, 1, None) as worker:
        worker.step([batches[0]])
        worker.step([batches[2]])
        for name, tensor in worker.weights():
            assert torch.equal(tensor, after[name]), name


def _unlikely(segment):
    """Tokens whose ratio to the behaviour policy is infinite."""
    return segment if segment.observation else dataclasses.replace(segment, logprobs=(-1e5,) * len(segment.tokens))


@pytest.mark.parametrize("stage", [*RARELY[1:], 3])
@pytest.mark.deep
def test_bfloat16_has_master_copies_in_float32(stage, tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=16, layers=1, head_dim=8, mlp=32)
    config = dataclasses.replace(trainer_processes.CONFIG, dtype="bfloat16")
    metrics, masters = {}, {}
    for kind in (None, stage):
        with trainer_processes.build(model, zero(kind, config), 0, 1, None) as worker:
            masters[kind] = [{name: tensor.clone() for name, tensor in worker._model.whole_parameters()}]
            metrics[kind] = [worker.step([trainer_processes.batch(seed)]) for seed in range(2)]
            masters[kind].append({name: tensor.clone() for name, tensor in worker._model.whole_parameters()})
            worker.save(tmp_path / f"{kind}", 2).result(60)
            assert {tensor.dtype for _, tensor in worker.weights()} == {torch.bfloat16}
            assert worker.load(tmp_path / f"{kind}") == 2
            for name, tensor in worker._model.whole_parameters():
                assert torch.equal(tensor, masters[kind][1][name]), name
    for name, master in masters[stage][0].items():
        assert torch.equal(master, masters[None][0][name]), name  # not what bfloat16 leaves of them
        # passes in bfloat16 round in another order: two steps of AdamW at a rate of 0.01
        torch.testing.assert_close(masters[stage][1][name], masters[None][1][name], atol=5e-3, rtol=0, msg=name)
    for found, expected in zip(metrics[stage], metrics[None], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-3)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.deep
def test_two_ranks_train_an_adapter_as_one_of_fsdp2_does(stage, tmp_path):
    pytest.importorskip("peft", reason="the extra tailrace-trainer[adapters] is not installed")
    model = build_model(tmp_path / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    config = dataclasses.replace(trainer_processes.CONFIG, adapter=AdapterConfig(rank=3))
    for out in ("fsdp2", "zero"):
        (tmp_path / out).mkdir()
    trainer_processes.stream(0, 1, 1, None, model, None, tmp_path / "fsdp2", config)
    arguments = (2, 1, (4,), model, f"file://{tmp_path}/meet", tmp_path / "zero", zero(stage, config))
    trainer_processes.run_all(trainer_processes.stream, *arguments)
    close(*(load_file(tmp_path / out / "result.safetensors") for out in ("zero", "fsdp2")))


@pytest.mark.parametrize("stage", [*RARELY[1:], 3])
@pytest.mark.deep
def test_passes_without_gradient_before_the_first_of_two_optimizer_steps(stage, tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    config = dataclasses.replace(trainer_processes.CONFIG, loss="decoupled-ppo")
    for out in ("fsdp2", "zero"):
        (tmp_path / out).mkdir()
    trainer_processes.train(0, 1, model, None, tmp_path / "fsdp2", config)
    arguments = (2, model, f"file://{tmp_path}/meet", tmp_path / "zero", zero(stage, config))
    trainer_processes.run_all(trainer_processes.train, *arguments)
    close(*(load_file(tmp_path / out / "result.safetensors") for out in ("zero", "fsdp2")))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"cells": 2}, "found cells = 2 with backend deepspeed, expected 1"),
        ({"dtype": "float64"}, "found dtype = 'float64' with backend deepspeed, expected 'float32' or 'bfloat16'"),
        ({"dtype": "bfloat16", "zero_stage": 1}, "found zero_stage = 1 with dtype = 'bfloat16', expected 2 or 3"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_run_starts(settings, line):
    with pytest.raises(TrainerConfigError, match=line):
        check_backend("deepspeed", TrainerConfig(**settings), 2)


@pytest.mark.parametrize("stage", [1, 2])  # with stage 3, closures of DeepSpeed's own hold its parameters
def test_a_closed_rank_leaves_no_model_behind(stage, tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=16, layers=1, head_dim=8, mlp=32)
    worker = trainer_processes.build(model, zero(stage), 0, 1, None)
    worker.step([trainer_processes.batch(0)])
    held = [weakref.ref(each) for each in (worker._model, *worker._model.parameters.values())]
    worker.close()
    del worker
    gc.collect()
    assert [each() is None for each in held] == [True] * len(held)


@pytest.mark.deep
def test_it_prints_nothing_and_a_process_without_it_does_not_import_it(tmp_path):
    code = (
        "import sys, importlib\n"
        "from transformers import Qwen3ForCausalLM\n"
        "if importlib.util.find_spec('peft'): import peft\n"
        "from tailrace.trainer.small_model import build_model\n"
        f"build_model({str(tmp_path)!r}, vocab_size=31, layers=1)\n"
        "assert 'deepspeed' not in sys.modules\n"
        "from tailrace.trainer.backend import import_backend\n"
        "import_backend('deepspeed')\n"
        "assert 'deepspeed' in sys.modules\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert told.stdout == ""
    assert "Setting accelerator" not in told.stderr


def test_a_stage_of_zero_is_refused_by_fsdp2():
    with pytest.raises(
        TrainerConfigError, match="found zero_stage = 3 with backend fsdp2, expected None, or backend deepspeed"
    ):
        check_backend("fsdp2", TrainerConfig(zero_stage=3), 1)
    wrong: Any = 4
    with pytest.raises(TrainerConfigError, match="found zero_stage = 4, expected 1, 2, 3 or none"):
        TrainerConfig(zero_stage=wrong)
