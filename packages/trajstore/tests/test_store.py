"""The store's promises, one by one: fencing, one version, idempotence, exactly one consumption, rollback."""

import contextlib
import dataclasses
import errno
import json
import math
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tailrace.contracts import FinishReason, Segment
from tailrace.trajstore import (
    AlreadyConsumedError,
    Assignment,
    PartialDelta,
    Recovery,
    Resume,
    Status,
    StoreBusyError,
    StoreClosedError,
    StoreFormatError,
    TrajectoryDataError,
    TrajectoryStateError,
    TrajectoryStore,
    UnknownTrajectoryError,
    read_trained,
)
from tailrace.trajstore.settlements import Settlements

STOP = FinishReason.STOP


def item(trajectory, group=0, **fields):
    return Assignment(trajectory, group, (1, 2, 3), **fields)


def delta(trajectory, offset, tokens, version=0, finish=None):
    return PartialDelta(trajectory, offset, version, tuple(tokens), tuple(-0.1 * token for token in tokens), finish)


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    with TrajectoryStore(None if request.param == "memory" else tmp_path / "store.db") as store:
        yield store


def finish(store, *names, reward=1.0, version=0, tokens=(7, 8)):
    store.begin("r0", version, [item(name) for name in names])
    assert store.append("r0", [delta(name, 0, tokens, version, STOP) for name in names]) == []
    if reward is not None:
        assert all(store.set_reward(name, reward) for name in names)


def test_from_the_first_token_to_training(store):
    assert store.begin("r0", 3, [item("0.0", group=4, metadata={"row": 9})]) == [Resume("0.0", (1, 2, 3))]
    assert store.append("r0", [delta("0.0", 0, [5, 6], 3)]) == []
    assert [partial.tokens for partial in store.partials()] == [2]
    assert store.append("r0", [delta("0.0", 2, [7], 3, STOP)], trainer_version=5) == []
    assert store.partials() == []
    assert store.set_reward("0.0", 0.5)
    (experience,) = store.experiences(["0.0"])
    assert experience.prompt == (1, 2, 3)
    assert experience.segments == (Segment(3, (5, 6, 7), (-0.5, -0.1 * 6, -0.1 * 7)),)
    assert (experience.group, experience.reward, experience.finish, experience.completed_version) == (4, 0.5, STOP, 5)
    assert experience.metadata == {"row": 9, "purpose": "train"}
    store.consume(["0.0"], 6)
    (row,) = store.consumed()
    assert dataclasses.astuple(row) == ("0.0", 4, 3, 5, 6, 0.5, 3, 3)
    assert store.statuses(["0.0", "nobody"]) == {"0.0": Status.CONSUMED}


def test_log_probabilities_are_exact_and_float32_is_close(tmp_path):
    values = (-0.1, -1e-17, -123.456789, 0.0)
    for precision, exact in (("float64", True), ("float32", False)):
        with TrajectoryStore(logprobs=precision) as store:  # type: ignore[arg-type]
            store.begin("r0", 0, [item("a")])
            assert store.append("r0", [PartialDelta("a", 0, 0, (1, 2, 3, 2**32 - 1), values, STOP)]) == []
            (experience,) = store.experiences(["a"])
            assert experience.tokens == (1, 2, 3, 2**32 - 1)
            assert (experience.logprobs == values) is exact
            assert experience.logprobs == pytest.approx(values, rel=1e-6)


def test_a_lost_owner_is_fenced_off(store):
    store.begin("r0#1", 0, [item("a"), item("b")])
    store.append("r0#1", [delta("a", 0, [1, 2])])
    (resume,) = store.begin("r1#1", 0, [item("a")])
    assert resume.kept_tokens == (1, 2)
    assert resume.kept_logprobs == (-0.1, -0.2)
    assert store.append("r0#1", [delta("a", 2, [9]), delta("b", 0, [9])]) == ["a"]
    assert store.append("r1#1", [delta("a", 2, [3], finish=STOP)]) == []
    assert store.append("r0#1", [delta("a", 0, [1, 2])]) == ["a"]
    assert store.experiences(["a"])[0].tokens == (1, 2, 3)


def test_tokens_of_another_version_are_dropped_and_counted(store):
    store.begin("r0", 1, [item("a")])
    store.append("r0", [delta("a", 0, [1, 2], 1)])
    (resume,) = store.begin("r1", 2, [item("a")])
    assert resume == Resume("a", (1, 2, 3))
    assert store.stats().dropped_tokens == 2
    assert store.append("r1", [delta("a", 0, [4], 1)]) == ["a"]
    assert store.append("r1", [delta("a", 0, [4], 2, STOP)]) == []
    assert store.experiences(["a"])[0].segments == (Segment(2, (4,), (-0.4,)),)


