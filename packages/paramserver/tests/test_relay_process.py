import dataclasses
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from tailrace.paramserver import (
    NotEnoughSharedMemory,
    PortInUse,
    Publisher,
    RelayNameTaken,
    RelayProcess,
    RelayReader,
    RelayServer,
    RelayStartFailed,
    RelayTimeout,
    RelayUnreachable,
    left_segments,
    relay_status,
    remove_left,
)
from tailrace.paramserver.machine import segments as shared
from tailrace.paramserver.machine.host import HOST, ThisHost
from tailrace.paramserver.machine.segments import PREFIX, MappedSegment, is_name, living_owner, read_owner, unlink
from tailrace.paramserver.manifest import Manifest, TensorSpec
from tailrace.paramserver.relays import process as relay_process
from tailrace.paramserver.wire.authentication import connect
from tailrace.processes import ProcessId

PARENT = """
import os, sys, threading, time
from tailrace.paramserver import RelayProcess
def start():
    relay = RelayProcess.start(sys.argv[1], token=os.environ["T"])
    print(relay.pid, relay.address, flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(120)
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_segments_of_a_crashed_relay_are_removed_by_the_next(spawn, token, relay_name, weights):
    crashed = spawn(relay_name)
    with Publisher(crashed.address, token=token) as publisher:
        for version in (0, 1):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
    crashed.kill()
    follower = spawn(relay_name)
    assert len(follower.cleaned) == 3  # two slots and the owner's record
    with RelayReader(follower.address, token=token) as reader:
        assert reader.latest() is None  # it serves nothing before it has a complete version of its own
    follower.close()
    with pytest.raises(FileNotFoundError):
        MappedSegment.attach(follower.cleaned[0])


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is not listed here")
def test_a_closed_relay_leaves_nothing(spawn, serve, token, weights):
    for start in (spawn, serve):
        relay = start()
        channel, welcome = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
        channel.close()
        names = welcome["owner_segment"].removesuffix("o") + "*"
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(0, weights(0))
            publisher.wait(0, 20)
        assert len(list(Path("/dev/shm").glob(names))) == 2
        relay.close()
        assert list(Path("/dev/shm").glob(names)) == []


def test_a_name_is_taken_while_its_relay_lives(spawn, serve, token, relay_name):
    relay = spawn(relay_name)
    with pytest.raises(RelayNameTaken, match=f"pid {relay.pid}"):
        serve(relay_name)
    with pytest.raises(RelayNameTaken, match=f"pid {relay.pid}"):
        spawn(relay_name)
    assert relay_status(relay.address, token=token).pid == relay.pid


def test_a_suspended_relay_that_outlived_its_starter_is_replaced(spawn, token, relay_name, until):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, relay_name], stdout=subprocess.PIPE, text=True, env={**os.environ, "T": token}
    )
    pid = int(parent.stdout.readline().split()[0])
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    with pytest.raises(RelayNameTaken, match=f"pid {pid}"):
        spawn(relay_name)
    follower = spawn(relay_name, replace=True)
    assert len(follower.cleaned) <= 1  # the owner's record, unless the old one's janitor was first
    until(lambda: not alive(pid), "whoever inherited it to reap it")
    assert spawn(replace=True).alive()  # nobody has the name
    os.kill(follower.pid, signal.SIGSTOP)
    with pytest.raises(RelayNameTaken, match=f"pid {follower.pid}"):
        RelayProcess.clear(relay_name)
    assert len(RelayProcess.clear(relay_name, kill=True)) == 1
    until(lambda: not follower.alive(), "its end")
    assert RelayProcess.clear(relay_name) == []


def test_a_relay_of_this_very_process_is_not_killed(serve, spawn, relay_name):
    serve(relay_name)
    with pytest.raises(RelayNameTaken, match=f"pid {os.getpid()}"):
        RelayProcess.clear(relay_name, kill=True)
    with pytest.raises(RelayNameTaken, match=f"pid {os.getpid()}"):
        spawn(relay_name, replace=True)


def test_a_garbled_owner_record_counts_as_a_leftover(serve, token, relay_name):
    name = serve(relay_name)._owner.owner_name
    serve_again = relay_name + "x"
    other = RelayServer(serve_again, token=token)
    record = other._owner.owner_name
    other.close()
    assert name != record
    segment = MappedSegment.create(record, 100)
    segment.view[:10] = b'{"pid": tr'
    segment.close()
    assert serve(serve_again).cleaned == [record]


def test_a_port_in_use(spawn, serve, token):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for start in (spawn, serve):
            with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use"):
                start(port=port)


def test_wrong_options_fail_at_the_start(spawn, serve, relay_name):
    with pytest.raises(ValueError, match="found 1 slots"):
        serve(relay_name, slots=1)
    with pytest.raises(RelayStartFailed, match="found 1 slots"):
        spawn(relay_name, slots=1)
    assert serve(relay_name).cleaned == []


def test_one_that_prints_what_is_no_answer_is_killed_and_told(monkeypatch, tmp_path, token, relay_name):
    (tmp_path / "talkative.py").write_text("import time\nprint('a library says hello', flush=True)\ntime.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(relay_process, "_MODULE", "talkative")
    with pytest.raises(RelayStartFailed, match="printed what is no answer: found b'a library says hello"):
        RelayProcess.start(relay_name, token=token)


def test_too_little_shared_memory(serve, token, weights):
    relay, huge = serve(), 2**50
    manifest = Manifest(1, 1, 2**31, huge, (TensorSpec("w", "uint8", (huge,), 0, huge),))
    channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    with pytest.raises(NotEnoughSharedMemory, match="enlarge /dev/shm"):
        channel.request({"op": "offer", "manifest": manifest.to_wire()}, 20)
    channel.close()
    with Publisher(relay.address, token=token) as publisher:  # and it goes on
        publisher.publish(2, weights(2))
        publisher.wait(2, 20)


def test_the_relay_dies_with_its_parent_not_with_a_thread_of_it(token, relay_name, until):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, relay_name], stdout=subprocess.PIPE, text=True, env={**os.environ, "T": token}
    )
    pid, address = parent.stdout.readline().split()
    assert relay_status(address, token=token).pid == int(pid)  # the thread that started it is gone by now
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not alive(int(pid)), "the relay to end")
    follower = RelayServer(relay_name, token=token)
    assert follower.cleaned == []  # it ended in order
    follower.close()


def segments(pid):
    """Names of the segments that a process has as its relay's."""
    return [
        f"{path.parent.name}/{path.name}"
        for owner in Path("/dev/shm").glob("tailrace-*/*-o")
        if f'"pid": {pid},'.encode() in owner.read_bytes()
        for path in owner.parent.glob(f"{owner.name[:-2]}-*")
    ]


