"""`Child`: real processes that answer, stall, flood, ignore, die and have children."""

import os
import random
import signal
import subprocess
import time

import pytest

from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError

from .children import DEADLINE_S, DEAF, ECHO, HOSTILE, WITH_A_CHILD, descriptors, gone, python, wait_until

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


@pytest.fixture
def start():
    children = []

    def started(program, *words, **options):
        children.append(Child(python(program, *words), **PIPES | {"group": True} | options))
        return children[-1]

    yield started
    for child in children:
        child.kill()


def test_messages_of_all_sizes_come_back(start):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw, child = random.Random(seed), start(ECHO)
    for size in (0, 1, 65_535, 65_536, 3_000_000, *(draw.randrange(300_000) for _ in range(10))):
        message = {"text": "".join(draw.choices('aé😀\n"\\\u2028 ', k=size)), "size": size}
        child.send(message, DEADLINE_S)
        assert child.receive(DEADLINE_S) == {"echo": message}


def test_several_messages_may_be_on_their_way(start):
    child = start(ECHO)
    for number in range(100):
        child.send({"number": number}, DEADLINE_S)
    assert [child.receive(DEADLINE_S)["echo"]["number"] for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_message_is_said(start, kind):
    child = start(HOSTILE[kind] + "\nimport time; time.sleep(600)")
    with pytest.raises(LineError, match="more than 65,536 bytes" if kind in ("too long", "endless") else "found b"):
        child.receive(DEADLINE_S, most_bytes=1 << 16)


def test_half_a_line_is_not_a_line(start):
    child = start("import os; os.write(1, b'{\"a\": 1}')")
    with pytest.raises(ChildEndedError):
        child.receive(DEADLINE_S)
    assert child.wait(DEADLINE_S) == 0


def test_a_line_in_pieces_is_one(start):
    child = start(
        "import os, time\nfor part in (b'{\"a\"', b': 1', b'}', b'\\n{\"b\": 2}\\n'):\n"
        "    os.write(1, part)\n    time.sleep(0.05)"
    )
    assert [child.receive(DEADLINE_S), child.receive(DEADLINE_S)] == [{"a": 1}, {"b": 2}]


def test_a_child_that_stalls_meets_both_deadlines(start):
    child = start("print('{}', flush=True)\nimport time; time.sleep(600)")
    assert child.receive(DEADLINE_S) == {}
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(ChildTimeoutError, match=r"gave no line within 0\.1 s"):
        child.receive(0.1)
    with pytest.raises(ChildTimeoutError, match=r"took no input within 0\.1 s"):
        child.send({"text": "x" * 1_000_000}, 0.1)
    assert child.kill() == -signal.SIGKILL


def test_a_part_of_a_line_is_kept_over_a_deadline(start):
    child = start("import os, sys\nos.write(1, b'{\"a\": ')\nsys.stdin.readline()\nos.write(1, b'1}\\n')")
    with pytest.raises(ChildTimeoutError):
        child.line(1.0)
    child.send(b"go on\n", DEADLINE_S)
    assert child.receive(DEADLINE_S) == {"a": 1}


def test_a_killed_child_ends_both_ways(start):
    child = start(ECHO)
    child.send({}, DEADLINE_S)
    child.receive(DEADLINE_S)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildEndedError):
        child.receive(DEADLINE_S)
    with pytest.raises(ChildEndedError):
        child.send({"text": "x" * 1_000_000}, DEADLINE_S)
    assert child.wait(DEADLINE_S) == -signal.SIGKILL


def test_it_ends_when_it_is_asked(start):
    program = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('{}', flush=True)\ntime.sleep(600)"
    )
    child = start(program)
    child.receive(DEADLINE_S)
    assert child.end(DEADLINE_S) == 7


def test_one_that_ignores_sigterm_is_killed(start):
    child = start(DEAF)
    child.receive(DEADLINE_S)
    assert child.end(0.1, 0.1) == -signal.SIGKILL


def test_one_that_stands_still_is_killed(start):
    child = start(ECHO)
    os.kill(child.pid, signal.SIGSTOP)
    assert child.end(0.1) in (-signal.SIGTERM, -signal.SIGKILL)


def test_what_has_ended_keeps_its_status(start):
    child = start("raise SystemExit(3)")
    assert child.wait(DEADLINE_S) == 3
    assert (child.poll(), child.end(1.0), child.kill(), child.kill()) == (3, 3, 3, 3)


@pytest.mark.parametrize("how", ["end", "kill"])
def test_its_children_end_with_its_group(start, how):
    child = start(WITH_A_CHILD)
    grandchild = child.receive(DEADLINE_S)["child"]
    assert not gone(grandchild)
    child.end(DEADLINE_S) if how == "end" else child.kill()
    wait_until(lambda: gone(grandchild), "the grandchild ends")


def test_children_of_one_that_died_by_itself_end_too(start):
    child = start(WITH_A_CHILD)
    said = child.receive(DEADLINE_S)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    assert not gone(said["child"])
    child.kill()
    wait_until(lambda: gone(said["child"]), "the grandchild ends")


def test_a_child_without_a_group_leaves_ours_alone(start):
    child = start(ECHO, group=False)
    assert os.getpgid(child.pid) == os.getpgid(0)
    assert child.kill() == -signal.SIGKILL


def test_the_end_of_its_input_ends_a_server_at_once(start):
    child = start("import time\nfrom tailrace.processes import serve\nserve(lambda request: time.sleep(600))")
    child.send({}, DEADLINE_S)
    child.hang_up()
    assert child.wait(DEADLINE_S) == 0


def test_prints_of_a_server_and_of_its_children_garble_nothing(start, tmp_path):
    program = """
import os, subprocess, sys
from tailrace.processes import serve
def answer(request):
    print("noise")
    os.write(1, b"more noise\\n")
    subprocess.run([sys.executable, "-c", "print(repr(input()))"])
    return {"stdin": sys.stdin.read()}
serve(answer)
"""
    with (tmp_path / "said").open("wb") as said:
        child = start(program, stderr=said)
    child.send({}, DEADLINE_S)
    child.send({}, DEADLINE_S)
    assert [child.receive(DEADLINE_S), child.receive(DEADLINE_S)] == [{"stdin": ""}, {"stdin": ""}]
    child.kill()
    assert "more noise" in (tmp_path / "said").read_text()
    assert "EOFError" in (tmp_path / "said").read_text()  # the grandchild found no input


def test_no_descriptor_is_left(start):
    before = descriptors()
    for _ in range(5):
        start(ECHO).kill()
    assert descriptors() == before


def test_no_such_program():
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/program"])


def test_waiting_is_bounded(start):
    child = start(ECHO)
    began = time.monotonic()
    assert child.wait(0.05) is None
    assert time.monotonic() - began < DEADLINE_S


def test_after_a_kill_and_without_pipes_it_says_so():
    child = Child(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.kill()
    bare = Child(["sleep", "60"])
    try:
        for one, expected in ((child, "is closed"), (bare, "found no pipe")):
            for call in (lambda one=one: one.send({}, timeout_s=1), lambda one=one: one.receive(timeout_s=1)):
                with pytest.raises(ChildEndedError, match=expected):
                    call()
    finally:
        bare.kill()