def test_versions_may_be_mixed_on_request():
    with TrajectoryStore(mixed_versions=True) as store:
        store.begin("r0", 1, [item("a")])
        store.append("r0", [delta("a", 0, [1, 2], 1)])
        (resume,) = store.begin("r1", 2, [item("a")])
        assert resume.kept_tokens == (1, 2)
        assert store.append("r1", [delta("a", 2, [3], 2), delta("a", 3, [4], 2, STOP)]) == []
        (experience,) = store.experiences(["a"])
        assert [(part.version, part.tokens) for part in experience.segments] == [(1, (1, 2)), (2, (3, 4))]
        assert experience.oldest_version == 1
        assert store.stats().dropped_tokens == 0


def test_gaps_overlaps_and_strangers_are_refused(store):
    store.begin("r0", 0, [item("a")])
    assert store.append("r0", [delta("a", 1, [1])]) == ["a"]
    assert store.append("r0", [delta("a", 0, [1, 2, 3])]) == []
    assert store.append("r0", [delta("a", 2, [3, 4])]) == ["a"]
    assert store.append("r0", [delta("a", 0, [1, 2])]) == ["a"]
    assert store.append("r0", [delta("nobody", 0, [1])]) == ["nobody"]
    assert store.append("r0", [delta("a", 3, [4], finish=STOP)]) == []
    assert store.append("r0", [delta("a", 4, [5])]) == ["a"]
    assert store.experiences(["a"])[0].tokens == (1, 2, 3, 4)
    assert store.stats().refused == 5


def test_a_repeated_call_changes_nothing(store):
    store.begin("r0", 0, [item("a"), item("b")])
    call = [delta("a", 0, [1, 2]), delta("b", 0, [3]), delta("a", 2, [4], finish=STOP), delta("b", 1, [], finish=STOP)]
    assert store.append("r0", call) == []
    assert store.append("r0", call) == []
    assert store.append("r0", [*call, *call]) == []
    assert store.experiences(["a"])[0].tokens == (1, 2, 4)
    assert store.experiences(["b"])[0].tokens == (3,)
    assert store.stats().resent == 12
    assert store.stats().deltas == 3
    assert store.append("r0", [delta("a", 2, [5], finish=STOP)]) == ["a"]
    assert store.append("r0", [delta("a", 2, [4], finish=FinishReason.LENGTH)]) == ["a"]
    assert store.append("r0", [delta("b", 0, [], finish=STOP)]) == ["b"]


def test_the_same_delta_twice_in_one_call_is_stored_once(store):
    store.begin("r0", 0, [item("a")])
    assert store.append("r0", [delta("a", 0, [1]), delta("a", 0, [1])]) == []
    assert [partial.tokens for partial in store.partials()] == [1]


def test_an_empty_response_may_finish(store):
    store.begin("r0", 4, [item("a")])
    assert store.append("r0", [delta("a", 0, [], 4)]) == []
    assert store.append("r0", [delta("a", 0, [], 4, STOP)]) == []
    assert store.experiences(["a"])[0].segments == ()
    assert store.set_reward("a", 0.0)
    store.consume(["a"], 1)
    assert store.consumed()[0].oldest_version == 4


def test_what_is_finished_is_not_generated_again(store):
    finish(store, "a", "b")
    store.consume(["b"], 1)
    first, second, third = store.begin("r1", 5, [item("a"), item("b"), item("c")])
    assert (first.complete, first.kept_tokens) == (True, (7, 8))
    assert (second.complete, second.kept_tokens) == (True, (7, 8))
    assert not third.complete
    assert store.append("r1", [delta("a", 0, [1], 5)]) == ["a"]
    assert store.experiences(["a"])[0].tokens == (7, 8)


def test_what_was_given_up_may_start_again_from_nothing(store):
    finish(store, "a", "b")
    assert store.discard(["a", "b", "nobody"], "too stale") == ["a", "b"]
    assert store.discard(["b"], "again") == []
    assert not store.set_reward("a", 1.0)
    for name in "ab":
        with pytest.raises(TrajectoryStateError, match="expected complete or consumed"):
            store.experiences([name])
        with pytest.raises(TrajectoryStateError, match="expected complete, to be consumed"):
            store.consume([name], 1)
        assert store.append("r0", [delta(name, 0, [7, 8], 0, STOP)]) == [name]
    assert store.begin("r2", 0, [item("a"), item("b")]) == [Resume("a", (1, 2, 3)), Resume("b", (1, 2, 3))]
    assert store.append("r2", [delta("a", 0, [5], finish=STOP)]) == []
    assert store.experiences(["a"])[0].reward is None
    assert (store.stats().revived, store.stats().dropped_tokens) == (2, 4)


