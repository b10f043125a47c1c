"""Outlines and packed tokens say what experiences say, whatever deltas, turns and versions they were written in."""

import json
import math
import random
import re
import sqlite3
import struct
import threading
import time
from typing import Any

import pytest

from tailrace.contracts import Experience, FinishReason, PackedTokens, Segment
from tailrace.trajstore import (
    Assignment,
    PartialDelta,
    StoreFormatError,
    TrajectoryDataError,
    TrajectoryStateError,
    TrajectoryStore,
    UnknownTrajectoryError,
    read_trained,
)
from tailrace.trajstore.archive import MAGIC, find_trained, read_ends, record, write_parquet
from tailrace.trajstore.partials import Append

STOP = FinishReason.STOP


def single(value):
    """The nearest number of single precision."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def write(store, name, draw, *, prompt, exact=True, rewarded=True):
    """A trajectory in deltas of random sizes and versions, with turns here and there. Returns its last delta."""
    version, offset, turn = 0, 0, 0
    owner = f"r{draw.randrange(3)}"
    store.begin(owner, version, [Assignment(name, 5, prompt, metadata={"mode": "sampled"})])
    for last in [False] * draw.randrange(6) + [True]:
        if draw.random() < 0.4:
            version += 1
            store.begin(owner, version, [Assignment(name, 5, prompt, metadata={"mode": "sampled"})])
        tokens = tuple(draw.randrange(2**32) for _ in range(draw.randrange(1, 5)))
        values = [single(-draw.random()) if exact else -draw.random() for _ in tokens]
        turn_ends = not last and draw.random() < 0.3
        delta = PartialDelta(name, offset, version, tokens, tuple(values), STOP if last else None, turn_ends)
        assert store.append(owner, [delta]) == []
        offset += len(tokens)
        if turn_ends:
            serial = store.conversations([name])[0].turns[-1].serial
            store.observe(name, serial, (3, 4), reward=0.5, fresh=draw.random() < 0.5)
            offset, turn = offset + 2, turn + 1
    if rewarded:
        store.set_reward(name, draw.random())
    return owner, delta


def unpacked(outline, packed):
    """The experience, unpacked as its docstrings say."""

    def ids(data):
        return struct.unpack(f"<{len(data) // 4}I", data)

    tokens = ids(packed.tokens)
    kind = "f" if len(packed.logprobs) == 4 * len(tokens) else "d"
    values = struct.unpack(f"<{len(tokens)}{kind}", packed.logprobs)
    segments, start = [], 0
    for version, count, kind in outline.spans:
        end = start + count
        segments.append(Segment(version, tokens[start:end], values[start:end], bool(kind), kind == 2))
        start = end
    assert start == len(tokens) == outline.tokens
    return Experience(
        outline.trajectory,
        outline.group,
        ids(packed.prompt),
        tuple(segments),
        outline.finish,
        outline.reward,
        outline.completed_version,
        outline.metadata,
    )


@pytest.mark.parametrize("path", [None, "store"])
@pytest.mark.parametrize("seed", range(8))
def test_outlines_and_packed_tokens_are_those_of_experiences(tmp_path, path, seed):
    draw, names = random.Random(seed), [f"{seed}.{number}" for number in range(10)]
    prompts = [(1, 2, 3), (1, 2), (2**32 - 1,)]
    with TrajectoryStore(path and tmp_path / path, mixed_versions=True) as store:
        given = {}
        for name in names:
            given[name] = draw.choice(prompts)
            write(store, name, draw, prompt=given[name], exact=draw.random() < 0.7, rewarded=draw.random() < 0.8)
        draw.shuffle(names)
        wholes, outlines = store.experiences(names), store.outlines(names)
        for whole, outline, packed in zip(
            wholes, outlines, store.packed([(name, True) for name in names]), strict=True
        ):
            found = unpacked(outline, packed)
            assert (found, found.metadata) == (whole, whole.metadata), f"seed {seed}"
            assert (outline.highest_token, outline.finite) == (max(whole.prompt + whole.tokens), True)
            assert outline.prompt_tokens == len(whole.prompt)
            for other in outlines:
                assert (other.prompt == outline.prompt) == (given[other.trajectory] == given[outline.trajectory])
        assert [one.prompt for one in store.packed([(names[0], False)])] == [None]


def test_log_probabilities_of_engines_take_half_of_the_space_and_others_stay_exact(tmp_path):
    with TrajectoryStore(tmp_path / "store") as store:
        for name, values in (("narrow", (single(-0.1), -0.5)), ("wide", (-0.1, -0.5)), ("not", (math.nan, -1e300))):
            store.begin("r", 0, [Assignment(name, 0, (1,))])
            store.append("r", [PartialDelta(name, 0, 0, (1, 2), values, STOP)])
            store.set_reward(name, 1.0)
        packed = store.packed([("narrow", False), ("wide", False)])
        assert [len(one.logprobs) for one in packed] == [8, 16]
        assert [one.logprobs for one in store.experiences(["narrow", "wide"])] == [(single(-0.1), -0.5), (-0.1, -0.5)]
        assert [one.finite for one in store.outlines(["narrow", "wide", "not"])] == [True, True, False]


@pytest.mark.parametrize("seed", range(6))
def test_a_delta_that_is_sent_again_after_the_reward_is_known(tmp_path, seed):
    """Its trajectory's tokens stand in another form by then."""
    draw = random.Random(seed)
    with TrajectoryStore(tmp_path / "store", mixed_versions=True) as store:
        for name in "abcd":
            owner, last = write(store, name, draw, prompt=(1,), exact=draw.random() < 0.5)
            assert store.append(owner, [last]) == [], f"seed {seed}"
            other = PartialDelta(name, last.offset, last.version, last.tokens, (-9.0,) * len(last.tokens), STOP)
            assert store.append(owner, [other]) == [name]
            assert store.append("nobody", [last]) == [name]