needs_listing = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system does not list shared memory")


@needs_listing
def test_nothing_is_left_if_a_relay_and_its_starter_are_killed_together(token, relay_name, until):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, relay_name], stdout=subprocess.PIPE, text=True, env={**os.environ, "T": token}
    )
    pid = int(parent.stdout.readline().split()[0])
    assert segments(pid)
    os.kill(pid, signal.SIGSTOP)  # so that it cannot clear up itself
    parent.kill()
    parent.wait()
    os.kill(pid, signal.SIGKILL)
    parent.stdout.close()
    until(lambda: not segments(pid), "its segments to go")


@needs_listing
def test_what_a_dead_relay_left_is_listed_and_removed_and_what_a_living_one_has_is_not(spawn, token, weights):
    dead, living = spawn(), spawn()
    for relay in (dead, living):
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(1, weights(1))
            publisher.wait(1, 20)
    dead.kill()
    (left,) = [each for each in left_segments() if dead.name in each.owner]
    assert left.owner == f"relay {dead.name}, process {dead.pid}"
    assert set(left.names) == set(segments(dead.pid))
    assert len(left.names) >= 2
    assert left.nbytes > sum(len(tensor) for _, tensor in weights(1))
    assert not any(living.name in each.owner for each in left_segments())
    assert set(remove_left(left)) == set(left.names)
    assert not Path("/dev/shm", left.names[0]).exists()
    assert remove_left(left) == []
    base = segments(living.pid)[0].rpartition("-")[0]
    assert remove_left(dataclasses.replace(left, base=base)) == []
    assert segments(living.pid)


def test_the_token_is_nowhere_to_be_seen(spawn, token):
    relay = spawn()
    if Path("/proc").is_dir():
        assert token.encode() not in Path(f"/proc/{relay.pid}/cmdline").read_bytes()
        assert token.encode() not in Path(f"/proc/{relay.pid}/environ").read_bytes()
    assert token not in repr(relay)