def test_a_partial_trajectory_may_be_given_up(store):
    store.begin("r0", 0, [item("a"), item("b")])
    store.append("r0", [delta("a", 0, [1])])
    store.discard(["a", "b"], "redundant")
    assert store.append("r0", [delta("a", 1, [2]), delta("b", 0, [2])]) == ["a", "b"]
    assert store.partials() == []
    assert store.statuses(["a", "b"]) == {"a": Status.DISCARDED, "b": Status.DISCARDED}


def test_a_trim_that_forgets_nothing_for_an_error_refuses_no_rollback(store, tmp_path):
    finish(store, *"abc")
    store.consume(["a"], 1)
    assert store.trim(1) == 1
    store.consume(["b"], 2)
    store.consume(["c"], 3)
    with pytest.raises(FileNotFoundError):
        store.trim(3, tmp_path / "nowhere" / "trained.packed")
    assert store.rollback(1) == ["b", "c"]
    with pytest.raises(TrajectoryStateError, match="expected 1 or later"):
        store.rollback(0)


def test_an_id_is_one_trajectory(store):
    store.begin("r0", 0, [item("a")])
    with pytest.raises(TrajectoryStateError, match="another prompt or group"):
        store.begin("r1", 0, [item("new"), item("a", group=1)])
    with pytest.raises(TrajectoryStateError, match="another prompt or group"):
        store.begin("r1", 0, [Assignment("a", 0, (1,))])
    with pytest.raises(TrajectoryDataError, match="twice"):
        store.begin("r1", 0, [item("b"), item("b")])
    assert [(partial.trajectory, partial.owner) for partial in store.partials()] == [("a", "r0")]
    assert store.begin("r0", 0, [item("new")]) == [Resume("new", (1, 2, 3))]


def test_consuming_twice_is_impossible(tmp_path):
    path = tmp_path / "store.db"
    with TrajectoryStore(path) as store:
        finish(store, "a", "b")
        store.consume(["a"], 1)
        with pytest.raises(AlreadyConsumedError, match="consumed for version 1"):
            store.consume(["b", "a"], 2)
        with pytest.raises(AlreadyConsumedError, match="twice in one batch"):
            store.consume(["b", "b"], 2)
        assert store.statuses(["b"]) == {"b": Status.COMPLETE}
        store.consume(["b"], 2)
        audit = store.audit()
        assert (audit["consumed"], audit["total"], audit["consumed_twice"], audit["inconsistent"]) == (2, 2, [], [])
    raw = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute("INSERT INTO consumption SELECT num, 9 FROM trajectory WHERE id = 'a'")
    raw.execute("UPDATE trajectory SET status = 'complete' WHERE id = 'a'")
    raw.execute("DELETE FROM delta WHERE num = (SELECT num FROM trajectory WHERE id = 'b')")
    raw.commit()
    raw.close()
    with TrajectoryStore(path) as store:
        assert store.audit()["inconsistent"] == ["a", "b"]
        with pytest.raises(sqlite3.IntegrityError):
            store.consume(["a"], 3)


def test_rewards_that_come_together(store):
    """Each as if it came alone, but that those which come too late are left out; a broken one leaves all as they were."""
    finish(store, "a", "b", "dropped", reward=None)
    finish(store, "held-out", "trained")
    store.begin("r0", 0, [item("running")])
    store.discard(["dropped"], "surplus")
    store.consume(["trained"], 1)
    late = dict.fromkeys(("unknown", "dropped", "running", "trained"), 0.5)
    store.set_rewards(late | {"a": 0.25, "b": 0.75, "held-out": 0.0})
    assert {one.trajectory: one.reward for one in store.experiences(["a", "b", "held-out", "trained"])} == {
        "a": 0.25,
        "b": 0.75,
        "held-out": 0.0,
        "trained": 1.0,
    }
    with pytest.raises(TrajectoryDataError, match="trajectory b: found reward nan"):
        store.set_rewards({"a": 1.0, "b": math.nan})
    assert [one.reward for one in store.experiences(["a", "b"])] == [0.25, 0.75]
    assert store.audit()["inconsistent"] == []


