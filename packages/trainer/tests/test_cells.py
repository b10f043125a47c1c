"""Cells: groups of ranks that compute gradients without each other. Real processes over gloo train what one does."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tailrace.trainer.checkpoint_files import verify
from tailrace.trainer.small_model import build_model

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

# ranks, cells, groups that each cell adds of six; the rest is left for the step
CASES = {
    "1": (1, 1, None),
    "2 even": (2, 2, (2, 2)),
    "2 packed": (2, 2, (2, 2)),
    "2 idle": (2, 2, (6, 0)),
    "2 plain": (2, 2, None),
    "4": (4, 2, (1, 4)),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("cells")
    # Sizes that do not divide evenly between two ranks.
    build_model(root / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    return root


@pytest.fixture(scope="module")
def runs(root):
    found = {}
    for name, (ranks, cells, shares) in CASES.items():
        out = root / name
        out.mkdir()
        meet = f"file://{out}/meet" if ranks > 1 else None
        trainer_processes.run_all(
            trainer_processes.stream,
            ranks,
            cells,
            shares,
            root / "model",
            meet,
            out,
            trainer_processes.CONFIG,
            "packed" in name,
        )
        found[name] = load_file(out / "result.safetensors")
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name != "1"])
def test_they_train_what_one_process_does(runs, name):
    one, cells = runs["1"], runs[name]
    assert one.keys() == cells.keys()
    assert "metrics/0 reference_kl" in one
    # float32 sums in another order; weights and later metrics more, since Adam divides by the gradient.
    for key in one:
        absolute = 1e-6 if key.startswith("gradient/0") else 1e-4
        torch.testing.assert_close(cells[key], one[key], atol=absolute, rtol=1e-4, msg=key)


def test_cells_that_fetch_their_own_rows_alone_compute_the_same_bits(runs):
    for key, value in runs["2 even"].items():
        assert torch.equal(runs["2 packed"][key], value), key


@pytest.mark.parametrize(
    ("ranks", "cells", "saved_by"),
    [(1, 1, "4"), (2, 1, "2 even"), (4, 2, "2 idle"), pytest.param(2, 2, "4", marks=pytest.mark.deep)],
)
@pytest.mark.cases(1)
def test_a_checkpoint_of_cells_loads_into_any_other_number(runs, root, ranks, cells, saved_by):
    directory, out = root / saved_by / "v1", root / f"resumed-{ranks}-{cells}.safetensors"
    manifest = verify(directory)
    assert (manifest["cells"], manifest["version"], manifest["steps"]) == (2, 1, 2)
    meet = f"file://{root}/meet-{ranks}-{cells}-{saved_by[0]}" if ranks > 1 else None
    trainer_processes.run_all(trainer_processes.resume_in_cells, ranks, cells, directory, meet, out)
    for name, tensor in load_file(out).items():
        torch.testing.assert_close(tensor, runs[saved_by][name], atol=1e-5, rtol=1e-4, msg=name)


def test_a_group_of_two_cells_is_found_by_every_rank(root, tmp_path):
    trainer_processes.run_all(trainer_processes.twice, 2, root / "model", f"file://{tmp_path}/meet", tmp_path)
    for rank in range(2):
        for name in ("rank", "rest"):
            assert (tmp_path / f"{name}{rank}").read_text().startswith("found group 0 twice in a batch")