def test_readers_do_not_wait_for_a_writer(tmp_path):
    with TrajectoryStore(tmp_path / "store", mixed_versions=True) as store:
        write(store, "a", random.Random(0), prompt=(1,))
        read = threading.Thread(
            target=lambda: (store.outlines(["a"]), store.packed([("a", True)]), store.finished(["a"]))
        )
        with store._database.transaction():
            read.start()
            read.join(20)
            assert not read.is_alive()


def test_what_is_not_finished_has_no_outline():
    with TrajectoryStore() as store:
        store.begin("r", 0, [Assignment("a", 0, (1,))])
        for ask in (lambda name: store.outlines([name]), lambda name: store.packed([(name, True)])):
            with pytest.raises(TrajectoryStateError, match="found partial, expected complete or consumed"):
                ask("a")
            with pytest.raises(UnknownTrajectoryError):
                ask("b")
        wrong: Any = ("x",)
        with pytest.raises(TrajectoryDataError, match="not a number"):
            store.append("r", [PartialDelta("a", 0, 0, (1,), wrong)])


def test_a_store_of_the_format_before_outlines_goes_on(tmp_path):
    path = tmp_path / "store"
    with TrajectoryStore(path, mixed_versions=True) as store:
        write(store, "a", random.Random(1), prompt=(1, 2))
        store.consume(["a"], 1)
        before = store.outlines(["a"]), store.packed([("a", True)])
        store.export(tmp_path / "before")
    raw = sqlite3.connect(path)
    raw.executescript("ALTER TABLE trajectory DROP COLUMN outline; PRAGMA user_version = 4;")
    raw.close()
    with TrajectoryStore(path) as store:
        assert (store.outlines(["a"]), store.packed([("a", True)])) == before
        store.export(tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()


def test_appends_that_wait_are_stored_together_each_with_its_answer(tmp_path):
    """Eight threads, one of them without a right to its trajectories, while the store is held; then all in one transaction."""
    with TrajectoryStore(tmp_path / "store", mixed_versions=True) as store:
        for number in range(8):
            store.begin(f"r{number}", 0, [Assignment(f"{number}.{sample}", number, (1,)) for sample in range(3)])
        answers, transactions = {}, []
        begin = store._database.transaction

        def counted():
            transactions.append(threading.get_ident())
            return begin()

        def append(number):
            deltas = [PartialDelta(f"{number}.{sample}", 0, 0, (7, number), (-1.0, -2.0), STOP) for sample in range(3)]
            answers[number] = store.append("nobody" if number == 5 else f"r{number}", deltas)

        threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
        with store._database.locked():
            store._database.transaction = counted
            for thread in threads:
                thread.start()
            while len(store._waiting) < 8:
                time.sleep(0.01)
        for thread in threads:
            thread.join(30)
        assert len(transactions) == 1
        assert answers == {number: ["5.0", "5.1", "5.2"] if number == 5 else [] for number in range(8)}
        assert (store.stats().finished, store.stats().refused, store.stats().tokens) == (21, 3, 42)
        for number in (0, 7):
            assert [one.tokens for one in store.finished([f"{number}.0"])] == [(7, number)]


def test_a_transaction_that_fails_takes_none_of_the_others_along(tmp_path):
    """Two appends wait; the work of both fails. Each is then carried out alone."""
    with TrajectoryStore(tmp_path / "store") as store:
        store.begin("r0", 0, [Assignment("a", 0, (1,)), Assignment("b", 0, (1,))])
        work, failures, ended = store._pool.append, [], {}

        def fails_once(appends, version):
            if not failures:
                failures.append(len(appends))
                raise OSError("no space left")
            return work(appends, version)

        def append(name):
            try:
                ended[name] = store.append("r0", [PartialDelta(name, 0, 0, (7,), (-1.0,), STOP)])
            except OSError as error:
                ended[name] = str(error)

        store._pool.append = fails_once
        threads = [threading.Thread(target=append, args=(name,)) for name in "ab"]
        with store._database.locked():
            for thread in threads:
                thread.start()
            while len(store._waiting) < 2:
                time.sleep(0.01)
        for thread in threads:
            thread.join(30)
        assert failures == [2]
        assert ended == {"a": [], "b": []}
        assert store.stats().finished == 2


def test_an_append_that_cannot_be_stored_fails_alone(tmp_path):
    """The one that did the work of both got the other's error, and its own tokens were not stored."""
    with TrajectoryStore(tmp_path / "store") as store:
        store.begin("r0", 0, [Assignment("a", 0, (1,))])
        wrong = [PartialDelta("a\ud800", 0, 0, (7,), (-1.0,))]  # as an id that no file can hold
        store._waiting.append(Append("r1", wrong, store._pool.pack(wrong), None))
        assert store.append("r0", [PartialDelta("a", 0, 0, (7,), (-1.0,), STOP)]) == []
        assert [one.tokens for one in store.finished(["a"])] == [(7,)]


def kept(store, version, *names):
    """Have trajectories trained on for a version."""
    store.begin("r0", 0, [Assignment(name, 0, (1,)) for name in names])
    store.append("r0", [PartialDelta(name, 0, 0, (7, 8), (-1.0, -2.0), STOP) for name in names])
    store.set_rewards(dict.fromkeys(names, 1.0))
    store.consume(names, version)


def archived(path):
    return [row["trajectory"] for row in read_trained(path)]


BOTH = pytest.mark.parametrize("suffix", ["packed", "jsonl"])


@BOTH
def test_each_archive_of_several_keeps_its_rows(tmp_path, suffix):
    """A store that went back to its first archive cut off whatever that had beyond the size of the second one."""
    one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    with TrajectoryStore(tmp_path / "store") as store:
        for version, (archive, names) in enumerate([(one, "abc"), (two, "d"), (one, "e"), (two, "fg"), (one, "h")], 1):
            kept(store, version, *names)
            assert store.trim(version, archive) == len(names)
        kept(store, 6, "i")
        assert store.export(one) == 1
        assert store.export(two) == 1, "which is not the archive any more, and is written anew"
    assert archived(one) == [*"abcehi"]
    assert archived(two) == ["i"]


@BOTH
@pytest.mark.parametrize("torn", [0, 9])
def test_the_archive_of_another_store_is_appended_to(tmp_path, suffix, torn):
    """A run begins anew: its first `trim` cut off all that the one before had archived."""
    archive = tmp_path / f"trained.{suffix}"
    with TrajectoryStore(tmp_path / "first") as store:
        kept(store, 1, "a", "b", "c")
        store.trim(1, archive)
    archive.write_bytes(archive.read_bytes()[: -torn or None])
    with TrajectoryStore(tmp_path / "second") as store:
        for version, name in enumerate(("d", "e"), 1):
            kept(store, version, name)
            store.trim(version, archive)
    assert archived(archive) == [*("ab" if torn else "abc"), "d", "e"]


@BOTH
def test_a_process_that_died_behind_another_stores_rows_left_its_own_once(tmp_path, monkeypatch, suffix):
    archive = tmp_path / f"trained.{suffix}"
    for name in ("first", "second"):
        with TrajectoryStore(tmp_path / name) as store:
            kept(store, 1, name)
            monkeypatch.setattr(store._ledger, "forget", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.trim(1, archive)
        with TrajectoryStore(tmp_path / name) as store:
            assert store.trim(1, archive) == 1
    assert archived(archive) == ["first", "second"]


def interrupted(*_):
    raise KeyboardInterrupt


@BOTH
def test_a_file_of_something_else_is_no_archive(tmp_path, suffix):
    notes = tmp_path / f"notes.{suffix}"
    notes.write_text("remember the milk\n")
    with TrajectoryStore(tmp_path / "store") as store:
        kept(store, 1, "a")
        with pytest.raises(StoreFormatError, match=re.escape(str(notes))):
            store.trim(1, notes)
        assert store.trim(1, tmp_path / f"trained.{suffix}") == 1
    assert notes.read_text() == "remember the milk\n"


@BOTH
def test_what_a_process_wrote_before_it_died_is_not_written_twice(tmp_path, suffix):
    """Whatever part of the first rows is there: the store does not know of them yet."""
    whole, archive = tmp_path / f"whole.{suffix}", tmp_path / f"trained.{suffix}"
    with TrajectoryStore(tmp_path / "first") as store:
        kept(store, 1, "a", "b")
        store.trim(1, whole)
    data = whole.read_bytes()
    for cut in range(0, len(data), 7):
        archive.write_bytes(data[:cut])
        with TrajectoryStore() as store:
            kept(store, 1, "a", "b")
            store.trim(1, archive)
        assert archive.read_bytes() == data, cut


@pytest.mark.parametrize("seed", range(4))
def test_packed_records_and_lines_are_the_same_rows(tmp_path, seed):
    """Some trimmed into the archive, some still in the store, after a process died while it wrote."""
    draw, names = random.Random(seed), [f"t{number}" for number in range(7)]
    found = {}
    for name in ("trained.jsonl", "trained.packed"):
        draw.seed(seed)
        archive = tmp_path / name
        with TrajectoryStore(tmp_path / f"store-{name}", mixed_versions=True) as store:
            for each in names:
                write(store, each, draw, prompt=(1, 2), exact=draw.random() < 0.6)
            store.consume(names[:3], 1)
            store.trim(1, archive)
            with archive.open("ab") as file:
                file.write(b"what came before the")
            store.consume(names[3:], 2)
            assert store.export(archive) == 4
        found[name] = list(read_trained(archive))
        assert [row["trajectory"] for row in read_trained(archive, tokens=False)] == names
        assert read_ends(archive, 2) == (found[name][:2], found[name][-2:])
        assert read_ends(archive, 9) == (found[name], found[name])
    assert found["trained.packed"] == found["trained.jsonl"], f"seed {seed}"


def test_another_file_than_the_archive_gets_only_what_was_not_trimmed(tmp_path):
    with TrajectoryStore(tmp_path / "store.db", mixed_versions=True) as store:
        for version, name in enumerate("ab", start=1):
            write(store, name, random.Random(0), prompt=(1,))
            store.consume([name], version)
        store.trim(1, tmp_path / "trained.packed")
        assert store.export(tmp_path / "elsewhere.packed") == 1
    assert [row["trajectory"] for row in read_trained(tmp_path / "elsewhere.packed")] == ["b"]
    assert [row["trajectory"] for row in read_trained(tmp_path / "trained.packed")] == ["a"]


def test_damage_between_the_ends_is_told_by_whoever_wants_the_ends(tmp_path, monkeypatch):
    draw, archive, names = random.Random(9), tmp_path / "trained.packed", [f"t{number}" for number in range(9)]
    with TrajectoryStore(tmp_path / "store", mixed_versions=True) as store:
        for each in names:
            write(store, each, draw, prompt=(1, 2), exact=False)
        store.consume(names, 1)
        assert store.export(archive) == len(names)
    first, last = read_ends(archive, 1)
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    with pytest.raises(StoreFormatError, match=r"trained\.packed, record [3-7]: found"):
        read_ends(archive, 1)
    monkeypatch.setattr(
        "tailrace.trajstore.archive.CHECKED_BYTES", len(data) - 1
    )  # of a large one the ends alone are read
    assert read_ends(archive, 1) == (first, last)


@pytest.mark.parametrize("seed", range(3))
def test_parquet_has_the_same_rows(tmp_path, seed):
    """An archive has row groups of any size; a damaged archive leaves no file."""
    parquet = pytest.importorskip("pyarrow.parquet")
    draw, names, archive = random.Random(seed), [f"t{number}" for number in range(9)], tmp_path / "trained.packed"
    with TrajectoryStore(mixed_versions=True) as store:
        for each in names:
            write(store, each, draw, prompt=(1, 2), exact=draw.random() < 0.6)
        store.consume(names, 1)
        store.export(archive)
    told = []
    size = draw.randrange(1, 40)
    assert write_parquet(archive, tmp_path / "all.parquet", told.append, group_tokens=size) == len(names)
    table = parquet.read_table(tmp_path / "all.parquet")
    rows = list(read_trained(archive))
    for found, row in zip(table.to_pylist(), rows, strict=True):
        assert found.pop("metadata") == json.dumps(row.pop("metadata"), sort_keys=True)
        assert found.pop("group") == str(row.pop("group"))
        assert found == row, f"seed {seed}"
    assert told == sorted(told)
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(StoreFormatError, match="record 9"):
        write_parquet(archive, tmp_path / "half.parquet", group_tokens=size)
    assert [path.name for path in tmp_path.iterdir() if "half" in path.name] == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"{" + data[1:], "at the beginning, expected b'TRLTRAJ1'"),
        (lambda data: data[:-1], "record 2: found the end of the file at byte"),
        (lambda data: data + b"1234", "record 3: found the end of the file at byte"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "record 2: found other bytes than were written, expected CRC"),
    ],
)
def test_a_damaged_archive_is_named_with_the_place(tmp_path, damage, said):
    archive = tmp_path / "trained.packed"
    with TrajectoryStore(mixed_versions=True) as store:
        for name in "ab":
            write(store, name, random.Random(0), prompt=(1,))
        store.consume(["a", "b"], 1)
        store.export(archive)
    assert len(list(read_trained(archive))) == 2
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(StoreFormatError, match=said) as found:
        list(read_trained(archive))
    assert str(archive) in str(found.value)