def test_what_may_not_be_consumed(store):
    finish(store, "a")
    finish(store, "unscored", reward=None)
    store.begin("r0", 0, [item("running"), item("held-out", purpose="eval")])
    store.append("r0", [delta("held-out", 0, [1], finish=STOP)])
    store.set_reward("held-out", 1.0)
    for name, words, kind in (
        ("unscored", "no reward", TrajectoryStateError),
        ("running", "found partial", TrajectoryStateError),
        ("held-out", "purpose eval", TrajectoryStateError),
        ("nobody", "no trajectory nobody", UnknownTrajectoryError),
    ):
        with pytest.raises(kind, match=words):
            store.consume(["a", name], 1)
    assert store.consumed() == []
    store.consume(["a"], 1)
    for action in (
        lambda: store.set_reward("a", 0.0),
        lambda: store.discard(["unscored", "a"], "late"),
    ):
        with pytest.raises(TrajectoryStateError, match="consumed"):
            action()
    assert store.statuses(["unscored"]) == {"unscored": Status.COMPLETE}


def test_rollback_undoes_what_the_trainer_lost(store):
    finish(store, "a", "b", "c")
    for version, name in enumerate("abc", start=1):
        store.consume([name], version)
    assert store.rollback(1) == ["b", "c"]
    assert store.rollback(1) == []
    assert store.recover().held == {"b": 1.0, "c": 1.0}
    store.consume(["c", "b"], 2)
    assert [(row.trajectory, row.consumed_version) for row in store.consumed()] == [("a", 1), ("b", 2), ("c", 2)]
    assert [row.trajectory for row in store.consumed(["c", "nobody", "a"])] == ["c", "a"]
    assert store.stats().rolled_back == 2
    assert store.audit()["inconsistent"] == []


def test_trim_forgets_what_no_rollback_can_ask_for(tmp_path):
    archive = tmp_path / "trained.jsonl"
    with TrajectoryStore(tmp_path / "store") as store:
        finish(store, "a", "b", "c", "d")
        store.discard(["d"], "surplus")
        store.consume(["a"], 1)
        store.consume(["b"], 2)
        assert store.trim(1, archive) == 2
        assert store.trim(1, archive) == 0
        with pytest.raises(UnknownTrajectoryError):
            store.experiences(["a"])
        assert store.experiences(["b"])[0].tokens == (7, 8)
        assert store.consumed_tokens() == [2, 2]
        with pytest.raises(TrajectoryStateError, match="expected 1 or later"):
            store.rollback(0)
        assert store.rollback(1) == ["b"]
        assert store.statuses(["b", "c"]) == {"b": "complete", "c": "complete"}
        audit = store.audit()
        assert (audit["consumed"], audit["discarded"], audit["total"], audit["inconsistent"]) == (1, 1, 4, [])
        assert [json.loads(line)["trajectory"] for line in archive.read_text().splitlines()] == ["a"]


def test_an_evaluation_is_forgotten_once_it_is_rewarded_and_old(store):
    store.begin("r0", 0, [item(name, purpose="eval") for name in "abc"])
    for name, version in (("a", 0), ("b", 0), ("c", 1)):
        store.append("r0", [delta(name, 0, [7], 0, FinishReason.STOP)], trainer_version=version)
    for name in "ac":
        store.set_reward(name, 1.0)
    assert store.trim(1) == 1
    assert store.statuses("abc") == {"b": "complete", "c": "complete"}


def test_what_a_killed_process_had_archived_is_archived_once(tmp_path):
    archive = tmp_path / "trained.jsonl"
    with TrajectoryStore(tmp_path / "store") as store:
        finish(store, "a", "b", "c")
        store.consume(["a"], 1)
        store.trim(1, archive)
        store.consume(["b"], 2)
        with archive.open("a") as file:
            file.write("what came before the")  # the process died, nothing was trimmed
        store.trim(2, archive)
        store.consume(["c"], 3)
        assert store.export_jsonl(archive) == 1
        assert [json.loads(line)["trajectory"] for line in archive.read_text().splitlines()] == ["a", "b", "c"]
        assert store.export_jsonl(archive) == 1
        store.trim(3, archive)
    assert [json.loads(line)["trajectory"] for line in archive.read_text().splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["trained.packed", "trained.jsonl"])
