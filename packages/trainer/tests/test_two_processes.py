"""Two real processes over gloo compute what one does."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tailrace.trainer import load_weights_file
from tailrace.trainer.checkpoint_files import verify
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.small import build_model
from tailrace.trainer.worker import TrainerWorker

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks")
    # Sizes that do not divide evenly between two ranks.
    model = build_model(root / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    for name in ("1", "2", "packed"):
        (root / name).mkdir()
    trainer_processes.train(0, 1, model, None, root / "1")
    trainer_processes.run_all(trainer_processes.train, 2, model, f"file://{root}/meet", root / "2")
    trainer_processes.run_all(
        trainer_processes.train, 2, model, f"file://{root}/meet-packed", root / "packed", trainer_processes.CONFIG, True
    )
    return root


def test_gradients_metrics_and_weights_are_those_of_one_process(runs):
    one, two = (load_file(runs / n / "result.safetensors") for n in "12")
    assert one.keys() == two.keys()
    assert sum(float(value.abs().sum()) for key, value in one.items() if key.startswith("gradient/")) > 0.1
    # float32 sums in another order: 1e-6 on gradients of order 0.01 to 1. Weights and metrics of later steps: 1e-4, since
    # Adam divides by the gradient, and small gradients lose digits.
    for key in one:
        absolute = 1e-6 if key.startswith("gradient/") else 1e-4
        torch.testing.assert_close(two[key], one[key], atol=absolute, rtol=1e-4, msg=key)


def test_ranks_that_fetch_their_own_rows_alone_compute_the_same_bits(runs):
    whole, packed = (load_file(runs / name / "result.safetensors") for name in ("2", "packed"))
    assert whole.keys() == packed.keys()
    for key in whole:
        assert torch.equal(whole[key], packed[key]), key
    first, second = (json.loads((runs / "packed" / f"fetched-{rank}.json").read_text()) for rank in (0, 1))
    for number, names in enumerate(zip(first, second, strict=True)):
        both = [name for part in names for name in part]
        assert len(set(both)) == len(both) == (24, 1, 12)[number]  # each by one rank, once
        assert all(names) == (number != 1)


def test_the_checkpoint_of_two_ranks_is_complete_and_loads_in_one(runs):
    directory = runs / "2" / "checkpoint"
    manifest = verify(directory)
    assert (manifest["version"], manifest["world_size"], manifest["steps"]) == (7, 2, 4)
    assert {"state-00000-of-00002.safetensors", "state-00001-of-00002.safetensors"} <= manifest["files"].keys()
    with TrainerWorker(directory, TrainerConfig(device="cpu")) as worker:
        assert worker.load(directory) == 7
        found = {name: tensor.clone() for name, tensor in worker.weights()}
    saved = dict(load_weights_file(directory))
    assert found.keys() == saved.keys()
    for name in saved:
        assert torch.equal(found[name], saved[name]), name


@pytest.mark.parametrize(("saved_by", "resumed_by"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_ranks(runs, saved_by, resumed_by):
    directory, out = runs / str(saved_by) / "checkpoint", runs / f"resumed-{resumed_by}.safetensors"
    if resumed_by == 1:
        trainer_processes.resume(0, 1, directory, None, out)
    else:
        trainer_processes.run_all(trainer_processes.resume, 2, directory, f"file://{runs}/meet-again", out)
    expected = load_file(runs / str(saved_by) / "result.safetensors")
    for name, tensor in load_file(out).items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-4, msg=name)
