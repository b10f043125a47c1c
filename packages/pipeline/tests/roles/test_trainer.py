"""The trainer role on a real tiny model, without relays: steps, metrics, checkpoints, who undoes what."""

import functools
import pickle
import threading
import time

import pytest

from tailrace.contracts import (
    Accumulate,
    Accumulated,
    Activity,
    Cause,
    Checkpoint,
    Durable,
    Offload,
    Offloaded,
    Publish,
    Score,
    Step,
    Stepped,
    TailraceError,
)
from tailrace.pipeline.roles import trainer
from tailrace.pipeline.roles.trainer_activity import TensorCoreWatch
from tailrace.runtime.errors import CheckpointUnusableError, RoleError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberDeadError
from tailrace.trainer import load_weights_file
from tailrace.trainer.worker import TrainerWorker


def fold(events, kind):
    return [event for event in events if isinstance(event, kind)]


def phases(events):
    return [(event.phase, event.progress) for event in fold(events, Activity)]


def test_a_batch_in_one_go_and_in_parts(make_trainer, data, gather, until):
    role = make_trainer()
    assert role.ready(None) == Ready()
    assert data.rolled_back == [0]
    role.submit([Step(1, 1, (data.batch(0), data.batch(1)))])
    events = gather(role, lambda events: fold(events, Stepped) and phases(events)[-1][0] == "idle", "a step")
    (stepped,) = fold(events, Stepped)
    assert (stepped.version, stepped.answers, stepped.metrics["trajectories"]) == (1, 1, 8.0)
    assert [phase for phase, _ in phases(events)] == ["training", "idle"]
    assert phases(events)[1][1] >= 2  # micro-batches, of two mini-batches
    until(lambda: data.consumed == [(1, [*data.batch(0), *data.batch(1)])], "the marks")

    role.submit([Accumulate(2, 2, data.batch(2)), Accumulate(3, 2, data.batch(3)), Step(4, 2, (data.batch(4),))])
    events = gather(role, lambda events: fold(events, Stepped), "the second step")
    assert [(event.version, event.trajectories, event.answers) for event in fold(events, Accumulated)] == [
        (2, data.batch(2), 2),
        (2, data.batch(3), 3),
    ]
    (stepped,) = fold(events, Stepped)
    assert (stepped.version, stepped.answers, stepped.metrics["trajectories"]) == (2, 4, 12.0)
    until(lambda: data.consumed[1:] == [(2, [*data.batch(2), *data.batch(3), *data.batch(4)])], "the marks")
    assert role.events(0.1) in (
        [],
        [Activity("trainer", "0", "idle", 5)],
    )  # micro-batches, as above and one in each part


def test_optimizer_steps_on_parts_of_a_batch_bring_back_what_is_in_host_memory(make_trainer, data, gather):
    role = make_trainer()
    role.ready(None)
    for version in (1, 2):
        role.submit([Offload(10 * version, 0), Accumulate(10 * version + 1, version, data.batch(2 * version))])
        role.submit([Step(10 * version + 2, version, (data.batch(2 * version + 1),))])
        events = gather(role, lambda events: fold(events, Stepped), "a step of two parts")
        (offloaded,), (added,), (stepped,) = (fold(events, kind) for kind in (Offloaded, Accumulated, Stepped))
        assert (offloaded.answers, added.answers) == (10 * version, 10 * version + 1)
        assert "onload_s" in added.metrics
        assert stepped.metrics["trajectories"] == 8.0
        assert "onload_s" not in stepped.metrics, "it is told once"