@pytest.mark.parametrize("name", ["trained.packed", "trained.jsonl"])
def test_a_file_that_is_being_written_has_the_rows_that_are_whole(tmp_path, name):
    """Whatever part of it is there: a `trim` appends, or a process died in it. `report`, `query` and `export` failed then."""
    archive, part = tmp_path / name, tmp_path / f"part.{name}"
    with TrajectoryStore(mixed_versions=True) as store:
        for each in "ab":
            write(store, each, random.Random(0), prompt=(1,))
        store.consume(["a", "b"], 1)
        store.export(archive)
    rows, data = list(read_trained(archive)), archive.read_bytes()
    seen = set()
    for size in range(len(data) + 1):
        part.write_bytes(data[:size])
        found = list(read_trained(part, growing=True))
        assert found == rows[: len(found)]
        assert [row["trajectory"] for row in read_trained(part, tokens=False, growing=True)] == list("ab"[: len(found)])
        assert read_ends(part, 2, growing=True) == (found, found)
        assert find_trained(part, "b", growing=True) == (rows[1] if len(found) == 2 else None)
        seen.add(len(found))
    assert seen == {0, 1, 2}
    part.write_bytes(data[:-1])
    assert write_parquet(part, tmp_path / "part.parquet", growing=True) == 1


@pytest.mark.parametrize(
    "spans",
    [[[0, 10**6, 0]], [[0, 10**6, 0], [0, 2 - 10**6, 0]], [[0, 1, 0]], [[0, 2.0, 0]], [[0, "2", 0]], [[2]], 7],
)
def test_an_archive_of_somebody_elses_takes_no_memory_beyond_its_size(tmp_path, spans):
    archive = tmp_path / "trained.packed"
    header = {"trajectory": "a", "consumed_version": 1, "metadata": {}, "spans": [[0, 1, 0], [1, 1, 1]]}
    tokens = PackedTokens(bytes(4), bytes(8), bytes(8))
    archive.write_bytes(MAGIC + record(header, tokens))
    assert find_trained(archive, "a")["versions"] == [0, 1]
    archive.write_bytes(MAGIC + record(header | {"spans": spans}, tokens))
    for read in (
        lambda: list(read_trained(archive)),
        lambda: find_trained(archive, "a"),
        lambda: read_ends(archive, 1),
    ):
        with pytest.raises(StoreFormatError, match="record 1: found other spans than of its 2 tokens"):
            read()