def test_an_export_loses_no_row_to_a_trim_that_comes_late(tmp_path, monkeypatch, name):
    """The trainer has the store trim beside the end of a run, which exports; twice, the second time after a fall-back."""
    monkeypatch.setattr("tailrace.trajstore.store.TRIM_TOKENS", 1)  # one in a slice
    archive = tmp_path / name

    def rows():
        return [(row["trajectory"], row["consumed_version"]) for row in read_trained(archive)]

    with TrajectoryStore(tmp_path / "store") as store:
        finish(store, *"abcdefg")
        for version, trajectory in enumerate("abcdef", 1):
            store.consume([trajectory], version)
        store.trim(1, archive)
        assert store.export(archive) == 5
        whole = archive.read_bytes()
        for version in (2, 4):
            store.trim(version, archive)
            assert archive.read_bytes() == whole
        store.rollback(4)
        store.consume(["e", "f"], 5)
        store.consume(["g"], 6)
        store.trim(5, archive)
        assert rows() == [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 5)]
        assert store.export(archive) == 1
        store.trim(6, archive)
    assert rows() == [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 5), ("g", 6)]


def test_a_trim_that_takes_long_goes_on_in_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setattr("tailrace.trajstore.store.TRIM_TOKENS", 1)  # one in a slice
    archive = tmp_path / "trained.packed"
    with TrajectoryStore() as store:
        finish(store, *"abcde")
        store.discard(["e"], "surplus")
        store.consume([*"abcd"], 1)
        assert [store.trim(1, archive, within_s=0.0) for _ in range(7)] == [1, 1, 1, 1, 1, 0, 0]
    assert [row["trajectory"] for row in read_trained(archive)] == [*"abcd"]


@pytest.mark.parametrize("name", ["trained.packed", "trained.jsonl"])
def test_an_export_writes_no_archived_row_again(tmp_path, name):
    """At the end of a run an archive may have many gigabytes, and there may be no room for a second one."""
    archive = tmp_path / name
    with TrajectoryStore() as store:
        finish(store, *"abcd")
        for version, trajectory in enumerate("abcd", 1):
            store.consume([trajectory], version)
        store.trim(2, archive)
        before, file = archive.read_bytes(), archive.stat().st_ino
        assert store.export(archive) == 2
        assert archive.stat().st_ino == file
        assert archive.read_bytes().startswith(before)
        assert [row["trajectory"] for row in read_trained(archive)] == [*"abcd"]
        store.rollback(3)
        assert store.export(archive) == 1
    assert [row["trajectory"] for row in read_trained(archive)] == [*"abc"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["trained.packed", "trained.jsonl"])
@pytest.mark.parametrize(
    "write", [TrajectoryStore.export, lambda store, path: store.trim(9, path)], ids=["export", "trim"]
)
@pytest.mark.parametrize("exported", [False, True])
def test_a_full_disk_leaves_an_archive_of_whole_rows(tmp_path, name, write, exported):
    archive = tmp_path / name
    with TrajectoryStore() as store:
        finish(store, *"abcdefgh")
        for version, trajectory in enumerate("abcdefgh", 1):
            store.consume([trajectory], version)
        store.trim(1, archive)
        size = archive.stat().st_size
        if exported:
            store.rollback(2)
            store.export(archive)
            store.consume([*"hgfedc"], 3)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * size + 7, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                write(store, archive)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        kept = {row["trajectory"] for row in read_trained(archive)}
        assert {"a"} < kept < {*"abcdefgh"}
        write(store, archive)
        store.trim(9, archive)
    assert sorted(row["trajectory"] for row in read_trained(archive)) == [*"abcdefgh"]


@pytest.mark.parametrize("name", ["trained.packed", "trained.jsonl"])
def test_an_archive_that_somebody_took_away_begins_anew(tmp_path, name):
    archive = tmp_path / name
    with TrajectoryStore(tmp_path / "store") as store:
        finish(store, *"abc")
        for version, trajectory in enumerate("abc", 1):
            store.consume([trajectory], version)
        store.trim(1, archive)
        archive.unlink()
        store.trim(2, archive)
        store.export(archive)
    assert [row["trajectory"] for row in read_trained(archive)] == ["b", "c"]