def test_gradients_of_groups_are_added_and_the_batch_is_one_step(make_trainer, data, gather, until):
    role = make_trainer()
    role.ready(None)
    commands = [Accumulate(seq, 1, data.batch(seq), update=False, cell=0) for seq in (1, 2)]
    role.submit(
        [*commands, Step(3, 1, (data.batch(3),)), Accumulate(4, 2, data.batch(4), update=False, cell=0), Step(5, 2, ())]
    )
    events = gather(role, lambda events: len(fold(events, Stepped)) == 2, "two steps")
    added = [(event.version, event.cell, event.trajectories, event.answers) for event in fold(events, Accumulated)]
    assert added == [(1, 0, data.batch(1), 1), (1, 0, data.batch(2), 2), (2, 0, data.batch(4), 4)]
    first, second = fold(events, Stepped)
    assert (first.version, first.answers, first.metrics["trajectories"]) == (1, 3, 12.0)
    assert (second.version, second.answers, second.metrics["trajectories"]) == (2, 5, 4.0)  # nothing was left
    marked = [(1, [*data.batch(1), *data.batch(2), *data.batch(3)]), (2, [*data.batch(4)])]
    until(lambda: data.consumed == marked, "the marks")
    assert {"staleness_max", "staleness_mean", "wall_s", "grad_norm"} < first.metrics.keys()
    assert "version_oldest" not in first.metrics


def test_what_a_cell_cannot_do_is_told(make_trainer, data, until):
    for commands, found in (
        ([Accumulate(1, 1, data.batch(1), update=False, cell=1)], "found cell 1"),
        ([Accumulate(1, 1, data.batch(1), update=False)], "found cell None"),
        (
            [Accumulate(1, 1, data.batch(1)), Accumulate(2, 1, data.batch(2), update=False, cell=0)],
            "after optimizer steps",
        ),
        (
            [Accumulate(1, 1, data.batch(1), update=False, cell=0), Step(2, 1, (data.batch(2), data.batch(3)))],
            "found 2 mini-batches",
        ),
    ):
        role = make_trainer()
        role.ready(None)
        role.submit(commands)

        with pytest.raises(RoleError, match=found):
            until(lambda role=role: fold(role.events(0.1), Stepped), "a step that must not be")
        role.close()


def test_checkpoints_come_and_go(make_trainer, data, gather, tmp_path, until):
    root = tmp_path / "checkpoints"
    role = make_trainer()
    role.ready(None)
    (root / "99").mkdir()  # a newer one is none of its business
    for name in (".0.partial", ".98.partial"):  # what a killed trainer left, and what another one may be writing
        (root / name).mkdir()
    for version, keep, left in (
        (1, (), ["1", "99"]),
        (2, (1,), ["1", "2", "99"]),
        (3, (1, 2), ["1", "2", "3", "99"]),
        (4, (2,), ["2", "4", "99"]),
        (5, (2, 77), ["2", "5", "99"]),
    ):
        role.submit([Step(version, version, (data.batch(version),)), Checkpoint(10 + version, version, keep)])
        events = gather(role, lambda events: fold(events, Durable), f"checkpoint {version}")
        files = [path for path in (root / str(version)).iterdir() if path.name != "trainer.json"]
        nbytes = sum(path.stat().st_size for path in files)
        assert fold(events, Durable) == [Durable(version, answers=10 + version, nbytes=nbytes)]
        assert "saving" in [phase for phase, _ in phases(events)]
        left = [".98.partial", *left]
        until(lambda left=left: sorted(path.name for path in root.iterdir()) == left, f"only {left} to be left")
        oldest = min((version, *keep))
        until(lambda oldest=oldest: data.trimmed[-3:] == [oldest] * 3, "the store to be trimmed, until nothing is left")


def test_a_new_one_goes_on_from_a_checkpoint(make_trainer, data, gather, tmp_path):
    root = tmp_path / "checkpoints"
    role = make_trainer()
    role.ready(None)
    for version in (1, 2, 3):
        role.submit([Step(version, version, (data.batch(version),)), Checkpoint(10 + version, version, (1, 2))])
    gather(role, lambda events: len(fold(events, Durable)) == 3, "three checkpoints")
    role.close()
    saved = dict(load_weights_file(root / "2"))

    role = make_trainer()
    assert role.ready(2) == Ready(2)
    assert data.rolled_back == [0, 2]
    role.submit([Publish(1, 4), Checkpoint(2, 4, (2,))])  # under a new number: replicas may serve version 3
    gather(role, lambda events: fold(events, Durable), "the same weights again")
    assert all((tensor == saved[name]).all() for name, tensor in load_weights_file(root / "4"))
    role.submit([Step(3, 5, (data.batch(9),)), Checkpoint(4, 5, (2,))])
    gather(role, lambda events: fold(events, Durable), "the next checkpoint")


