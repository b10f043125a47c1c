"""A run's model as a directory that plain transformers loads, with the trainer's log-probabilities; and what is refused."""

import json
import shutil
from collections import namedtuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tailrace.cli.main import main
from tailrace.contracts import FinishReason, PartialDelta
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.model_export import export
from tailrace.trainer import AdapterConfig, TrainerConfig
from tailrace.trainer.checkpoint_export import SHARD_BYTES
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.microbatch import to_tensors
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside, make_experiences
from tailrace.trainer.tokenizer import train_tokenizer
from tailrace.trainer.worker import TrainerWorker
from tailrace.trajstore import Assignment, TrajectoryStore

TEXTS = [f"{a} + {b} = {a + b}" for a in range(12) for b in range(12)]


def rows_of(vocabulary):
    """Token ids of a prompt and a response, and the same as the trainer takes them."""
    ids = torch.randint(0, vocabulary, (1, 17), generator=torch.Generator().manual_seed(5))
    prompt, response = tuple(ids[0, :5].tolist()), tuple(ids[0, 5:].tolist())
    row = PackedRow(prompt, (TrainingSample(prompt, response, 1.0),))
    return ids, to_tensors([row], torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two versions with checkpoints, and the log-probabilities of the second under the trainer."""
    root = tmp_path_factory.mktemp("runs") / "sums"
    config = RunConfig.model_validate(
        {"task": {"train": "/somebody/s/home/prompts.jsonl", "verifier": "exact"}, "seed": 7}
    )
    directory = RunDirectory.create(root, config.model_dump(mode="json"))
    vocabulary = train_tokenizer(TEXTS, directory.model, vocab_size=300)
    build_model(directory.model, vocab_size=vocabulary, hidden=32, layers=2, seed=3)
    ids, row = rows_of(vocabulary)
    with TrainerWorker(directory.model, TrainerConfig(lr=0.01, device="cpu", threads=1)) as worker:
        for version in (1, 2):
            worker.step([make_experiences(2, 3, vocab_size=vocabulary, seed=version)])
            worker.save(directory.checkpoints / str(version), version).result(60)
        with torch.no_grad():
            expected, _ = inside(worker).module(row, 1.0, False)
    rows = [
        {"kind": "evaluation", "version": version, "mode": mode, "reward": value, "accuracy": value, "problems": 9}
        for version, mode, value in (
            (0, "sampled", 0.25),
            (1, "sampled", 0.5),
            (2, "sampled", 0.75),
            (0, "greedy", 0.125),
        )
    ]
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "eval')  # being written
    directory.unlock()
    return root, ids, expected


def logprobs(model, ids):
    """Log-probabilities of the response, whose prompt has 5 tokens."""
    with torch.no_grad():
        table = model(ids).logits.log_softmax(-1)[0]
    return torch.stack([table[place - 1, ids[0, place]] for place in range(5, ids.shape[1])])


def test_plain_transformers_has_the_trainers_log_probabilities(trained, tmp_path, capsys):
    root, ids, expected = trained
    assert main(["export", str(root), "--out", str(tmp_path / "model"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == 2
    assert told["files"] == {path.name: path.stat().st_size for path in (tmp_path / "model").iterdir()}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert told["parameters"] == model.num_parameters()
    assert (logprobs(model, ids) - expected).abs().max() < 2e-6
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.decode(tokenizer("3 + 4 = 7")["input_ids"]) == "3 + 4 = 7"
    drawn = GenerationConfig.from_pretrained(tmp_path / "model")
    assert drawn.do_sample
    assert drawn.top_k == 0
    assert drawn.max_new_tokens == 192
    assert drawn.eos_token_id == model.config.eos_token_id


def test_the_files_are_those_that_loaders_look_for_and_no_state(trained, tmp_path):
    root, ids, expected = trained
    seen = []
    found = export(
        RunDirectory.open(root), tmp_path / "model", shard_bytes=9_000, progress=lambda *now: seen.append(now)
    )
    files = sorted(found.files)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 2
    assert shards == [name for name in files if name.endswith(".safetensors")]
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert not [name for name in files if name.startswith(("state", "trainer"))]
    assert seen[-1] == (index["metadata"]["total_size"],) * 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tied = {"lm_head.weight"}
    assert set(index["weight_map"]) == set(model.state_dict()) - tied
    assert (logprobs(model, ids) - expected).abs().max() < 2e-6
    assert (tmp_path / "model" / shards[-1]).stat().st_size < 9_000 + 1_000  # tensors, and a header


def test_the_card_tells_configuration_and_figures_but_no_place(trained, tmp_path):
    root, _, _ = trained
    assert main(["export", str(root), "--version", "1", "--out", str(tmp_path / "model")]) == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for line in ("# Version 1 of the run sums", "| sampled | 0 | 0.250 | 0.250 | 9 |", "| sampled | 1 | 0.500 | 0.500 | 9 |",
                 "| greedy | 0 | 0.125 | 0.125 | 9 |", '  "verifier": "exact"', '"seed": 7'):  # fmt: skip
        assert line in card, line
    assert "| sampled | 2 |" not in card
    assert "/somebody" not in card
    assert "prompts.jsonl" in card


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(trained, tmp_path, capsys, monkeypatch):
    root, _, _ = trained

    def refused(*arguments):
        before = sorted(tmp_path.rglob("*"))
        assert main(["export", *map(str, arguments)]) == 2
        assert sorted(tmp_path.rglob("*")) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "no such run directory" in refused(tmp_path / "none", "--out", tmp_path / "a")
    assert "expected one of: 1, 2" in refused(root, "--version", 5, "--out", tmp_path / "a")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("mine")
    assert "found files, expected a new or an empty directory" in refused(root, "--out", tmp_path / "full")
    assert "found a file" in refused(root, "--out", tmp_path / "full" / "kept")
    bare = tmp_path / "bare"
    RunDirectory.create(bare, RunConfig().model_dump(mode="json")).unlock()
    assert "found no checkpoint" in refused(bare, "--out", tmp_path / "a")
    broken = tmp_path / "broken"
    shutil.copytree(root, broken)
    weights = broken / "checkpoints" / "2" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    assert "damaged, use another" in refused(broken, "--out", tmp_path / "a")
    assert main(["export", str(broken), "--version", "1", "--out", str(tmp_path / "older")]) == 0
    capsys.readouterr()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("tailrace.pipeline.run.model_export.shutil.disk_usage", lambda _: usage(10, 10, 1_000))
    assert "GB free, expected at least" in refused(root, "--out", tmp_path / "a")


def test_what_an_export_that_was_killed_left_is_replaced(trained, tmp_path):
    root, _, _ = trained
    (tmp_path / ".model.partial").mkdir()
    (tmp_path / ".model.partial" / "model-00001-of-00009.safetensors").write_text("half")
    (tmp_path / "model").mkdir()  # empty
    assert main(["export", str(root), "--out", str(tmp_path / "model")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert not list((tmp_path / "model").glob("*-of-00009*"))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run with an adapter, the log-probabilities of its version 2 under the trainer, and what they are of."""
    pytest.importorskip("peft")
    root = tmp_path_factory.mktemp("adapted") / "run"
    directory = RunDirectory.create(
        root, RunConfig.model_validate({"trainer": {"adapter": {"rank": 4}}}).model_dump(mode="json")
    )
    vocabulary = train_tokenizer(TEXTS, directory.model, vocab_size=300)
    build_model(directory.model, vocab_size=vocabulary, hidden=32, layers=2, seed=3)
    directory.prepared.write_text(json.dumps({"model": "model"}))
    ids, row = rows_of(vocabulary)
    config = TrainerConfig(lr=0.02, device="cpu", threads=1, adapter=AdapterConfig(rank=4))
    with TrainerWorker(directory.model, config) as worker:
        for version in (1, 2):
            worker.step([make_experiences(2, 3, vocab_size=vocabulary, seed=version)])
            worker.save(directory.checkpoints / str(version), version).result(60)
        with torch.no_grad():
            expected, _ = inside(worker).module(row, 1.0, False)
    directory.unlock()
    return root, ids, expected


@pytest.mark.parametrize("shard_bytes", [SHARD_BYTES, 20_000])
def test_an_adapter_is_merged_as_peft_merges_it(adapted, tmp_path, shard_bytes):
    import peft

    root, ids, expected = adapted
    found = export(RunDirectory.open(root), tmp_path / "whole", merge=True, shard_bytes=shard_bytes)
    assert not found.adapter
    assert "adapter_config.json" not in found.files
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert (logprobs(model, ids) - expected).abs().max() < 2e-6
    base = AutoModelForCausalLM.from_pretrained(root / "model")
    merged = peft.PeftModel.from_pretrained(base, root / "checkpoints" / "2").merge_and_unload().state_dict()
    assert max(float((merged[name] - tensor).abs().max()) for name, tensor in model.state_dict().items()) <= 2e-6


def test_without_merging_it_is_a_directory_for_peft(adapted, tmp_path, capsys):
    import peft

    root, ids, expected = adapted
    assert main(["export", str(root), "--out", str(tmp_path / "adapter")]) == 0
    assert "of an adapter; --merge writes the whole model" in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "README.md"} <= files
    assert not [name for name in files if name.startswith("model") or name == "config.json"]
    base = AutoModelForCausalLM.from_pretrained(root / "model")
    before = logprobs(base, ids)
    assert (logprobs(peft.PeftModel.from_pretrained(base, tmp_path / "adapter"), ids) - expected).abs().max() < 2e-6
    assert (before - expected).abs().max() > 1e-3
    assert (tmp_path / "adapter" / "README.md").read_text().startswith("---\nlibrary_name: peft\n")