def test_a_trim_of_many_slices_is_one(tmp_path, monkeypatch):
    """It dies in between, and the next one goes on; replicas append all the while."""
    monkeypatch.setattr("tailrace.trajstore.store.TRIM_TOKENS", 600)  # two in a slice
    archive, names = tmp_path / "trained.jsonl", [f"t{number}" for number in range(9)]
    with TrajectoryStore(tmp_path / "store") as store:
        finish(store, *names, "dropped", "running", tokens=range(100))
        store.discard(["dropped"], "surplus")
        store.consume(names[:5], 1)
        store.consume(names[5:], 2)
        line, written = TrajectoryStore._line, []

        def dies(self, row):
            written.append(row.trajectory)
            if len(written) == 4:
                raise OSError("no space left")
            appended = threading.Thread(target=lambda: begun.append(store.begin("r9", 0, [item(f"new{len(written)}")])))
            appended.start()
            appended.join(20)
            return line(self, row)

        begun = []
        monkeypatch.setattr(TrajectoryStore, "_line", dies)
        with pytest.raises(OSError, match="no space left"):
            store.trim(2, archive)
        assert len(begun) == 3
        with pytest.raises(TrajectoryStateError, match="expected 2 or later"):
            store.rollback(1)
        monkeypatch.setattr(TrajectoryStore, "_line", line)
        left = len(store.consumed())
        assert 0 < left < 9
        assert store.trim(2, archive) == left
        assert (store.audit()["consumed"], store.audit()["discarded"], store.audit()["inconsistent"]) == (9, 1, [])
    assert [json.loads(text)["trajectory"] for text in archive.read_text().splitlines()] == names


