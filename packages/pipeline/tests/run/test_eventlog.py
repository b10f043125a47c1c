"""What the event log promises: a line for each instant, whole or not there at all, whatever happens to process and disk."""

import errno
import itertools
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.contracts.codec import encode
from tailrace.pipeline.errors import LogWriteError, RunDirectoryError
from tailrace.pipeline.run.eventlog import (
    HEADER,
    EventLog,
    Instant,
    LogFollower,
    encode_instant,
    read_events,
    read_log,
    take_over_log,
)

REFS = (c.TrajectoryRef("0.0", 0, 0, prompt=7), c.TrajectoryRef("0.1", 0, 1, c.Purpose.EVAL, "greedy", kept=3))
INSTANTS = [
    Instant(0.0, [], [c.Start(1, "trainer", "0"), c.Start(2, "replica", "r0", c.Place(1, ("10.0.0.1",)))]),
    Instant(0.5, [c.Up("replica", "r0", answers=2, partial={"0.1": (3, 40)})], []),
    Instant(
        1.25,
        [c.Stepped(1, {"loss": 0.5}, answers=9), c.Tick()],
        [
            c.Route(10, "r0", REFS, after=0, reasons=(c.CHOSEN, c.Reason(c.Why.MOVED, "r1", {"gain": 1.5}))),
            c.Publish(11, 1, {"relay0": "tcp://ä:1"}),
            c.Step(12, 2, (("0.0",), ("0.1",))),
        ],
    ),
    Instant(2.0, [c.Finished("r0", "0.0", 12, c.FinishReason.LENGTH, 10)], [c.Finish(13)]),
    Instant(3.0, [c.Turned("0.1", 2, 40, done=True, reason=c.FinishReason.LENGTH)], []),
]


def write(path, instants):
    with EventLog(path) as log:
        for instant in instants:
            log.append(instant.now, instant.events, instant.commands)


def test_a_log_reads_as_it_was_written_and_goes_on(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, INSTANTS[:3])
    write(path, INSTANTS[3:])
    assert list(read_log(path)) == INSTANTS
    assert path.read_bytes() == HEADER + b"".join(encode_instant(i.now, i.events, i.commands) for i in INSTANTS)
    assert list(read_events(path)) == [(i.now, event) for i in INSTANTS for event in i.events]


def test_a_log_without_a_newer_field_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        HEADER + b'{"t":1.0,"events":[{"is":"Turned","trajectory":"0.1","turn":2,"tokens":40,"done":true,"seconds":0.5,'
        b'"answers":7,"session":"restored"}],"commands":[]}\n'
    )
    (instant,) = read_log(path)
    assert instant.events == [c.Turned("0.1", 2, 40, True, 0.5, 7, c.SessionOrigin.RESTORED, c.FinishReason.STOP)]


def test_a_line_says_what_the_codec_says():
    for instant in INSTANTS:
        fields = json.loads(encode_instant(instant.now, tuple(instant.events), instant.commands))
        assert fields == json.loads(
            json.dumps({
                "t": instant.now,
                "events": [encode(event) for event in instant.events],
                "commands": [encode(command) for command in instant.commands],
            })
        )  # fmt: skip


def test_a_log_says_how_far_it_has_heard_each_member_and_one_without_is_read_too(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(0.0, [c.Tick()], [])
        log.append(1.0, [c.Discarded(3)], [], {"data 0": 17})
    assert [instant.heard for instant in read_log(path)] == [{}, {"data 0": 17}]
    assert path.read_bytes().splitlines()[1] == b'{"t":0.0,"events":[{"is":"Tick"}],"commands":[]}'


def test_every_cut_of_a_file_is_a_log_that_can_go_on(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, INSTANTS)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        left = whole[:size].count(b"\n") - 1
        assert list(read_log(path)) == INSTANTS[: max(left, 0)]
        write(path, INSTANTS[:1])
        assert list(read_log(path)) == [*INSTANTS[: max(left, 0)], INSTANTS[0]]


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, INSTANTS[:2])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"t":' + bytes(300_000))
    EventLog(path).close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "damage", [b"", b"\0\0\0", b"[]", b"7", b'{"t":1}', b'{"t":"x","events":[],"commands":[]}', b"\xff\xfe",
               b'{"t":1.0,"events":[{"is":"Tock"}],"commands":[]}', b'{"t":1.0,"events":[7],"commands":[]}'],
)  # fmt: skip
def test_damage_in_the_middle_names_the_line(tmp_path, damage):
    path = tmp_path / "events.jsonl"
    write(path, INSTANTS)
    lines = path.read_bytes().splitlines()
    lines[2] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    found = read_log(path)
    assert next(found) == INSTANTS[0]
    with pytest.raises(RunDirectoryError, match=r"events\.jsonl, line 3: found .* expected an instant") as error:
        next(found)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"t":0.0,"is":"Tick"}\n', "an event log of format 1"),
        (b'{"tailrace":"event log","format":3}\n{}\n', "an event log of format 3"),
        (b'{"now":0,"events":[]}\n', r"'\{\"now"),
        (b"years of work", "'years of work'"),
        (b"\0" * 4096, r"x00"),
        (HEADER.replace(b"event log", b"something"), "something"),
    ],
)
def test_what_is_no_log_of_this_version_is_refused_and_left_alone(tmp_path, content, found):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    for use in (EventLog, lambda path: list(read_log(path))):
        with pytest.raises(
            RunDirectoryError, match=rf"events\.jsonl: found .*{found}.* expected an event log of format 2"
        ):
            use(path)
    assert path.read_bytes() == content


