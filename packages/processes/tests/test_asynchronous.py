"""`AsyncChild`: the same hardships in an event loop."""

import asyncio
import os
import signal
import tempfile

import pytest

from tailrace.processes import ChildEndedError, LineError
from tailrace.processes.asynchronous import AsyncChild
from tailrace.processes.child import SAID_BYTES

from .children import DEADLINE_S, ECHO, HOSTILE, WITH_A_CHILD, descriptors, gone, python, wait_until


def talk(program, conversation, **options):
    """Run a conversation with a child, and kill it."""

    async def run():
        child = await AsyncChild.start(python(program), **options)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await conversation(child)
        finally:
            child.kill()
            assert await child.reap() is not None

    return asyncio.run(run())


def test_messages_come_back():
    async def conversation(child):
        for size in (0, 70_000, 3_000_000):
            await child.send({"text": "é" * size})
            assert await child.receive() == {"echo": {"text": "é" * size}}

    talk(ECHO, conversation)


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_message_is_said(kind):
    async def conversation(child):
        with pytest.raises(LineError, match="more than 65,536 bytes" if kind in ("too long", "endless") else "found b"):
            await child.receive()

    talk(HOSTILE[kind] + "\nimport time; time.sleep(600)", conversation, line_bytes=1 << 16)


def test_a_message_that_is_too_long_is_not_sent():
    async def conversation(child):
        with pytest.raises(LineError, match="expected at most 100"):
            await child.send({"text": "x" * 100})
        await child.send({"n": 1})
        assert await child.receive() == {"echo": {"n": 1}}

    talk(ECHO, conversation, line_bytes=100)


def test_an_end_shows_before_the_loop_has_heard_of_it():
    async def conversation(child):
        assert not child.ended
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: child.ended, "it does not end")  # in which the loop does nothing
        assert child.status is None
        assert await child.reap() == -signal.SIGKILL
        assert child.ended

    talk(ECHO, conversation)


def test_bytes_follow_a_message():
    async def conversation(child):
        count = (await child.receive())["bytes"]
        assert await child.read(count) == b"\n\xff\n"

    talk("import os; os.write(1, b'{\"bytes\": 3}\\n\\n\\xff\\n')", conversation)


def test_why_it_ended_is_known():
    async def conversation(child):
        with pytest.raises(ChildEndedError):
            await child.receive()
        assert await child.reap() == 1
        assert child.status == 1
        assert child.last_words() == "; the last that it printed: ValueError: five"

    talk("raise ValueError('five')", conversation)


def test_what_has_ended_keeps_its_status():
    async def run():
        for _ in range(30):
            child = await AsyncChild.start(["/bin/sh", "-c", "exit 3"])
            with pytest.raises(ChildEndedError):
                await child.receive()
            child.kill()
            assert await child.reap() == 3

    asyncio.run(run())


def test_what_a_flood_leaves_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def conversation(child):
        for number in range(6):
            await child.send({"number": number})
            await child.receive()
            await asyncio.sleep(0.3)
        while os.fstat(child._said.fileno()).st_size > SAID_BYTES:
            await asyncio.sleep(0.1)
        assert child.last_words().endswith("; the last that it printed: the last of 5")

    talk(
        "import sys\nfrom tailrace.processes import serve\ndef answer(request):\n"
        "    sys.stderr.write('flood ' * 500_000 + f\"\\nthe last of {request['number']}\\n\")\n"
        "    sys.stderr.flush()\n    return {}\nserve(answer)",
        conversation,
    )


def test_last_words_that_are_no_text():
    async def conversation(child):
        await child.reap()
        assert child.last_words() == "; the last that it printed: \ufffd" + "x" * 199

    talk("import os; os.write(2, b'first\\n\\xff' + b'x' * 1000 + b'\\n\\n')", conversation)


def test_it_ends_when_its_input_does_and_its_children_with_it():
    program = WITH_A_CHILD.replace("time.sleep(600)\n", "import sys; sys.stdin.read(); sys.exit(5)\n")

    async def conversation(child):
        grandchild = (await child.receive())["child"]
        assert await child.end(DEADLINE_S) == 5
        wait_until(lambda: gone(grandchild), "the grandchild ends")

    talk(program, conversation)


def test_one_that_stands_still_is_killed():
    async def conversation(child):
        grandchild = (await child.receive())["child"]
        os.kill(child.pid, signal.SIGSTOP)
        assert await child.end(0.1) == -signal.SIGKILL
        wait_until(lambda: gone(grandchild), "the grandchild ends")

    talk(WITH_A_CHILD, conversation)


def test_it_takes_no_more_once_it_has_ended():
    async def conversation(child):
        await child.reap()
        with pytest.raises(ConnectionError):
            await child.send({"text": "x" * 1_000_000})

    talk("pass", conversation)


def test_a_cancelled_wait_leaves_it_usable():
    async def conversation(child):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.receive(), 0.05)
        await child.send({"n": 1})
        assert await child.receive() == {"echo": {"n": 1}}

    talk(ECHO, conversation)


def test_no_descriptor_is_left():
    before = descriptors()

    async def conversation(child):
        del child

    for _ in range(3):
        talk(ECHO, conversation)
    with pytest.raises(FileNotFoundError):
        asyncio.run(AsyncChild.start(["/no/such/program"]))
    assert descriptors() == before


# Its child holds the input open, as one does that waits for its owner's end.
HOLDS_ITS_INPUT = """
import os, sys, time
path = sys.argv[1]
if os.fork() == 0:
    os.closerange(1, 1024)
    os.read(0, 1)
    os._exit(0)
with open(path + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(path + ".part", path)
time.sleep(600)
"""


@pytest.mark.parametrize("turns", range(1, 9))
def test_who_is_cancelled_while_it_starts_ends_soon_and_leaves_nothing(turns, tmp_path):
    """In whatever turn of the event loop, and however long that stood still: asyncio waits for pipes that nobody closes."""
    path = tmp_path / "pid"

    async def run():
        before = descriptors()
        starting = asyncio.create_task(AsyncChild.start(python(HOLDS_ITS_INPUT, path)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 1:
            wait_until(path.exists, "the child to run")
        starting.cancel()
        done, _ = await asyncio.wait({starting}, timeout=DEADLINE_S / 4)
        assert done, "it waits for ever"
        if not starting.cancelled():  # it had started
            starting.result().kill()
            await starting.result().reap()
        await asyncio.sleep(0.1)
        assert descriptors() <= before
        return path.read_text() if path.exists() else ""

    pid = asyncio.run(run())
    assert not pid or gone(int(pid))
