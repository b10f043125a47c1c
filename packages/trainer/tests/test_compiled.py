"""`torch.compile` of layers: the same steps as without it, or none of it where it cannot be had or computes something else."""

import dataclasses
import functools
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

from tailrace.trainer import TrainerConfig, TrainerConfigError, compiled
from tailrace.trainer.backend import check_backend
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.metrics import merge_metrics
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside
from tailrace.trainer.worker import TrainerWorker

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

pytestmark = pytest.mark.long
CONFIG = dataclasses.replace(trainer_processes.CONFIG, micro_batch_tokens=120)
COMPILED = dataclasses.replace(CONFIG, compile=True)
COUNTS = ("compiled_graphs", "graph_breaks", "recompiles")
TRACED = "aot_eager"
"""Traces and differentiates as torch's own backend does, and computes the graphs without compiling them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = {"hidden": 16, "layers": 3, "heads": 2, "head_dim": 8, "mlp": 48}
    return build_model(tmp_path_factory.mktemp("compiled") / "model", vocab_size=31, **sizes)


@pytest.fixture
def traced(monkeypatch):
    """Layers are traced only, and nothing is attempted before."""
    monkeypatch.setattr(compiled, "BACKEND", TRACED)
    monkeypatch.setattr(compiled, "attempt", lambda *_: "")


def train(rank, world_size, model, config, by_layers, backend, rendezvous, out: Path):
    """Two steps, a checkpoint, a third; then from the checkpoint the third one again. Rank 0 writes what it saw."""
    fsdp2: Any = import_module("tailrace.trainer.fsdp2")
    if by_layers:
        fsdp2.SMALL_MODEL_PARAMETERS = 0
    compiled.BACKEND = backend
    if backend == TRACED:
        compiled.attempt = lambda *_: ""
    torch._dynamo.reset()
    for counts in (FRAME_COMPILE_COUNTER, counters):  # of tests before
        counts.clear()
    batches = [trainer_processes.batch(seed) for seed in range(3)]
    with TrainerWorker(model, config, rank=rank, world_size=world_size, rendezvous=rendezvous) as worker:
        metrics = [worker.step([batch]) for batch in batches[:2]]
        worker.save(out.with_suffix(""), 7).result(60)
        metrics.append(worker.step([batches[2]]))
        weights = {name: tensor.clone() for name, tensor in worker.weights()}
        worker.load(out.with_suffix(""))
        worker.step([batches[2]])
        for name, tensor in worker.weights():
            assert torch.equal(tensor, weights[name]), name
    assert [one.get("compiled") for one in metrics] == [1.0 if config.compile else None] * 3
    if config.compile:
        told = [{name: one[name] for name in COUNTS} for one in metrics]
        assert 0 < told[0]["compiled_graphs"] < 20, "layers of one kind share the code"
        # packed attention is left to Python; all else of a layer is one graph
        assert (told[0]["graph_breaks"] > 0) == config.packing
        assert told[2] == told[1], f"other lengths do not take the same code: {told}"
        assert told[1]["recompiles"] - told[0]["recompiles"] <= (config.loss == "ppo"), told
    figures = {
        f"{number} {name}": torch.tensor(value, dtype=torch.float64)
        for number, one in enumerate(metrics)
        for name, value in one.items()
        if not name.endswith("_s") and name not in COUNTS and name != "compiled"
    }
    if rank == 0:
        save_file(weights | figures, str(out))


CASES: dict[str, tuple[dict[str, Any], int, bool]] = {
    "packed": ({}, 1, False),
    "padded": ({"packing": False}, 1, False),
    "two ranks by layers, computed again": ({"activation_checkpointing": "on"}, 2, True),
    "critic": ({"loss": "ppo"}, 1, False),
    "adapter": ({"adapter": AdapterConfig(rank=3)}, 1, False),
}
DEEP = [pytest.mark.deep, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(pytest.param(name, TRACED, marks=DEEP) for name in CASES),
        pytest.param("packed", "inductor", marks=DEEP),
    ],
)
def test_steps_are_those_without_it_and_a_resumed_one_is_bit_for_bit(model, name, backend, tmp_path, monkeypatch):
    changes, ranks, by_layers = CASES[name]
    if "adapter" in changes:
        pytest.importorskip("peft", reason="needs tailrace-trainer[adapters]")
    for kind, config in (("plain", CONFIG), ("compiled", COMPILED)):
        config = dataclasses.replace(config, **changes, timeout_s=600.0)
        out = tmp_path / f"{kind}.safetensors"
        arguments = (model, config, by_layers, backend, f"file://{tmp_path}/meet {kind}", out)
        if ranks == 1 and backend == TRACED:
            for attribute in ("BACKEND", "attempt"):  # which are set back
                monkeypatch.setattr(compiled, attribute, getattr(compiled, attribute))
            train(0, 1, *arguments[:-2], None, out)
        else:
            trainer_processes.run_all(train, ranks, *arguments, timeout_s=800)
    found, expected = (load_file(tmp_path / f"{kind}.safetensors") for kind in ("compiled", "plain"))
    assert found.keys() == expected.keys()
    for tensor_name, tensor in expected.items():
        message = functools.partial("{}: {}".format, tensor_name)
        torch.testing.assert_close(found[tensor_name], tensor, msg=message, atol=1e-4, rtol=1e-3)


def steps(model, config):
    """A step, the weights after it, and how many layers are compiled."""
    with TrainerWorker(model, config) as worker:
        metrics = worker.step([trainer_processes.batch(1)])
        layers = [layer for layer in inside(worker).module.modules() if "forward" in layer.__dict__]
        return metrics, {name: tensor.clone() for name, tensor in worker.weights()}, len(layers)


@pytest.mark.deep
def test_a_step_in_bfloat16_has_the_loss_and_the_gradient_of_the_plain_one(model, traced):
    """Weights are not compared: AdamW's first steps have the sign of gradients that rounding turns."""
    narrow = {"dtype": "bfloat16"}
    found, _, layers = steps(model, dataclasses.replace(COMPILED, **narrow))
    expected, _, none = steps(model, dataclasses.replace(CONFIG, **narrow))
    assert (found["compiled"], layers, none) == (1.0, 3, 0)
    for name in ("loss", "grad_norm", "ratio_mean"):
        assert found[name] == pytest.approx(expected[name], rel=0.05, abs=0.01), name


