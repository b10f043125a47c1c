"""Real worker processes, really killed and stopped: no answered turn is lost, and nothing outlives its owner."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tailrace.environment import EnvironmentPool, SessionLostError

FILE = Path(__file__).with_name("environments.py")


def pool(name, options=None, **settings):
    return EnvironmentPool(f"{FILE}:{name}", options, **{"call_s": 60, "start_s": 60, **settings})


def run(test, limit_s=200):
    async def limited():
        asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
        async with asyncio.timeout(limit_s):
            await test()
        assert complaints == []

    complaints = []
    asyncio.run(limited())


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(("name", "restored", "replayed"), [("Sum", 1, 0), ("Replayed", 0, 1)])
def test_an_idle_session_goes_on_after_its_worker_was_killed(name, restored, replayed):
    async def test():
        async with pool(name, {"greeting": "hello"}) as sums:
            opened = await sums.open({"begin": 10})
            await sums.step(opened.session, "1")
            await sums.step(opened.session, "2")
            (pid,) = sums.pids
            os.kill(pid, signal.SIGKILL)
            after = await sums.step(opened.session, "3")
            assert (after.observation, after.metadata["pid"] == pid) == ("16", False)
            counts = sums.counts
            assert (counts.restored, counts.replayed, counts.lost, counts.workers_lost) == (restored, replayed, 0, 1)
            assert counts.steps == 3

    run(test)


@pytest.mark.parametrize("word", ["die-once", "stand-still-once"])
def test_a_call_is_made_again_when_its_worker_dies_or_stands_still(word, tmp_path):
    async def test():
        async with pool("Told", silent_s=5.0) as told:
            opened, other = [await told.open({"begin": 5}) for _ in range(2)]
            await told.step(opened.session, "2")
            (pid,) = told.pids
            beside = asyncio.create_task(told.step(other.session, "sleep 0.2"))
            answer = await told.step(opened.session, f"{word} {tmp_path / 'once'}")
            assert answer.observation == "8"
            assert (await beside).observation == "sleep"
            assert (await told.step(other.session, "1")).observation == "6"
            assert gone(pid)
            assert (told.counts.workers_lost, told.counts.lost) == (1, 0)

    run(test)


def test_a_call_that_always_kills_its_worker_is_given_up_and_the_others_go_on():
    async def test():
        async with pool("Told", workers=2) as told:
            opened, other = [await told.open({"begin": 5}) for _ in range(2)]
            with pytest.raises(SessionLostError, match="died 3 times in one call: it ended with status -9"):
                await told.step(opened.session, "die")
            assert (await told.step(other.session, "1")).observation == "6"
            assert (told.counts.workers_lost, told.counts.lost) == (3, 1)

    run(test)


def test_calls_beside_each_other_share_the_blame_for_deaths_from_outside():
    """Each alone would be given up after three."""

    async def test():
        async with pool("Told", attempts=3) as told:
            opened = [await told.open({"begin": 5}) for _ in range(4)]
            for each in opened:
                await told.step(each.session, "2")
            calls = [asyncio.create_task(told.step(each.session, "sleep 1")) for each in opened]
            for _ in range(6):
                while not all(told.worker_in_call(each.session) in told.pids for each in opened):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                pid = told.worker_in_call(opened[0].session)
                os.kill(pid, signal.SIGKILL)
                while told.pids == (pid,):
                    await asyncio.sleep(0.01)
            assert [(await call).observation for call in calls] == ["sleep"] * 4
            assert [(await told.step(each.session, "1")).observation for each in opened] == ["8"] * 4
            assert (told.counts.workers_lost, told.counts.lost) == (6, 0)

    run(test)


def test_a_session_that_cannot_be_brought_back_is_told_lost():
    async def test():
        async with pool("Fragile") as fragile:
            opened = await fragile.open({})
            await fragile.step(opened.session, "1")
            os.kill(fragile.pids[0], signal.SIGKILL)
            with pytest.raises(SessionLostError, match="it has neither a snapshot nor `replayable`"):
                await fragile.step(opened.session, "1")
            assert (fragile.counts.lost, fragile.open_sessions) == (1, 0)
        async with pool("Drifting") as drifting:
            opened = await drifting.open({})
            await drifting.step(opened.session, "1")
            os.kill(drifting.pids[0], signal.SIGKILL)
            with pytest.raises(SessionLostError, match=r"played again, it answered turn 1 with '.* 1' instead of"):
                await drifting.step(opened.session, "1")
            assert (drifting.counts.lost, drifting.counts.replayed) == (1, 0)

    run(test)


def test_a_worker_that_writes_garbage_is_replaced():
    async def test():
        async with pool("Garbling") as garbling:
            opened = await garbling.open({})
            with pytest.raises(SessionLostError, match="it wrote something that is no reply"):
                await garbling.step(opened.session, "1")
            assert garbling.counts.workers_lost == 3
            again = await garbling.open({})
            await garbling.close(again.session)

    run(test)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["Sum", "Replayed"])
def test_a_hundred_random_kills_lose_no_turn(name):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown on failure
    rng = random.Random(seed)

    async def test():
        async with pool(name, workers=3, sessions=24, attempts=10, silent_s=3.0) as sums:
            kills, over = 0, asyncio.Event()

            async def strike():
                nonlocal kills
                while kills < 100:
                    await asyncio.sleep(rng.uniform(0.0, 0.05))
                    if len(sums.pids) < 3:  # on a busy machine workers start slowly; one is always left
                        continue
                    for pid in rng.sample(sums.pids, 2):
                        with contextlib.suppress(ProcessLookupError):  # it was struck a moment ago
                            os.kill(pid, signal.SIGSTOP if kills % 25 == 24 else signal.SIGKILL)
                            kills += 1
                over.set()

            async def talk(place):
                turns = 0
                while not over.is_set():
                    opened, total = await sums.open({"begin": place}), place
                    for _ in range(20):
                        number = rng.randrange(100)
                        total += number
                        assert (await sums.step(opened.session, str(number))).observation == str(total)
                        turns += 1
                        await asyncio.sleep(rng.uniform(0.0, 0.02))
                    assert (await sums.step(opened.session, "stop")).reward == total
                    await sums.close(opened.session)
                    turns += 1
                return turns

            *turns, _ = await asyncio.gather(*(talk(place) for place in range(24)), strike())
            counts = sums.counts
            assert counts.steps == sum(turns)
            assert (counts.lost, counts.timeouts, counts.raised, counts.nonsense) == (0, 0, 0, 0)
            assert 50 < counts.workers_lost <= 100  # some were struck twice
            assert counts.restored + counts.replayed > 0

    run(test)


OWNER = """
import asyncio, sys
from tailrace.environment import EnvironmentPool

async def main():
    async with EnvironmentPool({reference!r}, workers=2) as pool:
        session, _ = await pool.open({{}})
        child = (await pool.step(session, "child")).observation
        print(*pool.pids, child, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_and_their_children_end_with_a_killed_owner(stopped):
    code = textwrap.dedent(OWNER).format(reference=f"{FILE}:Told")
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        *workers, child = map(int, owner.stdout.readline().split())
        assert len(workers) == 2
        if stopped:
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    awaited = [*workers, child]
    deadline = time.monotonic() + 60
    while not all(map(gone, awaited)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in awaited if not gone(pid)] == []


def test_closing_a_pool_ends_workers_that_stand_still_and_what_they_started():
    async def test():
        async with pool("Told", workers=2) as told:
            opened = await told.open({})
            child = int((await told.step(opened.session, "child")).observation)
            pids = told.pids
            os.kill(pids[0], signal.SIGSTOP)
        while not all(map(gone, [*pids, child])):
            await asyncio.sleep(0.01)

    run(test)