def damage_weights(directory):
    path = directory / "state-00000-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage",
    [
        damage_weights,
        lambda directory: (directory / "trainer.json").write_text("{"),
        lambda directory: (directory / "trainer.json").write_text("[]"),
        lambda directory: (directory / "trainer.json").write_text('{"format": 1}'),
        lambda directory: (directory / "trainer.json").unlink(),
        lambda directory: (directory / "model.safetensors").unlink(),
        lambda directory: directory.rename(directory.with_name("7")),
    ],
)
def test_a_damaged_checkpoint_cannot_be_used_and_nothing_is_undone(make_trainer, data, gather, tmp_path, damage):
    root = tmp_path / "checkpoints"
    role = make_trainer()
    role.ready(None)
    role.submit([Step(1, 1, (data.batch(1),)), Checkpoint(2, 1, ())])
    gather(role, lambda events: fold(events, Durable), "a checkpoint")
    role.close()
    damage(root / "1")
    fresh = make_trainer()
    with pytest.raises(CheckpointUnusableError, match="version 1") as raised:
        fresh.ready(1)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.cause, str(again)) == (Cause.CHECKPOINT, str(raised.value))
    assert data.rolled_back == [0]
    if (root / "7").exists():
        with pytest.raises(CheckpointUnusableError, match="found version 1"):
            fresh.ready(7)


def test_what_goes_wrong_breaks_it(make_trainer, data, gather, caller):
    role = make_trainer(data_s=0.2)
    role.ready(None)
    caller.role = None
    role.submit([Step(1, 1, (data.batch(1),)), Step(2, 2, (data.batch(2),))])
    with pytest.raises(MemberDeadError):
        gather(role, lambda events: fold(events, Stepped), "a step")
    caller.role = data
    for wrong, match in (
        ([Step(1, 1, (data.batch(1),)), Publish(2, 3)], "publish the weights of version 3, found those of version 1"),
        ([Step(1, 1, (data.batch(1),)), Checkpoint(2, 3)], "save the weights of version 3, found those of version 1"),
        ([Accumulate(1, 1, data.batch(1)), Publish(2, 0)], "in the middle of a batch"),
        ([Score(1, ())], "not its own"),
    ):
        role = make_trainer()
        role.ready(None)
        role.submit(wrong)
        with pytest.raises(RoleError, match=match):
            gather(role, lambda events: fold(events, Durable), "anything")
    data.failing = True
    role = make_trainer()
    role.ready(None)
    role.submit([Step(1, 1, (data.batch(1),))])
    with pytest.raises(ZeroDivisionError):
        gather(role, lambda events: fold(events, Stepped), "a step")


def test_a_checkpoint_that_cannot_be_written_breaks_it(make_trainer, data, gather, tmp_path):
    role = make_trainer()
    role.ready(None)
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").write_text("no directory")
    role.submit([Checkpoint(1, 0)])
    with pytest.raises((OSError, TailraceError), match="checkpoints"):
        gather(role, lambda events: fold(events, Durable), "a checkpoint")


