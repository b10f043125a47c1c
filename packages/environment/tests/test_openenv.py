"""The adapter for OpenEnv: against a server that speaks its wire, and the released package in an interpreter of its own."""

import asyncio
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.environment import EnvironmentPool, RaisedError, SessionLostError, SetupError

pytest.importorskip("websockets")
from tailrace.environment.openenv import OpenEnv
from tailrace.environment.testing import check_environment

sys.path.insert(0, str(Path(__file__).parent))
server = importlib.import_module("openenv_server")


PAGE = Path(__file__).parents[3] / "docs" / "environments.md"


def run(test, limit_s=100):
    async def limited():
        async with asyncio.timeout(limit_s):
            return await test()

    return asyncio.run(limited())


def test_sessions_of_a_server():
    with server.running() as url:

        async def test():
            async with EnvironmentPool("openenv", {"url": url}, workers=2, sessions=8) as pool:
                opened = [await pool.open({"metadata": {"reset": {"seed": 10 * place}}}) for place in range(8)]
                assert [each.observation for each in opened] == [f"ready {10 * place}" for place in range(8)]
                said = await asyncio.gather(*(pool.step(each.session, "hello") for each in opened))
                assert [each.observation for each in said] == [f"{10 * place + 1} hello" for place in range(8)]
                last = await pool.step(opened[0].session, "end")
                assert (last.done, last.reward) == (True, 1.0)
                assert (await pool.step(opened[1].session, "a lone \ud800")).observation == "12 a lone ?"

        run(test)


def test_what_the_server_says_of_a_turn_is_the_models_or_its_own_fault():
    with server.running(server.TWO_FIELDS) as url:

        async def test():
            async with EnvironmentPool("openenv", {"url": url, "observation": "said"}, sessions=8) as pool:
                session, _ = await pool.open({})
                assert (await pool.step(session, "hello")).observation == "expected an action as a JSON object"
                assert (await pool.step(session, '{"text": 1}')).observation == "no such action: Invalid message"
                assert (await pool.step(session, '{"message": "a", "times": 3}')).observation == "1 aaa"
                with pytest.raises(RaisedError, match=r"the OpenEnv server failed: out of luck \(EXECUTION_ERROR\)"):
                    await pool.step(session, '{"message": "fail"}')
                session, _ = await pool.open({})
                with pytest.raises(RaisedError, match="expected an observation of an OpenEnv server"):
                    await pool.step(session, '{"message": "odd"}')
            async with EnvironmentPool("openenv", {"url": url, "action": "message"}) as pool:
                session, first = await pool.open({})
                assert first == '{"said": "ready 0", "length": 7}'

        run(test)


@pytest.mark.parametrize("replayable", [False, True])
def test_a_session_ends_with_its_connection_and_may_be_played_again(replayable):
    with server.running() as url:

        async def test():
            async with EnvironmentPool("openenv", {"url": url, "replayable": replayable}) as pool:
                session, _ = await pool.open({"metadata": {"reset": {"seed": 5}}})
                await pool.step(session, "a")
                process = subprocess.Popen(["kill", "-9", *map(str, pool.pids)])
                process.wait()
                if replayable:
                    assert (await pool.step(session, "b")).observation == "7 b"
                    assert pool.counts.replayed == 1
                else:
                    with pytest.raises(SessionLostError, match="it has neither a snapshot nor `replayable`"):
                        await pool.step(session, "b")

        run(test)


def test_a_full_server_and_a_missing_one_are_one_line():
    with server.running(most_sessions=1) as url:

        async def test():
            async with EnvironmentPool("openenv", {"url": url}) as pool:
                await pool.open({})
                with pytest.raises(RaisedError, match=r"the OpenEnv server failed: full \(CAPACITY_REACHED\)"):
                    await pool.open({})
            with pytest.raises(SetupError, match="found action = 'text', expected one of message"):
                await EnvironmentPool("openenv", {"url": url, "action": "text"}).start()

        run(test)

    async def missing():
        with pytest.raises(SetupError, match="found no OpenEnv server at"):
            await EnvironmentPool("openenv", {"url": "http://127.0.0.1:9"}).start()
        with pytest.raises(SetupError, match="found both of url and app or none, expected one"):
            await EnvironmentPool("openenv").start()
        with pytest.raises(SetupError, match="found the OpenEnv server 'nothing:app', which ended with status"):
            await EnvironmentPool("openenv", {"app": "nothing:app"}).start()

    run(missing)


def test_a_server_that_ended_is_started_anew():
    """What a session without `replayable` had is lost with it; the next session is on another one."""
    pytest.importorskip("uvicorn")
    options = {"app": "openenv_app:app", "folder": str(Path(__file__).parent)}

    async def test():
        async with EnvironmentPool("openenv", options) as pool:
            session, _ = await pool.open({})
            before = (await pool.step(session, "a")).observation.split()
            os.kill(int(before[1]), signal.SIGKILL)
            with pytest.raises(SessionLostError, match="neither a snapshot nor `replayable`"):
                await pool.step(session, "b")
            session, _ = await pool.open({})
            after = (await pool.step(session, "a")).observation.split()
            assert (after[0], after[1] != before[1]) == ("1", True)
            assert pool.counts.workers_lost == 0

    run(test)


def test_it_passes_the_contract_suite():
    with server.running() as url:
        check_environment(
            OpenEnv,
            rows=[({"metadata": {"reset": {"seed": 1}}}, ["a", "end"]), ({}, ["b", "c"])],
            options={"url": url, "replayable": True},
        )


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """A folder as the page says: an interpreter with the released package, and the example that the package makes."""
    if shutil.which("uv") is None or not PAGE.exists():
        pytest.skip("it needs uv, to install the released package, and the page in the repository")
    root = tmp_path_factory.mktemp("openenv")
    (commands,) = re.findall(r"```console\n(\$ uv venv theirs[^`]*openenv init[^`]*)```", PAGE.read_text())
    for command in commands.replace("$ ", "").splitlines():
        subprocess.run(command, shell=True, cwd=root, check=True, capture_output=True, timeout=300)
    return root


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_pages_example(theirs):
    (example,) = [
        each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if '"openenv", OPTIONS' in each
    ]
    assert len(example.splitlines()) < 40
    done = subprocess.run([sys.executable, "-c", example], cwd=theirs, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    ready, said = done.stdout.splitlines()
    assert ready == "Echo Env environment ready!"
    assert said.startswith("StepResult(observation='Hello', done=False, reward=0.5, metadata={'original_message'")


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_released_packages_own_example(theirs):
    python, folder = str(theirs / "theirs" / "bin" / "python"), str(theirs)
    options = {"app": "echo_env.server.app:app", "folder": folder, "observation": "echoed_message", "start_s": 200.0}

    async def test():
        async with EnvironmentPool("openenv", options, python=python, start_s=240, call_s=240, sessions=2) as pool:
            first, second = await pool.open({}), await pool.open({"metadata": {"reset": {"seed": 3}}})
            assert first.observation == second.observation == "Echo Env environment ready!"
            said = await pool.step(first.session, "Hello")
            assert (said.observation, said.reward) == ("Hello", 0.5)
            assert (await pool.step(second.session, "Hello there, you")).reward == 1.0
            await pool.close(first.session)
            third = await pool.open({})
            assert (await pool.step(third.session, "again")).metadata["step"] == 1

    run(test, 500)