def test_an_export_has_what_is_trimmed_meanwhile(tmp_path, monkeypatch):
    archive, line, trims = tmp_path / "trained.jsonl", TrajectoryStore._line, []
    with TrajectoryStore(tmp_path / "store") as store:
        finish(store, "a", "b")
        store.consume(["a", "b"], 1)

        def first_trimmed(self, row):
            if not trims:
                trims.append(threading.Thread(target=store.trim, args=(1, archive)))
                trims[0].start()
                trims[0].join(0.3)  # it waits for the export
            return line(self, row)

        monkeypatch.setattr(TrajectoryStore, "_line", first_trimmed)
        assert store.export_jsonl(archive) == 2
        trims[0].join()
        assert store.audit()["consumed"] == 2
    assert [json.loads(text)["trajectory"] for text in archive.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize("name", ["trained.packed", "trained.jsonl"])
def test_who_closes_it_waits_for_what_is_archived(tmp_path, monkeypatch, name):
    """The role of a thread was given up and goes on, and another one opens the store."""
    archive, size_of = tmp_path / name, vars(Settlements)["archived"].fget
    began, goes_on = threading.Event(), threading.Event()

    def slow(self):
        size = size_of(self)
        began.set()
        assert goes_on.wait(20)
        return size

    old = TrajectoryStore(tmp_path / "store")
    finish(old, "a", "b", "c")
    for version, trajectory in enumerate("abc", 1):
        old.consume([trajectory], version)
    old.trim(1, archive)
    with monkeypatch.context() as patch:
        patch.setattr(Settlements, "archived", property(slow))
        trim = threading.Thread(target=old.trim, args=(2, archive))
        trim.start()
        assert began.wait(20)
    close = threading.Thread(target=old.close)
    close.start()
    close.join(0.3)
    with contextlib.suppress(StoreBusyError), TrajectoryStore(tmp_path / "store") as new:
        new.trim(2, archive)
    goes_on.set()
    trim.join(20)
    close.join(20)
    with TrajectoryStore(tmp_path / "store") as new:
        new.trim(3, archive)
        assert new.audit()["consumed"] == 3
    assert [row["trajectory"] for row in read_trained(archive)] == ["a", "b", "c"]


@pytest.mark.deep
def test_the_store_stays_bounded(tmp_path):
    """500 steps of 8 trajectories and an evaluation now and then: the file grows no more once the first were trimmed."""
    path, archive, sizes = tmp_path / "store", tmp_path / "trained.jsonl", []
    with TrajectoryStore(path, synchronous="off") as store:
        for version in range(1, 501):
            names = [f"{version}.{sample}" for sample in range(8)]
            finish(store, *names, f"{version}.dropped", tokens=range(60))
            store.discard([f"{version}.dropped"], "surplus")
            store.consume(names, version)
            store.trim(version - 2, archive)
            sizes.append(sum(file.stat().st_size for file in tmp_path.glob("store*")))
        assert store.audit()["consumed"] == 4000
    assert max(sizes[50:]) <= 1.1 * max(sizes[:50])
    assert archive.stat().st_size > 0


def test_recover_takes_stock_and_fences_everybody_off(store):
    finish(store, "scored")
    finish(store, "unscored", reward=None)
    finish(store, "consumed")
    store.consume(["consumed"], 1)
    store.begin("r0", 2, [item("running"), item("untouched")])
    store.append("r0", [delta("running", 0, [1, 2, 3], 2)])
    assert store.recover() == Recovery(
        held={"scored": 1.0, "unscored": None}, partial={"running": (2, 3), "untouched": (2, 0)}
    )
    assert store.append("r0", [delta("running", 3, [4], 2)]) == ["running"]
    assert {partial.owner for partial in store.partials()} == {None}


@pytest.mark.parametrize("mixed", [False, True])
def test_a_version_that_generates_was_made_before(tmp_path, mixed):
    """Nothing was consumed yet: the trainer had still made the versions that generated."""
    path = tmp_path / "store.db"
    with TrajectoryStore(path, mixed_versions=mixed) as store:
        finish(store, "a", version=3)
        store.begin("r0", 3, [item("b"), item("empty")])
        store.append("r0", [delta("b", 0, [5], 4 if mixed else 3), delta("empty", 0, [], 3, STOP)])
    with TrajectoryStore(path, mixed_versions=mixed) as store:
        store.begin("r1", 3, [item("b")])
        store.append("r1", [delta("b", 1, [6], 3, STOP)])
        found = {one.trajectory: one for one in store.experiences(["a", "b", "empty"])}
        completed = {name: one.completed_version for name, one in found.items()}
        assert completed == {"a": 3, "b": 4 if mixed else 3, "empty": 3}
        assert all(one.completed_version >= (one.oldest_version or 0) for one in found.values())
        finish(store, "later", version=3)
        store.consume(["a"], 9)
        finish(store, "last", version=3)
        assert [one.completed_version for one in store.experiences(["later", "last"])] == [3, 9]


def test_unfinished_trajectories_go_on_from_what_the_store_knows(tmp_path):
    path, begun = tmp_path / "store.db", [item("a", 4, metadata={"row": [9]}), item("b", 5, purpose="eval")]
    with TrajectoryStore(path) as store:
        store.begin("r0", 2, begun)
        store.append("r0", [delta("a", 0, [7], 2)])
    with TrajectoryStore(path) as store:
        assert store.assignments(store.recover().partial) == begun
        resumed = store.begin("r1", 2, store.assignments(["b", "a"]))
        assert [(one.trajectory, one.kept_tokens) for one in resumed] == [("b", ()), ("a", (7,))]
        with pytest.raises(UnknownTrajectoryError, match="found no trajectory c"):
            store.assignments(["a", "c"])


def test_a_store_that_is_closed_holds_none_of_its_files_open(tmp_path):
    def held():
        files = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        return [file for file in files if file.is_relative_to(tmp_path)]

    store = TrajectoryStore(tmp_path / "store.db")
    finish(store, "a")
    assert held()
    store.close()
    assert not held()


def test_everything_is_there_after_closing_and_opening(tmp_path):
    path = tmp_path / "store.db"
    with TrajectoryStore(path, initial_version=3) as store:
        finish(store, "a", "b")
        assert store.experiences(["a"])[0].completed_version == 3
        store.consume(["a"], 7)
        store.begin("r0", 2, [item("running")])
        store.append("r0", [delta("running", 0, [1, 2], 2)])
        before = store.recover()
    with pytest.raises(StoreClosedError, match="closed"):
        store.audit()
    store.close()
    with TrajectoryStore(path) as store:
        assert store.recover() == before
        (resume,) = store.begin("r1", 2, [item("running")])
        assert resume.kept_tokens == (1, 2)
        assert store.append("r1", [delta("running", 2, [3], 2, STOP)]) == []
        assert store.experiences(["running"])[0].completed_version == 7


def test_bad_data_leaves_nothing_behind(store):
    store.begin("r0", 0, [item("a"), item("b")])
    for tokens in ([-1], [2**32], [1.5]):
        with pytest.raises(TrajectoryDataError, match="token id"):
            store.append("r0", [delta("a", 0, [1]), PartialDelta("b", 0, 0, tuple(tokens), (0.0,))])  # type: ignore[arg-type]
    assert [partial.tokens for partial in store.partials()] == [0, 0]
    with pytest.raises(TrajectoryDataError, match="not a number"):
        store.append("r0", [PartialDelta("a", 0, 0, (1,), ("x",))])  # type: ignore[arg-type]
    with pytest.raises(TrajectoryDataError, match="JSON"):
        store.begin("r0", 0, [item("c", metadata={"x": object()})])
    finish(store, "d", reward=None)
    for reward in (float("nan"), float("inf")):
        with pytest.raises(TrajectoryDataError, match="finite"):
            store.set_reward("d", reward)
    with pytest.raises(TrajectoryStateError, match="found partial"):
        store.set_reward("a", 1.0)
    for action in (lambda: store.set_reward("x", 1.0), lambda: store.experiences(["x"])):
        with pytest.raises(UnknownTrajectoryError, match=r"^found no trajectory x in the store"):
            action()


def test_an_export_that_fails_leaves_no_file(tmp_path):
    path = tmp_path / "taken"
    path.mkdir()
    with TrajectoryStore() as store, pytest.raises(IsADirectoryError):
        store.export(path)
    assert list(tmp_path.iterdir()) == [path]


def test_export(tmp_path):
    path = tmp_path / "consumed.jsonl"
    with TrajectoryStore() as store:
        finish(store, "a", "b", "c")
        store.consume(["a"], 1)
        store.consume(["b"], 2)
        assert store.export_jsonl(path) == 2
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["trajectory"], first["consumed_version"]) == ("a", 1)
    assert second["tokens"] == [7, 8]
    assert second["versions"] == [0, 0]
    assert second["logprobs"] == [-0.1 * 7, -0.1 * 8]
    assert (second["prompt"], second["reward"], second["finish"], second["oldest_version"]) == (
        [1, 2, 3],
        1.0,
        "stop",
        0,
    )
    assert [file.name for file in tmp_path.iterdir()] == ["consumed.jsonl"]