def test_a_step_does_not_wait_for_the_marks_of_its_batch_and_its_checkpoint_does(make_trainer, data, gather, tmp_path):
    role = make_trainer()
    role.ready(None)
    data.mark.clear()
    role.submit([Step(1, 1, (data.batch(1),)), Publish(2, 1, {}), Checkpoint(3, 1, ())])
    gather(role, lambda events: [phase for phase, _ in phases(events)][-1:] == ["saving"], "the checkpoint's command")
    assert (data.consumed, list((tmp_path / "checkpoints").iterdir())) == ([], [])
    role.submit([Step(4, 2, (data.batch(2),))])
    data.mark.set()
    events = gather(role, lambda events: fold(events, Durable) and fold(events, Stepped), "checkpoint and step")
    assert data.consumed[0] == (1, list(data.batch(1)))
    assert fold(events, Stepped)[0].metrics["save_blocking_s"] > 0
    assert fold(events, Stepped)[0].metrics["publish_blocking_s"] > 0


def test_a_batch_that_cannot_be_marked_has_no_checkpoint(make_trainer, data, gather, tmp_path):
    role = make_trainer()
    role.ready(None)
    data.mark.clear()
    role.submit([Step(1, 1, (data.batch(1),)), Checkpoint(2, 1, ())])
    gather(role, lambda events: fold(events, Stepped), "a step")
    data.failing = True
    data.mark.set()
    with pytest.raises(ZeroDivisionError, match="in the store"):
        gather(role, lambda events: fold(events, Durable), "a checkpoint")
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_one_that_is_closed_in_the_middle_of_a_step_consumes_nothing(make_trainer, data):
    role = make_trainer()
    role.ready(None)
    data.go.clear()
    role.submit([Step(1, 1, (data.batch(1),)), Step(2, 2, (data.batch(2),))])
    assert data.reached.wait(30)
    closing = threading.Thread(target=role.close)
    closing.start()
    closing.join(0.2)
    data.go.set()
    closing.join(30)
    assert data.consumed == []


def test_in_one_process_a_new_one_waits_until_the_last_is_through(make_trainer, data, gather, until):
    last = make_trainer()
    last.ready(None)
    data.go.clear()
    last.submit([Step(1, 1, (data.batch(1),))])
    assert data.reached.wait(30)
    closing = threading.Thread(target=make_trainer.made.pop().close)  # it is abandoned
    closing.start()
    threading.Timer(0.5, data.go.set).start()
    role = make_trainer()
    assert data.go.is_set()
    role.ready(None)
    role.submit([Step(1, 1, (data.batch(1),))])
    gather(role, lambda events: fold(events, Stepped), "a step")
    closing.join(30)
    until(lambda: data.consumed == [(1, list(data.batch(1)))], "the marks")
    role.close()
    role.close()


def test_in_one_process_a_new_one_does_not_wait_for_one_whose_end_failed(make_trainer, monkeypatch):
    make_trainer()
    close = TrainerWorker.close

    def fails(worker):
        close(worker)
        raise TailraceError("a checkpoint is not durable")

    monkeypatch.setattr(TrainerWorker, "close", fails)
    with pytest.raises(TailraceError, match="not durable"):
        make_trainer.made.pop().close()
    monkeypatch.undo()
    began_s = time.monotonic()
    make_trainer().ready(None)
    assert time.monotonic() - began_s < trainer._PREDECESSOR_S


def test_tensor_cores_are_read_for_a_backend_that_says_no_micro_batches(make_trainer, data, gather, monkeypatch):
    class Cores:
        closed = False

        def busy(self):
            return 0.5

        def close(self):
            self.closed = True

    asked, cores = [], Cores()
    monkeypatch.setattr(TrainerWorker, "watch_micro_batches", lambda self, ended: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(trainer, "open_tensor_cores", lambda devices: asked.append(devices) or cores)
    monkeypatch.setattr(trainer, "TensorCoreWatch", functools.partial(TensorCoreWatch, every_s=0.001))
    role = make_trainer()
    role.ready(None)
    role.submit([Step(1, 1, (data.batch(0), data.batch(1)))])
    events = gather(role, lambda events: fold(events, Stepped) and phases(events)[-1][0] == "idle", "a step")
    assert [phase for phase, _ in phases(events)] == ["stepping", "training", "idle"]
    assert phases(events)[-1][1] >= 1
    role.close()
    assert asked == [("3", "1")]
    assert cores.closed
