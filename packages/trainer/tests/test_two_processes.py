"""Two real processes over gloo compute what one does."""

import dataclasses
import json
import re
import resource
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tailrace.trainer import CheckpointError, load_weights_file
from tailrace.trainer.checkpoint_files import verify
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.small_model import build_model
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


def saves_and_reads(rank, world_size, model, rendezvous, out):
    """Save both kinds, load the full one, and try it with the second rank's file damaged; write down what was read and said."""
    with trainer_processes.build(model, trainer_processes.CONFIG, rank, world_size, rendezvous) as worker:
        worker.step([trainer_processes.batch(1)])
        worker.save(out / "full", 1).result(60)
        worker.step([trainer_processes.batch(2)])
        worker.save(out / "weights", 2, full=False).result(60)
        expected = {name: tensor.clone() for name, tensor in worker.weights()}
        if rank == 0:
            trainer_processes.save_file(expected, str(out / "expected.safetensors"))
        assert worker.load(out / "full") == 1
        read = worker._checkpoints.read_bytes
        state = {name: tensor.clone() for name, tensor in worker._model.state()}
        torch.distributed.barrier()
        if rank == 0:
            content = bytearray((out / "full" / SECOND).read_bytes())
            content[-100] ^= 1
            (out / "full" / SECOND).write_bytes(content)
        torch.distributed.barrier()
        with pytest.raises(CheckpointError) as raised:
            worker.load(out / "full")
        for name, tensor in worker._model.state():
            assert torch.equal(tensor, state[name]), name  # of no rank anything was changed
        (out / f"rank-{rank}.json").write_text(json.dumps({"read": read, "said": str(raised.value)}))


def cannot_write_on_the_second(rank, world_size, model, rendezvous, out):
    """A save in which the second rank may not write more than 4 KiB to a file; write down what each is told, and the next."""
    config = dataclasses.replace(trainer_processes.CONFIG, timeout_s=600)
    with trainer_processes.build(model, config, rank, world_size, rendezvous) as worker:
        worker.step([trainer_processes.batch(1)])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
        with pytest.raises(CheckpointError) as raised:
            worker.save(out / "full", 1).result(60)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        (out / f"rank-{rank}.txt").write_text(str(raised.value))
        worker.save(out / "full", 1).result(60)
        assert worker.load(out / "full") == 1


def test_the_first_rank_says_at_once_why_another_cannot_write(tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=64, layers=2, heads=2, head_dim=16, mlp=160)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    trainer_processes.run_all(cannot_write_on_the_second, 2, model, f"file://{tmp_path}/meet", tmp_path)
    first, second = ((tmp_path / f"rank-{rank}.txt").read_text() for rank in (0, 1))
    assert re.search("full: the checkpoint could not be written: .*File too large", second)
    assert re.search("rank 1 cannot write: .*File too large", first)


SECOND = "state-00001-of-00002.safetensors"


def test_each_rank_reads_its_own_part_and_all_hear_of_a_damaged_file(tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=64, layers=2, heads=2, head_dim=16, mlp=160)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    trainer_processes.run_all(saves_and_reads, 2, model, f"file://{tmp_path}/meet", tmp_path)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    for rank, one in enumerate(found):
        share = (tmp_path / "full" / f"state-{rank:05d}-of-00002.safetensors").stat().st_size
        assert share <= one["read"] <= 1.1 * share
        assert re.search(
            f"full/{SECOND}: found xxh3 .* expected .*; it is damaged, use another checkpoint", one["said"]
        )
    weights = load_file(tmp_path / "expected.safetensors")
    saved = dict(load_weights_file(tmp_path / "weights"))
    assert saved.keys() == weights.keys()
    for name in saved:
        assert torch.equal(saved[name], weights[name]), name
    files = verify(tmp_path / "weights")["files"].keys()
    assert files == {path.name for path in (tmp_path / "weights").iterdir()} - {"trainer.json"}
    assert {name for name in files if name.endswith(".safetensors")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