def test_a_log_that_is_not_there_or_cannot_be_made(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"events\.jsonl: found no event log \(No such file"):
        list(read_log(tmp_path / "events.jsonl"))
    with pytest.raises(LogWriteError, match=r"nowhere/events\.jsonl: could not be written: No such file"):
        EventLog(tmp_path / "nowhere" / "events.jsonl")


@contextmanager
def small_disk(tmp_path):
    """A real file system of 64 KiB."""
    root = tmp_path / "disk"
    root.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", root], check=False).returncode:
        pytest.skip("may not mount a small file system")
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=True)


@contextmanager
def small_files(tmp_path):
    """No file may grow beyond 64 KiB: writes are cut short there, as they are on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        yield tmp_path
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def append_for_ever(log):
    for index in itertools.count():
        log.append(float(index), long_instant(index).events, [])


def long_instant(index):
    return Instant(float(index), [c.Down("replica", "r0", "x" * 1000)], [])


@pytest.mark.parametrize("full", [small_disk, small_files])
def test_a_full_disk_leaves_whole_lines_and_says_so(tmp_path, full):
    with full(tmp_path) as root:
        path = root / "events.jsonl"
        log = EventLog(path)
        with pytest.raises(LogWriteError) as error:
            append_for_ever(log)
        appended = list(read_log(path))
        assert appended == [long_instant(i) for i in range(len(appended))]
        assert 50 < len(appended) < 64
        assert path.read_bytes().endswith(b"\n")
        text = str(error.value)
        assert text.startswith(f"{path}: could not be written: ")
        assert text.endswith(f"; free space, then: tailrace run --resume {root}")
        assert error.value.errno in (errno.ENOSPC, errno.EFBIG)
        assert str(pickle.loads(pickle.dumps(error.value))) == text
        for _ in range(3):  # still full: it stays whole however often it is tried
            with pytest.raises(LogWriteError):
                log.append(99.0, long_instant(99).events, [])
        log.append(99.5, [], [])  # there is room for a short one
        assert list(read_log(path)) == [*appended, Instant(99.5, [], [])]
        log.close()


def test_room_again_and_the_same_log_goes_on(tmp_path):
    with small_disk(tmp_path) as root:
        (root / "ballast").write_bytes(bytes(40_000))
        path = root / "events.jsonl"
        with EventLog(path) as log:
            with pytest.raises(LogWriteError):
                append_for_ever(log)
            (root / "ballast").unlink()
            before = list(read_log(path))
            log.append(99.0, long_instant(99).events, [])
        assert list(read_log(path)) == [*before, long_instant(99)]


def test_a_log_begun_on_a_full_disk_can_be_begun_again(tmp_path):
    with small_disk(tmp_path) as root:
        with suppress(OSError):
            (root / "ballast").write_bytes(bytes(1 << 17))
        with pytest.raises(LogWriteError, match="No space left"):
            EventLog(root / "events.jsonl")
        (root / "ballast").unlink()
        write(root / "events.jsonl", INSTANTS)
        assert list(read_log(root / "events.jsonl")) == INSTANTS


def test_short_writes_are_completed_and_an_interrupt_between_them_leaves_nothing(tmp_path, monkeypatch):
    real, interrupt = os.write, []

    def grudging(file, data):
        if interrupt and len(data) < 20:
            raise KeyboardInterrupt
        return real(file, data[:7])

    monkeypatch.setattr(os, "write", grudging)
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for instant in INSTANTS:
        log.append(instant.now, instant.events, instant.commands)
    interrupt.append(True)
    with pytest.raises(KeyboardInterrupt):
        log.append(9.0, [c.Tick()], [])
    interrupt.clear()
    assert list(read_log(path)) == INSTANTS
    log.append(9.0, [c.Tick()], [])
    log.close()
    assert list(read_log(path)) == [*INSTANTS, Instant(9.0, [c.Tick()], [])]


@pytest.fixture
def synced(monkeypatch):
    """The sizes that files had when they were synced, None for directories."""
    sizes = []
    real = os.fsync

    def fsync(file):
        real(file)
        path = Path(f"/proc/self/fd/{file}").readlink()
        sizes.append(None if path.is_dir() else path.stat().st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    return sizes


def test_it_syncs_at_creation_for_what_outlives_it_after_a_while_and_at_the_end(tmp_path, synced, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path = tmp_path / "events.jsonl"
    with EventLog(path, sync_s=1.0) as log:
        assert synced == [len(HEADER), None]
        synced.clear()
        for index in range(5):
            log.append(index, [c.Tick()], [c.Score(index + 1, ("0.0",))])
        assert synced == []
        log.append(5.0, [], [c.Checkpoint(6, 1)])
        assert synced == [path.stat().st_size]
        log.append(6.0, [], [c.Finish(7)])
        assert synced[1:] == [path.stat().st_size]
        now += 0.9
        log.append(7.0, [], [])
        assert len(synced) == 2
        now += 0.1
        log.append(8.0, [], [])
        assert synced[2:] == [path.stat().st_size]
        log.append(9.0, [], [])
    assert synced[3:] == [path.stat().st_size]


def test_a_sync_that_fails_stops_the_log_until_it_is_opened_anew(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(0.0, [c.Tick()], [])
    with monkeypatch.context() as broken:

        def fsync(file):
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(os, "fsync", fsync)
        with pytest.raises(LogWriteError, match="Input/output error; mend that, then: tailrace run --resume"):
            log.append(1.0, [], [c.Checkpoint(1, 1)])
    for attempt in (lambda: log.append(1.0, [], []), log.sync):
        with pytest.raises(LogWriteError, match="Input/output error"):
            attempt()
    log.close()
    log.close()
    write(path, [Instant(2.0, [], [])])
    assert list(read_log(path)) == [Instant(0.0, [c.Tick()], []), Instant(2.0, [], [])]


def test_the_first_fault_is_told_not_that_of_closing(tmp_path, monkeypatch):
    def fsync(file):
        raise OSError(errno.EIO, "Input/output error")

    def work():
        with EventLog(tmp_path / "events.jsonl"):
            monkeypatch.setattr(os, "fsync", fsync)
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        work()


def test_an_instant_outlives_a_kill(tmp_path):
    code = (
        "import pathlib, os, signal, sys; from tailrace.pipeline.run.eventlog import EventLog;"
        "from tailrace.contracts import Tick; log = EventLog(pathlib.Path(sys.argv[1]));"
        "[log.append(float(i), [Tick()], []) for i in range(100)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "events.jsonl"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert [instant.now for instant in read_log(path)] == [float(i) for i in range(100)]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_stays_open_when_a_log_is_refused(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("no log\n")
    before = open_files()
    with pytest.raises(RunDirectoryError):
        EventLog(path)
    assert open_files() <= before  # garbage of other tests may be collected meanwhile


def test_a_follower_reads_each_instant_once_however_the_log_grows(tmp_path):
    """The reference is `read_log` of the whole; the log comes in pieces of random sizes."""
    drawn = random.Random(5)
    whole = tmp_path / "whole.jsonl"
    with EventLog(whole) as log:
        for number in range(60):
            commands = [c.Score(number, ("0.1", "0.2")), c.Finish(number)][: drawn.randrange(3)]
            log.append(float(number), [c.Tick()] * drawn.randrange(4), commands)
    content, path = whole.read_bytes(), tmp_path / "events.jsonl"
    follower, found, at = LogFollower(path), [], 0
    assert list(follower.instants()) == []
    while at < len(content):
        step = drawn.randrange(1, 200)
        with path.open("ab") as file:
            file.write(content[at : at + step])
        at += step
        found += follower.instants()
        assert follower.read_bytes == path.read_bytes().rfind(b"\n") + 1
        assert not follower.replaced()
    expected = list(read_log(whole))
    assert [Instant(each.now, each.events, each.commands) for each in found] == expected
    assert [each.kinds for each in found] == [each.kinds for each in expected]
    assert (follower.line, follower.size) == (61, len(content))


def test_an_instant_that_a_follower_does_not_take_comes_again(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for number in range(5):
            log.append(float(number), [c.Tick()], [])
    follower, found = LogFollower(path), []
    while not found or found[-1] < 4:
        for place, instant in enumerate(follower.instants()):
            if place:
                break
            found.append(instant.now)
    assert found == [0, 1, 2, 3, 4]


def test_a_follower_tells_that_its_log_is_another(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(0.0, [c.Tick()], [])
        log.append(1.0, [c.Tick()], [])
    follower = LogFollower(path)
    assert len(list(follower.instants())) == 2
    take_over_log(path)
    assert follower.replaced()
    assert list(follower.instants()) == []
    follower = LogFollower(path)
    list(follower.instants())
    path.write_bytes(HEADER)
    assert follower.replaced()
    path.unlink()
    assert follower.replaced()
    assert not LogFollower(path).replaced()
