"""Two real processes over gloo compute what one does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tailrace.trainer import load_weights_file
from tailrace.trainer.checkpoint_files import read_manifest, verify
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.small import build_model
from tailrace.trainer.worker import TrainerWorker


def run_ranks(model, world_size, out, rendezvous):
    out.mkdir()
    script = Path(__file__).with_name("two_ranks.py")
    ranks = [
        subprocess.Popen([sys.executable, script, model, str(rank), str(world_size), rendezvous, out])
        for rank in range(world_size)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0] * world_size
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return load_file(out / "result.safetensors")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks")
    # 31 tokens and a head dimension of 3 rows do not divide evenly between two ranks.
    model = build_model(root / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    return {n: (run_ranks(model, n, root / str(n), f"file://{root}/meet-{n}"), root / str(n)) for n in (1, 2)}


def test_gradients_metrics_and_weights_are_those_of_one_process(results):
    one, two = results[1][0], results[2][0]
    assert one.keys() == two.keys()
    gradients = [key for key in one if key.startswith("gradient/")]
    assert gradients
    assert sum(float(one[key].abs().sum()) for key in gradients) > 0.1
    # float32 sums in another order: 1e-6 absolute on gradients of order 0.01 to 1, 1e-4 relative.
    for key in one:
        absolute = 1e-6 if key.startswith("gradient/") else 1e-4  # Adam divides by the gradient: small ones lose digits
        torch.testing.assert_close(two[key], one[key], atol=absolute, rtol=1e-4, msg=key)


def test_the_checkpoint_of_two_ranks_is_complete_and_loads_in_one(results):
    directory = results[2][1] / "checkpoint"
    manifest = read_manifest(directory)
    verify(directory, manifest)
    assert (manifest["version"], manifest["world_size"], manifest["steps"]) == (7, 2, 4)
    assert {"state-00000-of-00002.safetensors", "state-00001-of-00002.safetensors"} <= manifest["files"].keys()
    other = {}
    with TrainerWorker(directory, TrainerConfig(device="cpu")) as worker:
        assert worker.load(directory) == 7
        for name, tensor in worker.weights():
            other[name] = tensor.clone()
        moments = [worker._state.optimizer.state[shard]["exp_avg_sq"] for shard in worker._state.shards.values()]
        assert all(m.shape == s.shape for m, s in zip(moments, worker._state.shards.values(), strict=True))
        assert sum(float(moment.sum()) for moment in moments) > 0
    for name, tensor in load_weights_file(directory):
        torch.testing.assert_close(tensor, other.pop(name), atol=0, rtol=0)
    assert not other


def test_a_checkpoint_of_one_rank_goes_on_in_two(results):
    script = (
        "import sys, torch; from pathlib import Path; sys.path.insert(0, sys.argv[5]); import two_ranks as t\n"
        "from tailrace.trainer.worker import TrainerWorker\n"
        "directory, rank, meet, out = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]\n"
        "w = TrainerWorker(directory, t.CONFIG, rank=rank, world_size=2, rendezvous=meet)\n"
        "assert w.load(directory) == 7\n"
        "w.step([t.batch(4)])\n"
        "ws = dict(w.weights())\n"
        "if rank == 0: t.save_file({k: v.clone() for k, v in ws.items()}, out)\n"
        "w.close()\n"
    )
    expected, root = results[1]
    out = root / "resumed.safetensors"
    here = str(Path(__file__).parent)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, root / "checkpoint", str(rank), f"file://{root}/meet-again", out, here]
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for name, tensor in load_file(out).items():
        torch.testing.assert_close(tensor, expected[f"weight/{name}"], atol=1e-5, rtol=1e-4, msg=name)