@pytest.mark.parametrize("wrong", ["values", "gradients"])
def test_what_computes_something_else_is_switched_off_and_said(model, monkeypatch, caplog, traced, wrong):
    def compile_(forward, **_):
        def run(*args, **kwargs):
            found = forward(*args, **kwargs)
            # the same values in the second case, whose gradient is 1 % more
            return found * 1.01 if wrong == "values" else found + 0.01 * (found - found.detach())

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    metrics, weights, layers = steps(model, COMPILED)
    assert metrics["compiled"] == 0.0
    assert layers == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"found compile = true with {model}: of the policy what it computes differs by up to ")
    assert line.endswith("of its norm, expected at most 0.0001; its layers are not compiled")
    monkeypatch.undo()
    for name, tensor in steps(model, CONFIG)[1].items():
        assert torch.equal(weights[name], tensor), name


def test_layers_that_do_not_compile_after_all_are_one_line(model, monkeypatch, traced):
    def compile_(forward, **_):
        def run(*_, **__):
            raise TorchDynamoException("first line\nsecond line")

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    with pytest.raises(
        TrainerConfigError, match=r"does not take \(TorchDynamoException: first line\), expected compile"
    ):
        steps(model, COMPILED)


def test_an_attempt_that_fails_leaves_the_layers_as_they_are_and_is_said(model, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    metrics, _, layers = steps(model, COMPILED)
    assert (metrics["compiled"], layers) == (0.0, 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"found compile = true with {model}: found no C++ compiler (no-such-compiler), which torch.compile needs on a CPU; "
        "its layers are not compiled"
    )


@pytest.mark.deep  # whole runs that compile are deep, too
def test_an_attempt_is_a_process(model, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", TRACED)
    assert compiled.attempt(model, "float32", "cpu", 100.0) == ""


def test_an_attempt_has_a_deadline(model, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", TRACED)
    assert compiled.attempt(model, "float32", "cpu", 0.1) == "a layer did not compile in 0.1 s"


@pytest.mark.deep
def test_an_attempt_that_breaks_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "BACKEND", TRACED)
    says = compiled.attempt(tmp_path, "float32", "cpu", 100.0)
    assert says.startswith("a layer does not compile: ")
    assert "\n" not in says


@pytest.mark.parametrize("backend", ["deepspeed", "megatron"])
@pytest.mark.cases(1)
def test_other_backends_refuse_it_by_name(backend):
    pytest.importorskip({"megatron": "megatron.core"}.get(backend, backend))
    says = f"found compile = True with backend {backend}, expected False, or backend fsdp2"
    with pytest.raises(TrainerConfigError, match=says):
        check_backend(backend, TrainerConfig(compile=True), 1)


def test_counts_of_a_batch_with_several_steps_are_the_last():
    first, second = ({"compiled_graphs": 3.0, "recompiles": count, "trajectories": 1.0} for count in (1.0, 2.0))
    assert merge_metrics([first, second]) == {"compiled_graphs": 3.0, "recompiles": 2.0, "trajectories": 2.0}


def test_compiled_code_is_taken_from_no_directory_to_which_others_may_write(tmp_path, monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compiled.compile_layers([], on=True)
    place = Path(default_cache_dir())
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    compiled.compile_layers([], on=True)
    place.chmod(0o777)
    with pytest.raises(TrainerConfigError, match="to which other users may write"):
        compiled.compile_layers([], on=True)
    place.rename(tmp_path / "theirs").chmod(0o700)
    place.symlink_to(tmp_path / "theirs")
    with pytest.raises(TrainerConfigError, match="to which other users may write"):
        compiled.compile_layers([], on=True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place))
    compiled.compile_layers([], on=True)
