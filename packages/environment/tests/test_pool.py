"""The pool's sessions: their answers, back-pressure, deadlines, and environments that misbehave."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tailrace.environment import (
    ActionTooLongError,
    EnvironmentPool,
    NonsenseError,
    PoolClosedError,
    PoolFullError,
    RaisedError,
    SessionError,
    SessionTimeoutError,
    SetupError,
    UnknownSessionError,
    examine_environment,
)

FILE = Path(__file__).with_name("environments.py")


def pool(name, options=None, **settings):
    return EnvironmentPool(f"{FILE}:{name}", options, **{"call_s": 30, "start_s": 60, **settings})


def run(test):
    async def limited():
        asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
        async with asyncio.timeout(120):
            await test()
        assert complaints == []

    complaints = []
    asyncio.run(limited())


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


def test_many_sessions_of_a_worker_keep_apart():
    async def test():
        async with pool("Sum", {"greeting": "hello"}, workers=2, sessions=20) as sums:
            opened = [await sums.open({"begin": 100 * place}) for place in range(20)]
            assert {each.observation for each in opened} == {"hello"}
            for turn in range(3):
                answers = await asyncio.gather(*(sums.step(each.session, str(turn)) for each in opened))
                added = sum(range(turn + 1))
                assert [int(each.observation) for each in answers] == [100 * place + added for place in range(20)]
                assert {each.metadata["pid"] for each in answers} == set(sums.pids)
            last = await sums.step(opened[3].session, "stop")
            assert (last.observation, last.done, last.reward) == ("", True, 303.0)
            with pytest.raises(SessionError, match="which is done"):
                await sums.step(opened[3].session, "1")
            for each in opened:
                await sums.close(each.session)
                await sums.close(each.session)
            assert (sums.open_sessions, sums.counts.opened, sums.counts.steps) == (0, 20, 61)
            with pytest.raises(UnknownSessionError):
                await sums.step(opened[0].session, "1")

    run(test)


def test_a_snapshot_goes_on_in_another_pool_and_so_do_the_turns():
    async def test():
        async with pool("Sum") as first:
            opened = await first.open({"begin": 5})
            await first.step(opened.session, "2")
            state = await first.snapshot(opened.session)
        assert state == b"7"
        async with pool("Sum") as second:
            restored = await second.restore({"begin": 5}, state)
            assert (await second.step(restored, "1")).observation == "8"
            replayed = await second.replay({"begin": 5}, ["2", "1"])
            assert [each.observation for each in replayed.results] == ["7", "8"]
            assert (await second.step(replayed.session, "1")).observation == "9"
            assert (second.counts.opened, second.counts.restored, second.counts.replayed) == (0, 1, 1)
        async with pool("Replayed") as third:
            opened = await third.open({})
            assert await third.snapshot(opened.session) is None
            assert (third.abilities.replayable, third.abilities.restorable) == (True, False)

    run(test)


def test_a_full_pool_holds_back_who_opens_more(tmp_path):
    async def test():
        async with pool("Told", sessions=2) as told:
            first, _ = [await told.open({}) for _ in range(2)]
            assert told.full
            third = asyncio.create_task(told.open({}))
            await told.step(first.session, "1")  # the pool answers meanwhile
            assert not third.done()
            await told.close(first.session)
            assert (await third).session not in (first.session,)
            waiting = asyncio.create_task(told.open({}))
            await asyncio.sleep(0)
        with pytest.raises(PoolClosedError):
            await waiting
        async with pool("Sum", sessions=1, room_s=0.05) as small:
            await small.open({})
            with pytest.raises(PoolFullError, match="found 1 sessions"):
                await small.open({})

    run(test)


def test_a_call_that_misses_its_deadline_ends_its_session_alone(tmp_path):
    async def test():
        go = tmp_path / "go"
        async with pool("Told", call_s=2.0) as told:
            slow, other = [await told.open({}) for _ in range(2)]
            (before,) = told.pids
            with pytest.raises(SessionTimeoutError, match=r"did not answer 'step' within 2 s"):
                await told.step(slow.session, f"wait-for {go}")
            assert (await told.step(other.session, "4")).metadata["pid"] == before
            with pytest.raises(UnknownSessionError):
                await told.step(slow.session, "1")
            await until(lambda: told.pids and told.pids != (before,))  # it gets no new sessions
            fresh = await told.open({})
            assert (await told.step(fresh.session, "4")).metadata["pid"] != before
            await told.close(other.session)  # its last one
            with pytest.raises(ProcessLookupError):
                os.kill(before, 0)
            assert (told.counts.timeouts, told.counts.workers_lost) == (1, 0)

    run(test)


def test_a_cancelled_call_ends_its_session_and_is_still_watched(tmp_path):
    async def test():
        async with pool("Told", call_s=0.5) as told:
            opened, other = [await told.open({}) for _ in range(2)]
            (before,) = told.pids
            call = asyncio.create_task(told.step(opened.session, f"wait-for {tmp_path / 'never'}"))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert told.open_sessions == 1
            await until(lambda: told.counts.timeouts == 1)
            await until(lambda: told.pids and told.pids != (before,))
            assert (await told.step(other.session, "4")).metadata["pid"] == before

    run(test)


def test_a_session_that_is_cancelled_while_it_is_made_is_closed(tmp_path):
    """Its end reaches the worker before there is anything to end."""

    async def test():
        async with pool("SlowlyMade", {"folder": str(tmp_path)}) as slowly:
            (tmp_path / "hold").touch()
            opening = asyncio.create_task(slowly.open({}))
            await until((tmp_path / "begun").exists)
            (tmp_path / "hold").unlink()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await slowly.step((await slowly.open({})).session, "1")  # the worker has read what came before it
            (tmp_path / "go").touch()
            async with asyncio.timeout(30):
                await until((tmp_path / "closed").exists)

    run(test)


def test_a_session_that_is_closed_while_it_is_played_again_says_so(tmp_path):
    async def test():
        go = tmp_path / "go"
        go.touch()
        async with pool("ToldAgain") as told:
            opened, (before,) = await told.open({}), told.pids
            for action in (f"wait-for {go}", "1"):
                await told.step(opened.session, action)
            go.unlink()
            os.kill(before, signal.SIGKILL)
            await until(lambda: told.pids and told.pids != (before,))
            call = asyncio.create_task(told.step(opened.session, "1"))
            await until(lambda: told.worker_in_call(opened.session) not in (None, before))
            await asyncio.sleep(0)
            await told.close(opened.session)
            go.touch()
            with pytest.raises(UnknownSessionError, match="closed within a call"):
                await call
            assert told.open_sessions == 0

    run(test)


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        ("raise too bad", RaisedError, "raised ZeroDivisionError: too bad"),
        ("exit", RaisedError, "raised SystemExit: 3"),
        ("answer None", NonsenseError, "found None, expected an answer with 'observation' and 'done'"),
        ("answer {'observation': 3, 'done': False}", NonsenseError, "found an observation of type int, expected text"),
        ("answer {'observation': '', 'done': 1}", NonsenseError, "found done = 1, expected true or false"),
        (
            "answer {'observation': '', 'done': False, 'fresh': True}",
            NonsenseError,
            "found fresh = True, expected false",
        ),
        (
            "answer {'observation': '', 'done': True, 'reward': float('nan')}",
            NonsenseError,
            "found reward = nan, expected a finite number",
        ),
        (
            "answer {'observation': '', 'done': True, 'reward': True}",
            NonsenseError,
            "found reward = True, expected a finite number",
        ),
        (
            "answer {'observation': '', 'done': True, 'metadata': {'a': object()}}",
            NonsenseError,
            "found metadata that are no JSON values",
        ),
        ("answer {'observation': '', 'done': True, 'metadata': [1]}", NonsenseError, "found metadata = [1]"),
        (
            "answer {'observation': 'x' * 2**21, 'done': True}",
            NonsenseError,
            "found an observation of 2,097,152 characters, expected at most 1,048,576",
        ),
        (
            "answer {'observation': '', 'done': True, 'metadata': {'a': 'x' * 2**21}}",
            NonsenseError,
            "expected at most 1,048,576",
        ),
        ("answer {'observation': '', 'done': setattr(self, 'total', 'x' * 2**21) or True}", NonsenseError, "snapshot"),
    ],
)
@pytest.mark.cases(6)
def test_what_fails_a_session_is_said_and_the_others_go_on(action, error, said, tmp_path):
    async def test():
        async with pool("Told", {"greeting": str(tmp_path / "closed")}) as told:
            bad, good = [await told.open({}) for _ in range(2)]
            pids = told.pids
            with pytest.raises(error) as found:
                await told.step(bad.session, action)
            assert said in str(found.value)
            assert len(str(found.value).splitlines()) == 1
            assert (await told.step(good.session, "4")).observation == "4"
            assert told.pids == pids
            assert told.open_sessions == 1
            await until((tmp_path / "closed").exists)
            assert told.counts.raised + told.counts.nonsense == 1

    run(test)


def test_what_an_environment_prints_garbles_nothing():
    async def test():
        async with pool("Told") as told:
            opened = await told.open({})
            assert (await told.step(opened.session, 'print {"id": 3}')).observation == "print"
            assert (await told.step(opened.session, "2")).observation == "2"

    run(test)


def test_what_an_environment_says_can_be_encoded():
    """A text that was cut within a character has half of a surrogate pair, and so do file names that are no UTF-8."""

    async def test():
        async with pool("Sum", {"greeting": "\ud83d hello"}) as sums:
            assert (await sums.open({})).observation == "? hello"
        async with pool("Told") as told:
            opened = await told.open({})
            said = await told.step(
                opened.session, r"answer {'observation': 'caf\u00e9 \U0001f600 \ud83d', 'done': False}"
            )
            assert said.observation == "caf\u00e9 \U0001f600 ?"
            with pytest.raises(RaisedError, match=r"no file \?"):
                await told.step(opened.session, "raise no file \udcff")

    run(test)


def test_any_text_is_an_action_and_a_row_is_json():
    async def test():
        async with pool("Sum") as sums:
            opened = await sums.open({"begin": 1, "text": "\ud800\n\x00"})
            for action in ("\ud800", "a\nb", "\x00", "9" * 4000):
                assert (await sums.step(opened.session, action)).observation
            with pytest.raises(ActionTooLongError, match="found an action of 1,048,577 characters"):
                await sums.step(opened.session, "x" * (2**20 + 1))
            assert (await sums.step(opened.session, "x")).observation == "no number"
            with pytest.raises(TypeError):
                await sums.open({"begin": object()})
            with pytest.raises(
                SessionError, match=r"cannot be told its row: found a message of 16,777,\d+ bytes, expected at"
            ):
                await sums.open({"tests": "x" * 2**24})
            assert sums.open_sessions == 1

    run(test)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (f"{FILE}:Unfinished", {}, "found a Unfinished without step(), expected an environment"),
        (f"{FILE}:Nobody", {}, "LookupError: found no class 'Nobody'"),
        (f"{FILE}:Crashing", {}, "it ended with status 7; the last that it printed: out of luck"),
        (f"{FILE}:Unready", {"start_s": 1.0}, "did not load within 1 s"),
        (f"{FILE}:Sum", {"options": {"salute": 1}}, "TypeError: Sum.__init__() got an unexpected keyword argument"),
        (f"{FILE}:Sum", {"python": "/no/such/python"}, "found no Python interpreter '/no/such/python'"),
        ("no.such.module:Thing", {}, "ModuleNotFoundError: No module named 'no'"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_leaves_no_process(name, settings, said):
    async def test():
        settings_ = dict(settings)
        made = EnvironmentPool(name, settings_.pop("options", None), workers=2, **settings_)
        with pytest.raises(SetupError) as found:
            await made.start()
        assert said in str(found.value)
        assert len(str(found.value).splitlines()) == 1
        assert made.pids == ()

    run(test)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"environment": "pyton"}, SetupError, "did you mean 'python'"),
        ({"environment": "nowhere.py:Thing"}, SetupError, "found no file 'nowhere.py'"),
        ({"environment": "a:b", "options": {"a": object()}}, SetupError, "that are no JSON values"),
        ({"environment": "a:b", "workers": 0}, ValueError, "found workers = 0, expected a number above 0"),
        ({"environment": "a:b", "call_s": float("nan")}, ValueError, "found call_s = nan"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(arguments, error, said):
    with pytest.raises(error, match=said):
        EnvironmentPool(**arguments)


def test_a_pool_is_used_while_it_is_open_only():
    async def test():
        closed = pool("Sum")
        with pytest.raises(PoolClosedError):
            await closed.open({})
        async with closed:
            opened = await closed.open({})
        with pytest.raises(PoolClosedError):
            await closed.step(opened.session, "1")

    run(test)


@pytest.mark.parametrize("name", ["Told", "ToldAgain", "ToldOnce"])
def test_a_call_that_a_pool_is_closed_in_says_so(name):
    async def test():
        told = pool(name)
        async with told:
            opened = await told.open({})
            call = asyncio.create_task(told.step(opened.session, "sleep 600"))
            await until(lambda: told.worker_in_call(opened.session) is not None)
        with pytest.raises(PoolClosedError):
            await call
        assert told.counts.lost == 0

    run(test)


@pytest.mark.parametrize("name", ["Told", "ToldAgain", "ToldOnce"])
def test_a_call_that_waits_for_another_of_its_session_hears_that_it_was_closed(name, tmp_path):
    async def test():
        async with pool(name) as told:
            opened, go = await told.open({}), tmp_path / "go"
            first = asyncio.create_task(told.step(opened.session, f"wait-for {go}"))
            await until(lambda: told.worker_in_call(opened.session) is not None)
            second = asyncio.create_task(told.step(opened.session, "1"))
            await asyncio.sleep(0)
            await told.close(opened.session)
            go.touch()
            assert (await first).observation == "wait-for"
            with pytest.raises(UnknownSessionError):
                await second
            assert (told.counts.lost, told.open_sessions) == (0, 0)

    run(test)


def test_a_start_that_is_cancelled_leaves_no_worker(tmp_path):
    async def test():
        first = pool("FirstMade", {"folder": str(tmp_path)}, workers=2)
        starting = asyncio.create_task(first.start())
        await until(lambda: first.pids)
        (pid,) = first.pids
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert first.pids == ()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(test)


def test_another_interpreter_needs_the_standard_library_only(tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -I -S "$@"\n')
    bare.chmod(0o755)

    async def test():
        async with pool("Sum", python=str(bare)) as sums:
            opened = await sums.open({"begin": 1})
            assert (await sums.step(opened.session, "1")).observation == "2"
        with pytest.raises(SetupError, match="found no environment 'theirs' registered in"):
            await EnvironmentPool("theirs", python=str(bare)).start()

    run(test)


def test_an_environment_is_examined_before_long_work():
    found = examine_environment(f"{FILE}:Replayed", {"greeting": "hello"})
    assert (found.replayable, found.restorable) == (True, False)
    with pytest.raises(SetupError, match="it ended with status 7"):
        examine_environment(f"{FILE}:Crashing")


class Indexed:
    """A token id that is no `int`, as those in arrays of numpy and torch."""

    def __init__(self, token):
        self.token = token

    def __index__(self):
        return self.token


def test_what_is_no_row_takes_no_room():
    async def test():
        async with pool("Sum", sessions=1, room_s=5) as sums:
            for _ in range(2):
                with pytest.raises(TypeError):
                    await sums.open(None)
            await sums.open({"begin": 1})

    run(test)


def test_an_environment_that_speaks_in_tokens_is_given_tokens():
    async def test():
        async with pool("Tokens") as tokens:
            assert (tokens.abilities.tokenized, tokens.abilities.rows) == (True, True)
            session, first = await tokens.open({"begin": 5})
            assert first == [5, 1]
            assert (await tokens.step(session, (1, 2))).observation == [8]
            for wrong in (None, 5, [1.5]):
                with pytest.raises(TypeError):
                    await tokens.step(session, wrong)
            assert (await tokens.step(session, map(Indexed, (1, 2)))).observation == [11], "the session is as it was"
            with pytest.raises(ValueError, match="found an action of 1,048,577 tokens, expected at most 1,048,576"):
                await tokens.step(session, [1] * (2**20 + 1))
            os.kill(tokens.pids[0], 9)
            assert (await tokens.step(session, [1])).observation == [12]
            assert tokens.counts.replayed == 1
            again = await tokens.replay({"begin": 5}, [tuple(map(Indexed, (1, 2))), (3,)])
            assert [each.observation for each in again.results] == [[8], [11]]
            with pytest.raises(ActionTooLongError):
                await tokens.replay({"begin": 5}, [(1,), [1] * (2**20 + 1)])
            assert tokens.open_sessions == 2

    run(test)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("8", "of type str, expected token ids"),
        ([1, -2], r"\[1, -2\], expected token ids"),
        ([True], "expected token ids"),
    ],
)
def test_what_are_no_tokens_is_nonsense(answer, said):
    async def test():
        async with pool("Tokens", {"answer": answer}) as tokens:
            session, _ = await tokens.open({"begin": 5})
            with pytest.raises(NonsenseError, match=said):
                await tokens.step(session, [1])

    run(test)


def test_rows_of_its_own():
    async def test():
        async with pool("Tokens", {"last": 3}) as tokens:
            assert await tokens.rows(0, 2) == [{"prompt": "", "begin": 0}, {"prompt": "", "begin": 1}]
            assert await tokens.rows(2, 9) == [{"prompt": "", "begin": 2}]
            assert await tokens.rows(3, 9) == []
            assert tokens.open_sessions == 0
        async with pool("Sum") as sums:
            assert not sums.abilities.rows
            with pytest.raises(RaisedError, match="AttributeError"):
                await sums.rows(0, 1)

    run(test)