def test_a_file_that_is_no_store(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like one " * 50)
    with pytest.raises(StoreFormatError, match="expected a trajectory store"):
        TrajectoryStore(text)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE something (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreFormatError, match="move it away"):
        TrajectoryStore(other)
    with pytest.raises(StoreFormatError, match="found no folder"):
        TrajectoryStore(tmp_path / "missing" / "store.db")
    with pytest.raises(StoreFormatError, match="synchronous='sometimes'"):
        TrajectoryStore(synchronous="sometimes")  # type: ignore[arg-type]


def test_threads_share_a_store(tmp_path):
    errors = []

    def generate(store, owner):
        try:
            names = [f"{owner}.{number}" for number in range(4)]
            store.begin(owner, 0, [item(name) for name in names])
            for offset in range(30):
                last = STOP if offset == 29 else None
                refused = store.append(owner, [delta(name, offset, [offset], finish=last) for name in names])
                assert refused == []
            for name in names:
                assert store.set_reward(name, 1.0)
            store.consume(names, 1)
        except BaseException as error:
            errors.append(error)
            raise

    with TrajectoryStore(tmp_path / "store.db", synchronous="off") as store:
        threads = [threading.Thread(target=generate, args=(store, f"r{number}")) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert errors == []
        rows = store.consumed()
        assert len(rows) == 32
        assert {experience.tokens for experience in store.experiences([row.trajectory for row in rows])} == {
            tuple(range(30))
        }
        assert store.audit()["inconsistent"] == []


@pytest.mark.parametrize("path", ["run.db", ":memory:"])
def test_a_store_stays_where_it_is_though_its_process_goes_elsewhere(tmp_path, monkeypatch, path):
    """Reads opened the same name in the directory of that moment, and of SQLite's own name another store in memory each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with TrajectoryStore(path) as store:
        finish(store, "a")
        monkeypatch.chdir("elsewhere")
        assert store.statuses(["a"]) == {"a": Status.COMPLETE}
        assert list(Path().iterdir()) == []
    with TrajectoryStore(tmp_path / path) as store:
        assert list(store.recover().held) == ["a"]


def test_a_process_that_was_forked_keeps_no_store_locked(tmp_path):
    """Its process was killed, and a worker that it had forked, such as a loader of data, lived on."""
    path, gone = tmp_path / "run.db", tmp_path / "gone"
    done = subprocess.run([sys.executable, "-c", FORKS, path, gone], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    try:
        TrajectoryStore(path, open_timeout_s=20.0).close()  # the worker may not have run yet as its process was killed
    finally:
        gone.touch()


FORKS = """
import os, pathlib, signal, sys, time
from tailrace.trajstore import TrajectoryStore
store = TrajectoryStore(sys.argv[1])
if not os.fork():
    for _ in range(600):
        if pathlib.Path(sys.argv[2]).exists():
            break
        time.sleep(0.1)
    os._exit(0)
assert store.recover().held == {}
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_store_that_cannot_be_opened_on_a_full_disk_is_not_left_locked(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            TrajectoryStore(tmp_path / "run.db")
    TrajectoryStore(tmp_path / "run.db", open_timeout_s=0.0).close()