@pytest.mark.parametrize(
    ("header", "parts", "said"),
    [
        ([1], PackedTokens(b"", b"", b""), "found no trained trajectory"),
        ({"spans": []}, PackedTokens(b"", b"", b""), "found no trained trajectory"),
        ({"trajectory": "a", "spans": []}, PackedTokens(b"abc", b"", b""), "found 3, 0 and 0 bytes"),
        ({"trajectory": "a", "spans": [[0, 1, 0]]}, PackedTokens(b"", b"abcd", b"ab"), "found 0, 4 and 2 bytes"),
    ],
)
def test_a_record_that_no_store_wrote_is_named(tmp_path, header, parts, said):
    """Errors of a library were raised, without the file's name."""
    archive = tmp_path / "trained.packed"
    archive.write_bytes(MAGIC + record(header, parts))
    for read in (lambda: list(read_trained(archive)), lambda: find_trained(archive, "a")):
        with pytest.raises(StoreFormatError, match=f"trained.packed, record 1: {said}"):
            read()


def test_the_ends_of_damaged_lines_are_named(tmp_path):
    lines = tmp_path / "trained.jsonl"
    lines.write_text("{}\n")
    with pytest.raises(StoreFormatError, match=r"trained.jsonl, line 1: found no trained trajectory"):
        read_ends(lines, 1)