def test_from_the_command_line(token, relay_name):
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tailrace.paramserver.relay", "--name", relay_name],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TAILRACE_RELAY_TOKEN": token},
    )
    address = json.loads(process.stdout.readline())["address"]
    assert address.startswith("127.0.0.1:")
    assert relay_status(address, token=token).name == relay_name
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    process.stdout.close()


@pytest.mark.parametrize("beginning", ["-", "--", "--host="])
def test_a_name_may_look_like_an_option(spawn, token, relay_name, beginning):
    relay = spawn(beginning + relay_name)
    assert relay_status(relay.address, token=token).name == beginning + relay_name
    assert relay_process._is_relay(relay.pid, beginning + relay_name)


def test_no_token_no_relay(relay_name):
    with pytest.raises(PermissionError, match="empty token"):
        RelayProcess.start(relay_name, token="")


def test_a_segment_that_exists_is_not_taken_over(relay_name):
    name = f"{PREFIX}{relay_name}"[:30]
    segment = MappedSegment.create(name, 10)
    try:
        with pytest.raises(FileExistsError):
            MappedSegment.create(name, 10)
        reading = MappedSegment.attach(name)
        with pytest.raises(TypeError):
            reading.view[0] = 1
        reading.close()
    finally:
        segment.close()
        assert unlink(name)


def test_one_whose_parent_died_before_it_served_ends_without_a_complaint(token, relay_name):
    command = [sys.executable, "-m", "tailrace.paramserver.relay", "--name", relay_name, "--parent-pid", "1"]
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    relay.stdout.close()  # as the parent's death does
    relay.stdin.write(token.encode() + b"\n")
    relay.stdin.close()
    try:
        assert relay.stderr.read() == b""
        assert relay.wait(60) == 0
    finally:
        relay.kill()
        relay.wait()
        relay.stderr.close()


NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root acts as another user")


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A directory in which everybody may make files, in place of the system's."""
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(shared, "_SHARED_MEMORY", tmp_path)
    return tmp_path


def squat_with_a_file(path):
    path.write_text("mine")


def squat_with_a_link(path):
    target = path.with_name("elsewhere")
    target.mkdir(mode=0o777)
    path.symlink_to(target)


def squat_with_a_directory(path):
    path.mkdir()
    path.chmod(0o777)
    os.chown(path, NOBODY, NOBODY)


@needs_listing
@pytest.mark.parametrize(
    "squat", [squat_with_a_file, squat_with_a_link, pytest.param(squat_with_a_directory, marks=as_root)]
)
def test_a_name_that_another_user_took_beforehand_stops_no_relay(memory, serve, token, relay_name, weights, squat):
    taken = memory / f"{PREFIX}{os.getuid()}"
    squat(taken)
    relay = serve(relay_name)
    with pytest.raises(RelayNameTaken):
        serve(relay_name)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        assert reader.same_host
        assert reader.latest() == 0
    relay.close()
    (own,) = memory.glob(f"{taken.name}-*")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert [path.name for path in own.iterdir()] == ["lock"]
    assert not taken.is_dir() or list(taken.iterdir()) == []


@needs_listing
def test_nobody_else_may_enter_the_directory_of_segments(memory, serve):
    wide = memory / f"{PREFIX}{os.getuid()}"
    wide.mkdir()
    wide.chmod(0o777)
    serve()
    assert stat.S_IMODE(wide.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in wide.iterdir()} == {0o600}
    assert list(memory.iterdir()) == [wide]


def test_a_lock_that_is_not_given_back_is_not_waited_for_without_end(monkeypatch, serve):
    monkeypatch.setattr(shared, "_LOCK_S", 0.3)
    serve()
    with (shared._folder() / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RelayTimeout, match="another process of yours has it"):
            serve()
    serve()


@pytest.fixture
def victim():
    """Starts processes of this user."""
    started = []

    def start(*arguments, **options):
        started.append(subprocess.Popen(["/bin/sh", "-c", "read line", *arguments], stdin=subprocess.PIPE, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def record(relay, process, fields=()):
    """The record of a relay that says that a process is it."""
    segment = MappedSegment.create(shared._owner_name(shared._base(relay)), 4096)
    found = vars_of(ProcessId.of(process.pid)) | {"nonce": "x", "relay": relay} | dict(fields)
    text = json.dumps(found).encode()
    segment.view[: len(text)] = text
    segment.close()
    return segment.name


def vars_of(process):
    return {field.name: getattr(process, field.name) for field in dataclasses.fields(process)}


@needs_listing
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("tailrace.paramserver.relay", "--name", "{name}"),
        ("-m", "tailrace.paramserver.relay", "--name", "another"),
        ("-m", "tailrace.paramserver.relay", "--name={name}x"),
    ],
)
def test_what_is_no_relay_of_the_name_is_not_killed(victim, spawn, relay_name, arguments):
    process = victim(*(argument.format(name=relay_name) for argument in arguments))
    name = record(relay_name, process)
    try:
        with pytest.raises(RelayNameTaken, match=f"pid {process.pid}"):
            spawn(relay_name, replace=True)
        with pytest.raises(RelayNameTaken):
            RelayProcess.clear(relay_name, kill=True)
        assert process.poll() is None
    finally:
        unlink(name)