def test_what_cannot_be_merged_is_one_line(adapted, trained, tmp_path, capsys):
    (whole, _, _), (root, _, _) = trained, adapted
    (whole / "task").mkdir(exist_ok=True)
    (whole / "task" / "prepared.json").write_text(json.dumps({"model": "model"}))
    assert main(["export", str(whole), "--merge", "--out", str(tmp_path / "a")]) == 2
    assert "found whole weights, expected an adapter to merge" in capsys.readouterr().err
    moved = tmp_path / "moved"
    shutil.copytree(root, moved)
    build_model(moved / "model", vocab_size=300, hidden=32, layers=2, seed=4)
    assert main(["export", str(moved), "--merge", "--out", str(tmp_path / "a")]) == 2
    assert "expected the adapter's base" in capsys.readouterr().err
    shutil.rmtree(moved / "model")
    assert main(["export", str(moved), "--merge", "--out", str(tmp_path / "a")]) == 2
    assert "found no such directory, expected the model that the run began with" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_trajectories_are_written_as_parquet(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    directory = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    directory.unlock()
    command = ["export", str(directory.root), "--trajectories", "--out"]
    assert main([*command, str(tmp_path / "all.parquet")]) == 2
    assert "no version of the run was settled yet" in capsys.readouterr().err
    with TrajectoryStore() as store:
        for name, reward in (("a", 0.0), ("b", 1.0)):
            store.begin("r0", 3, [Assignment(name, 7, (1, 2))])
            store.append("r0", [PartialDelta(name, 0, 3, (4, 5), (-0.5, -0.25), FinishReason.STOP)])
            store.set_reward(name, reward)
        store.consume(["a", "b"], 4)
        store.export(directory.trained)
    assert main([*command, str(tmp_path / "deep" / "all.parquet"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trajectories"], told["bytes"]) == (2, (tmp_path / "deep" / "all.parquet").stat().st_size)
    rows = parquet.read_table(tmp_path / "deep" / "all.parquet").to_pylist()
    assert [(row["trajectory"], row["tokens"], row["reward"]) for row in rows] == [
        ("a", [4, 5], 0.0),
        ("b", [4, 5], 1.0),
    ]
    for out, more, says in (
        ("deep/all.parquet", [], "found one that is there already"),
        ("all.json", [], "expected a new file whose name ends with .parquet"),
        ("new.parquet", ["--merge"], "which are the model's"),
    ):
        assert main([*command, str(tmp_path / out), *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "run"]
