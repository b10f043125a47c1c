import dataclasses
import json
import os
import resource
import shutil
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.trainer import (
    CheckpointError,
    CheckpointTimeoutError,
    TrainerConfig,
    checkpoint,
    checkpoints,
    load_weights_file,
    tensor_file,
)
from tailrace.trainer.checkpoint_files import WriteProgress, complete, verify
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import make_experiences
from tailrace.trainer.worker import TrainerWorker

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

VOCAB = 31
CONFIG = TrainerConfig(lr=0.01, device="cpu", warmup_steps=5)


def small(directory, **changes):
    return build_model(directory, vocab_size=VOCAB, **{"hidden": 16, "layers": 1, "head_dim": 8, "mlp": 32} | changes)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = small(tmp_path_factory.mktemp("model"))
    (path / "tokenizer.json").write_text("{}")
    return path


def batch(seed):
    return make_experiences(2, 3, vocab_size=VOCAB, seed=seed)


def state_of(worker):
    found = {name: tensor.clone() for name, tensor in worker.weights()}
    for name, shard in worker._model.local.items():
        for moment, value in worker._model.optimizer.state[shard].items():
            found[f"{moment} {name}"] = value.clone()
    return found


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


def held_by(worker):
    """The parameters as the optimizer has them."""
    return {name: shard.clone() for name, shard in worker._model.local.items()}