@needs_listing
@as_root
def test_a_record_that_another_user_wrote_says_nothing(victim, spawn, relay_name):
    process = victim("-m", "tailrace.paramserver.relay", "--name", relay_name)
    name = record(relay_name, process)
    os.chown(Path("/dev/shm", name), NOBODY, NOBODY)
    assert living_owner(relay_name) is None
    assert read_owner(name) is not None
    assert spawn(relay_name, replace=True).cleaned == [name]
    assert process.poll() is None


@needs_listing
@as_root
def test_another_users_relay_is_not_killed(victim, relay_name):
    arguments = ("-m", "tailrace.paramserver.relay", "--name", relay_name)
    ours, others = victim(*arguments), victim(*arguments, user=NOBODY)
    assert [relay_process._is_relay(process.pid, relay_name) for process in (ours, others)] == [True, False]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("tailrace-1000/0123456789ab-o", True),
        ("tailrace-1000-x1_y/0123456789ab-12", True),
        ("tailrace-0123456789ab-3", True),
        ("tailrace-master-o", True),
        ("other-1000/0123456789ab-o", False),
        ("tailrace-1000/../../etc/passwd", False),
        ("tailrace-1000/..", False),
        ("tailrace-1000/.hidden", False),
        ("tailrace-1000/a/b", False),
        ("tailrace-1000//b", False),
        ("/dev/shm/tailrace-1000/a", False),
        ("tailrace-1000/a\n", False),
        ("tailrace-1000/a\0", False),
        ("tailrace-\u0663/a", False),
        ("tailrace-", False),
        ("", False),
    ],
)
def test_a_relay_names_segments_and_nothing_else(name, plain):
    assert is_name(name) is plain


class Troubled(ThisHost):
    """A host that fails once as a connection comes: to accept it, or to start its thread."""

    def __init__(self, error):
        self.error, self.failed = error, threading.Event()

    def once(self, kind):
        if isinstance(self.error, kind) and not self.failed.is_set():
            self.failed.set()
            raise self.error

    def spawn(self, run, name):
        if "127.0.0.1" in name:
            self.once(RuntimeError)
        return super().spawn(run, name)

    def listen(self, host, port):
        listener = super().listen(host, port)
        accept = listener.accept

        def accepted():
            found = accept()
            if found is not None:
                try:
                    self.once(OSError)
                except OSError:
                    found[0].close()
                    raise
            return found

        listener.accept = accepted
        return listener


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        *(OSError(code, "trouble") for code in (errno.EPROTO, errno.EHOSTUNREACH)),
    ],
    ids=str,
)
def test_a_connection_that_cannot_be_served_leaves_the_others(serve, token, error):
    """The relay lived, and answered nobody any more."""
    host = Troubled(error)
    relay = serve(machine=host)
    with pytest.raises((RelayUnreachable, RelayTimeout)):
        relay_status(relay.address, token=token, timeout_s=5)
    assert host.failed.is_set()
    assert relay_status(relay.address, token=token, timeout_s=20).name == relay.name


def test_a_name_of_any_length_is_claimed_and_given_back(token):
    with RelayServer("long" * 2000, token=token) as relay, pytest.raises(RelayNameTaken):
        RelayServer(relay.name, token=token)
    assert RelayProcess.clear(relay.name) == []


@pytest.mark.parametrize("around", ["{}\n", "\n{}", " {} "])
def test_a_token_from_a_file_has_an_end_of_line(token, around):
    """The relay's process took it without, and called the starter's own token wrong."""
    relay = RelayProcess.start(f"test-{uuid.uuid4().hex}", token=around.format(token))
    try:
        for each in (token, around.format(token)):
            assert relay_status(relay.address, token=each).name == relay.name
    finally:
        relay.close()