def test_newer_weights_in_fewer_bits_change_only_what_they_show_as_changed(model_path, tmp_path):
    """In bfloat16, each parameter is the published one, or the checkpoint's float32 one that rounds to it."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16", lr=1e-5, warmup_steps=0)
    with TrainerWorker(model_path, config) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "v1", 1).result(60)
        saved = held_by(worker)
        moments = {name: value for name, value in state_of(worker).items() if name.startswith("exp_avg")}
        for seed in (2, 3, 4):
            worker.step([batch(seed)])
        true = held_by(worker)
        published = {name: tensor.clone() for name, tensor in worker.weights()}
    with TrainerWorker(model_path, config) as worker:
        worker.load(tmp_path / "v1", published)
        assert_same_bits(dict(worker.weights()), published)
        assert_same_bits({name: value for name, value in state_of(worker).items() if name in moments}, moments)
        assert worker.steps == 1
        kept, changed = 0, 0
        for name, found in held_by(worker).items():
            same = saved[name].to(torch.bfloat16) == published[name]
            assert torch.equal(found[same], saved[name][same])
            assert torch.equal(found[~same], published[name][~same].float())
            kept, changed = kept + int(same.sum()), changed + int((~same).sum())
        assert kept
        assert changed
        error = sum(float((found - true[name]).abs().sum()) for name, found in held_by(worker).items())
        rounded = sum(float((published[name].float() - true[name]).abs().sum()) for name in true)
        assert error < rounded  # than to round them all


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(model_path, tmp_path):
    with TrainerWorker(model_path, CONFIG) as worker:
        worker.step([batch(1), batch(2)])
        saved = worker.save(tmp_path / "v3", 3)
        noise = torch.rand(3)
        last = worker.step([batch(3)])  # while the checkpoint is being written
        assert saved.result(60) == tmp_path / "v3"
        expected = state_of(worker)
    torch.manual_seed(99)
    with TrainerWorker(tmp_path / "v3", CONFIG) as worker:
        assert worker.load(tmp_path / "v3") == 3
        assert torch.equal(torch.rand(3), noise)
        again = worker.step([batch(3)])
        assert again["lr"] == last["lr"] == pytest.approx(0.006)
        assert again["loss"] == last["loss"]
        assert_same_bits(state_of(worker), expected)


def test_a_checkpoint_before_the_first_step_restores_too(model_path, tmp_path):
    with TrainerWorker(model_path, CONFIG) as worker:
        worker.save(tmp_path / "v0", 0).result(60)
        worker.step([batch(1)])
        expected = state_of(worker)
        assert worker.load(tmp_path / "v0") == 0
        assert worker.steps == 0
        worker.step([batch(1)])
        assert_same_bits(state_of(worker), expected)


def test_the_directory_is_a_model_and_the_weights_of_its_version(model_path, tmp_path):
    with TrainerWorker(model_path, dataclasses.replace(CONFIG, dtype="bfloat16")) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "v1", 1).result(60)
        expected = {name: tensor.clone() for name, tensor in worker.weights()}
    assert_same_bits(dict(load_weights_file(tmp_path / "v1")), expected)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "v1", dtype="auto")
    assert lm.dtype == torch.bfloat16
    assert_same_bits({name: p.data for name, p in lm.named_parameters()}, expected)
    assert (tmp_path / "v1" / "tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "v1" / "config.json").read_text())["dtype"] == "bfloat16"


def test_complete_checkpoints_are_listed_by_version_and_may_be_replaced(model_path, tmp_path):
    assert checkpoints(tmp_path) == {}
    with TrainerWorker(model_path, CONFIG) as worker:
        for version in (10, 9, 10):
            worker.step([batch(version)])
            worker.save(tmp_path / f"v{version}", version)
    assert list(checkpoints(tmp_path).items()) == [(9, tmp_path / "v9"), (10, tmp_path / "v10")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v10", "v9"]
    assert json.loads((tmp_path / "v10" / "trainer.json").read_text())["steps"] == 3


def test_two_checkpoints_may_be_under_way_and_a_third_waits_for_the_first(model_path, tmp_path, monkeypatch):
    """Each holds the state of the moment at which it was begun, and the memory of the first serves the third."""
    gates = {version: threading.Event() for version in (1, 2, 3)}

    def gated(partial, directory, manifest, written):
        assert gates[manifest["version"]].wait(60)
        complete(partial, directory, manifest, written)

    monkeypatch.setattr(checkpoint, "complete", gated)
    expected, saves = {}, {}
    with TrainerWorker(model_path, CONFIG) as worker:
        for version in (1, 2):
            worker.step([batch(version)])
            saves[version], expected[version] = worker.save(tmp_path / f"v{version}", version), state_of(worker)
        worker.step([batch(3)])
        expected[3] = state_of(worker)
        assert not any(save.done() for save in saves.values())
        third = threading.Thread(target=lambda: saves.update({3: worker.save(tmp_path / "v3", 3)}))
        third.start()
        third.join(0.3)
        assert third.is_alive()
        assert checkpoints(tmp_path) == {}
        gates[1].set()
        third.join(60)
        assert not third.is_alive()
        assert list(checkpoints(tmp_path)) == [1]
        worker.step([batch(4)])
        for version in (2, 3):
            gates[version].set()
            saves[version].result(60)
        for version, state in expected.items():
            assert worker.load(tmp_path / f"v{version}") == version
            assert_same_bits(state_of(worker), state)


def test_a_checkpoint_that_never_becomes_durable_is_told_at_the_deadline(model_path, tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(checkpoint, "complete", lambda *_: gate.wait(60))
    with TrainerWorker(model_path, dataclasses.replace(CONFIG, timeout_s=0.2)) as worker:
        saves = [worker.save(tmp_path / f"v{version}", version) for version in (1, 2)]
        for name in ("v3", "v1"):
            with pytest.raises(CheckpointTimeoutError, match=r"waited 0\.2 s for checkpoint-1 to become durable"):
                worker.save(tmp_path / name, 3)
        gate.set()
        for save in saves:  # closing waits no longer than the deadline
            save.result(60)


def test_one_that_is_closed_before_its_checkpoint_is_durable_says_so_and_leaves_its_group(
    model_path, tmp_path, monkeypatch
):
    gate = threading.Event()
    monkeypatch.setattr(checkpoint, "complete", lambda *_: gate.wait(60))
    worker = TrainerWorker(model_path, dataclasses.replace(CONFIG, timeout_s=0.2))
    saved = worker.save(tmp_path / "v1", 1)
    with pytest.raises(CheckpointTimeoutError, match="checkpoint-1 to become durable"):
        worker.close()
    assert not torch.distributed.is_initialized()
    gate.set()
    saved.result(60)


@pytest.mark.deep
def test_killed_while_saving_every_listed_checkpoint_is_whole(tmp_path, deep):
    model_path = small(tmp_path / "model", hidden=64, layers=2)
    for saves in (2, 3, 5, 6) if deep else (3, 6):
        root = tmp_path / f"run-{saves}"
        listen, tell = trainer_processes.CONTEXT.Pipe(duplex=False)
        process = trainer_processes.CONTEXT.Process(
            target=trainer_processes.save_for_ever, args=(model_path, root, tell)
        )
        process.start()
        try:
            for _ in range(saves):
                assert listen.poll(60)
                listen.recv()
        finally:
            process.kill()
            process.join()
        found = checkpoints(root)
        # Save n returns only after save n - 2 is durable, and is then put in place of save n - 3.
        assert max(found, default=0) >= saves - 2
        with TrainerWorker(model_path, CONFIG) as worker:
            for version, directory in found.items():
                assert worker.load(directory) == version


def test_damage_is_found_before_anything_is_restored(model_path, tmp_path):
    with TrainerWorker(model_path, CONFIG) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "v1", 1).result(60)
        expected = state_of(worker)
        victim = tmp_path / "v1" / "state-00000-of-00001.safetensors"
        whole = bytearray(victim.read_bytes())
        for damage in (bytes(whole[:-1]), bytes([*whole[:-9], whole[-9] ^ 1, *whole[-8:]])):
            victim.write_bytes(damage)
            with pytest.raises(CheckpointError, match="damaged, use another"):
                worker.load(tmp_path / "v1")
        victim.unlink()
        with pytest.raises(CheckpointError, match="found no state-00000"):
            worker.load(tmp_path / "v1")
        with pytest.raises(CheckpointError, match=r"found no trainer\.json"):
            worker.load(tmp_path / "v2")
        assert_same_bits(state_of(worker), expected)


def test_another_models_checkpoint_is_refused(model_path, tmp_path):
    with TrainerWorker(model_path, CONFIG) as worker:
        worker.save(tmp_path / "v1", 1).result(60)
    for change in ({"layers": 2}, {"mlp": 40}, {"hidden": 24}):
        other = small(tmp_path / f"other-{next(iter(change))}", **change)
        with TrainerWorker(other, CONFIG) as worker, pytest.raises(CheckpointError, match="another model"):
            worker.load(tmp_path / "v1")


def test_a_failing_write_reaches_whoever_waits(model_path, tmp_path):
    with TrainerWorker(model_path, CONFIG) as worker:
        worker._checkpoints._model_path = tmp_path / "gone"
        with pytest.raises(CheckpointError, match=r"v1: the checkpoint could not be written: .*gone"):
            worker.save(tmp_path / "v1", 1).result(60)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_reaches_whoever_waits_gets_its_room_back_and_the_next_save_works(model_path, tmp_path):
    (tmp_path / "occupied").write_text("")
    with TrainerWorker(model_path, CONFIG) as worker:
        with pytest.raises(CheckpointError, match=r"v1: the checkpoint could not be written: .*Not a directory"):
            worker.save(tmp_path / "occupied" / "v1", 1).result(60)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
        try:
            with pytest.raises(CheckpointError, match=r"v1: the checkpoint could not be written: .*File too large"):
                worker.save(tmp_path / "run" / "v1", 1).result(60)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list((tmp_path / "run").iterdir()) == []
        worker.save(tmp_path / "run" / "v1", 1).result(60)
        assert worker.load(tmp_path / "run" / "v1") == 1


@pytest.fixture
def saved(model_path, tmp_path):
    """A root with two whole checkpoints, 1 and 2."""
    with TrainerWorker(model_path, CONFIG) as worker:
        for version in (1, 2):
            worker.step([batch(version)])
            worker.save(tmp_path / "saved" / str(version), version).result(60)
    return tmp_path / "saved"


SHARD = "state-00000-of-00001.safetensors"


def edit_manifest(directory, **changes):
    path = directory / "trainer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGE = {
    "no manifest": (lambda d: (d / "trainer.json").unlink(), "found no trainer.json"),
    "half a manifest": (lambda d: (d / "trainer.json").write_text('{"format": 1, "ver'), "is damaged"),
    "zeros for a manifest": (lambda d: (d / "trainer.json").write_bytes(bytes(300)), "is damaged"),
    "a manifest of bytes": (lambda d: (d / "trainer.json").write_bytes(b"\xff\xfe"), "is damaged"),
    "a list for a manifest": (lambda d: (d / "trainer.json").write_text("[]"), "not of format 2"),
    "another format": (lambda d: edit_manifest(d, format=3), "not of format 2"),
    "no version": (lambda d: edit_manifest(d, version=None), "found no version"),
    "no fingerprints": (lambda d: edit_manifest(d, files={SHARD: 7}), "no files"),
    "no files": (lambda d: edit_manifest(d, files=None), "no files"),
    "a missing shard": (lambda d: (d / SHARD).unlink(), f"found no {SHARD}"),
    "a directory for a shard": (lambda d: ((d / SHARD).unlink(), (d / SHARD).mkdir()), f"found no {SHARD}"),
    "a truncated shard": (lambda d: os.truncate(d / SHARD, 100), "found {'bytes': 100}, expected .* damaged"),
    "missing weights": (lambda d: (d / "model.safetensors").unlink(), "found no model.safetensors"),
    "an empty directory": (lambda d: (shutil.rmtree(d), d.mkdir()), "found no trainer.json"),
    "a file": (lambda d: (shutil.rmtree(d), d.write_text("")), "trainer.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.cases(5)
def test_a_damaged_checkpoint_is_left_out_and_hides_no_other(saved, model_path, damage):
    spoil, says = DAMAGE[damage]
    spoil(saved / "2")
    assert checkpoints(saved) == {1: saved / "1"}
    with TrainerWorker(model_path, CONFIG) as worker:
        with pytest.raises(CheckpointError, match=says):
            worker.load(saved / "2")
        assert worker.load(saved / "1") == 1


def test_what_only_a_checksum_shows_is_found_when_it_is_loaded(saved, model_path):
    content = bytearray((saved / "2" / SHARD).read_bytes())
    content[-9] ^= 1
    (saved / "2" / SHARD).write_bytes(content)
    assert list(checkpoints(saved)) == [1, 2]
    with pytest.raises(CheckpointError, match=f"{SHARD}: found xxh3 .* of its MiB 0, expected .* damaged, use another"):
        verify(saved / "2")
    with TrainerWorker(model_path, CONFIG) as worker:
        with pytest.raises(CheckpointError, match="damaged, use another"):
            worker.load(saved / "2")
        assert worker.load(saved / "1") == 1


def test_a_manifest_that_lost_its_shards_or_is_of_no_trainer_is_refused(saved, model_path):
    files = json.loads((saved / "2" / "trainer.json").read_text())["files"]
    with TrainerWorker(model_path, CONFIG) as worker:
        edit_manifest(saved / "2", files={name: value for name, value in files.items() if name != SHARD})
        with pytest.raises(CheckpointError, match=f"found no {SHARD}"):
            worker.load(saved / "2")
        edit_manifest(saved / "2", files=files, world_size=None)
        with pytest.raises(CheckpointError, match="found no trainer state"):
            worker.load(saved / "2")


def test_what_a_crash_left_of_a_save_is_no_checkpoint_and_goes_with_the_next(saved, model_path):
    for left in (".3.partial", ".2.replaced"):
        shutil.copytree(saved / "2", saved / left)
    os.truncate(saved / ".3.partial" / SHARD, 100)
    assert list(checkpoints(saved)) == [1, 2]
    with TrainerWorker(model_path, CONFIG) as worker:
        assert worker.load(saved / "2") == 2
        worker.save(saved / "2", 2).result(60)
        worker.save(saved / "3", 3).result(60)
        assert worker.load(saved / "3") == 3
    assert sorted(path.name for path in saved.iterdir()) == ["1", "2", "3"]


def test_weights_alone_are_a_model_but_nothing_to_go_on_from(model_path, tmp_path):
    with TrainerWorker(model_path, dataclasses.replace(CONFIG, dtype="bfloat16")) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "1", 1).result(60)
        worker.step([batch(2)])
        worker.save(tmp_path / "2", 2, full=False).result(60)
        expected = {name: tensor.clone() for name, tensor in worker.weights()}
        assert_same_bits(dict(load_weights_file(tmp_path / "2")), expected)
        with pytest.raises(CheckpointError, match=r"2: found weights alone, .* expected a checkpoint with full state"):
            worker.load(tmp_path / "2")
        assert_same_bits({name: tensor.clone() for name, tensor in worker.weights()}, expected)
    assert list(checkpoints(tmp_path)) == [1, 2]
    assert list(checkpoints(tmp_path, full=True)) == [1]
    full, alone = (json.loads((tmp_path / name / "trainer.json").read_text())["files"] for name in "12")
    assert full.keys() - alone.keys() == {SHARD}
    assert alone["model.safetensors"] == verify(tmp_path / "2")["files"]["model.safetensors"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "2", dtype="auto").dtype == torch.bfloat16


def test_there_is_one_copy_of_the_state_whatever_is_saved_and_loaded(model_path, tmp_path, monkeypatch):
    taken, take = [], tensor_file.host_memory
    monkeypatch.setattr(tensor_file, "host_memory", lambda size, **how: taken.append(size) or take(size, **how))
    with TrainerWorker(model_path, CONFIG) as worker:
        sizes = set()
        for version, full in enumerate((False, True, False, True)):
            worker.step([batch(version)])
            worker.save(tmp_path / f"v{version}", version, full=full).result(60)
            sizes.add(worker._checkpoints.copy_bytes)
        worker.load(tmp_path / "v3")
        sizes.add(worker._checkpoints.copy_bytes)
        parameters = sum(tensor.numel() for _, tensor in worker.weights())
    assert sizes == {4 * parameters, 3 * 4 * parameters + checkpoint._SLACK_BYTES}
    assert taken == sorted(sizes)  # it does not grow while it is filled


def test_a_restart_reads_its_own_state_once(model_path, tmp_path):
    with TrainerWorker(model_path, CONFIG) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "v1", 1).result(60)
        worker.load(tmp_path / "v1")
        assert worker._checkpoints.read_bytes == (tmp_path / "v1" / SHARD).stat().st_size


def test_a_checkpoint_of_the_format_before_is_read_and_checked(saved, model_path):
    """Each file had one CRC-32."""
    manifest = json.loads((saved / "2" / "trainer.json").read_text())
    files = {name: {"bytes": (saved / "2" / name).stat().st_size} for name in manifest["files"]}
    for name, about in files.items():
        about["crc32"] = zlib.crc32((saved / "2" / name).read_bytes())
    del manifest["full"]
    (saved / "2" / "trainer.json").write_text(json.dumps(manifest | {"format": 1, "files": files}))
    assert list(checkpoints(saved, full=True)) == [1, 2]
    verify(saved / "2")
    with TrainerWorker(model_path, CONFIG) as worker:
        assert worker.load(saved / "2") == 2
        content = bytearray((saved / "2" / SHARD).read_bytes())
        content[len(content) // 2] ^= 1
        (saved / "2" / SHARD).write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{SHARD}: found .*crc32.*, expected .*; it is damaged"):
            worker.load(saved / "2")


def test_a_slow_disk_is_waited_for_while_bytes_are_written(tmp_path):
    """A deadline of progress: it passes only once nothing was written for as long."""
    (tmp_path / ".1.partial").mkdir()
    progress, began = WriteProgress(tmp_path, 0.5), time.monotonic()
    with (tmp_path / ".1.partial" / ".state").open("wb", buffering=0) as file:
        while time.monotonic() - began < 1.5:
            file.write(b"x")
            stopped = time.monotonic()
            assert not progress.passed()
            time.sleep(0.05)
        while not progress.passed():
            assert time.monotonic() - stopped < 60
            time.sleep(0.05)
    assert time.monotonic() - stopped >= 0.5
    assert progress.nbytes == (tmp_path / ".1.partial" / ".state").stat().st_size


def test_progress_is_counted_while_directories_get_their_names(tmp_path):
    """`glob` alone raises where a directory is gone between its name and its files."""
    stop = threading.Event()

    def complete_for_ever():
        while not stop.is_set():
            partial = tmp_path / ".1.partial"
            partial.mkdir()
            (partial / "state").write_bytes(b"1234")
            shutil.rmtree(partial)

    writer = threading.Thread(target=complete_for_ever)
    writer.start()
    try:
        for _ in range(3000):
            assert WriteProgress(tmp_path, 60.0).nbytes in (0, 4)
    finally:
        stop.set()
        writer.join()
