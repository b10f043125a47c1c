"""The adapter for verifiers.v1, against the released package in an interpreter of its own, as docs/environments.md says."""

import asyncio
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_model import write_model

from tailrace.environment import EnvironmentPool, RaisedError, SetupError, examine_environment, verifiers
from tailrace.environment.worker import read_result

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
ROLLOUTS = 50


def test_without_verifiers_it_is_one_line():
    with pytest.raises(SetupError) as found:
        examine_environment("verifiers", {"taskset": "guess", "tokenizer": str(PAGE.parent)})
    assert re.search(r"cannot be had: \w*Error: ", str(found.value))
    assert len(str(found.value).splitlines()) == 1


def test_a_tokenizer_that_is_not_there_is_one_line():
    with pytest.raises(SetupError, match="found tokenizer = 'nowhere', expected the model's directory"):
        examine_environment("verifiers", {"taskset": "guess", "tokenizer": "nowhere"})


def test_a_rollout_that_stands_still_is_told_so():
    class Still:
        def play(self, index):
            return verifiers.Talk()

    rollout = verifiers.Verifiers.__new__(verifiers.Verifiers)
    rollout._house, rollout._turn_s, rollout._talk = Still(), 0.01, None
    with pytest.raises(RuntimeError, match=r"the rollout neither asked for a turn nor ended within 0.01 s"):
        rollout.reset({"metadata": {"task": 0}})
    rollout._known, rollout._answer = [1], Future()
    with pytest.raises(RuntimeError, match=r"the rollout neither asked for a turn nor ended within 0.01 s"):
        rollout.step([2])


def test_a_rollout_that_is_over_leaves_no_request_that_waits_for_a_turn():
    """Each that was closed before its turn left a coroutine of the endpoint waiting for ever."""
    pytest.importorskip("aiohttp.web")
    house = object.__new__(verifiers.House)
    house.talks, house._playing, house._context = {}, set(), None

    async def scenario():
        async def run_episode(task, context, on_trace):
            on_trace(SimpleNamespace(id="rollout"))
            await asyncio.Event().wait()

        async def json():
            return {"token_ids": [1]}

        house._environment = SimpleNamespace(run_episode=run_episode)
        talk = verifiers.Talk()
        played = asyncio.create_task(house._play(None, talk))
        await asyncio.sleep(0)
        asked = SimpleNamespace(headers={"X-Session-ID": "rollout"}, json=json)
        waits = [asyncio.create_task(house._generate(asked)) for _ in range(2)]
        await asyncio.sleep(0)
        played.cancel()
        assert [each.status for each in await asyncio.wait_for(asyncio.gather(*waits), 5)] == [410] * 2
        _, (_, answer) = talk.heard.get_nowait()
        rollout = verifiers.Verifiers.__new__(verifiers.Verifiers)
        rollout._talk, rollout._known, rollout._answer, rollout._turn_s = talk, [1], answer, 1.0
        talk.heard.get_nowait()
        talk.heard.put(("failed", "its agent went"))
        with pytest.raises(RuntimeError, match="the rollout failed: its agent went"):
            rollout.step([2])  # a turn that comes too late

    asyncio.run(scenario())


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """A folder as the page says, with a tokenizer and a chat template in ``model``, and the page's taskset."""
    if shutil.which("uv") is None or not PAGE.exists():
        pytest.skip("it needs uv, to install the released package, and the page in the repository")
    pytest.importorskip("tokenizers")
    root = tmp_path_factory.mktemp("verifiers")
    command = re.search(r"\$ (uv venv theirs .* verifiers==.*)", PAGE.read_text())[1]
    subprocess.run(command, shell=True, cwd=root, check=True, capture_output=True, timeout=400)
    write_model(root / "model")
    (taskset,) = [each for each in blocks() if "vf.Taskset" in each]
    assert len(taskset.splitlines()) < 40
    (root / "guess").mkdir()
    (root / "guess" / "__init__.py").write_text(taskset)
    return root


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_the_pages_example(theirs):
    (example,) = [each for each in blocks() if '"verifiers", OPTIONS' in each]
    assert len(example.splitlines()) < 40
    done = subprocess.run([sys.executable, "-c", example], cwd=theirs, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said, last = done.stdout.splitlines()
    assert said == str(
        [
            ["<|im_start|>user", "Guess a number.<|im_end|>", "<|im_start|>assistant"],
            ["", "<|im_start|>user", "more<|im_end|>", "<|im_start|>assistant"],
        ]
    )
    assert re.fullmatch(r"True 0\.5 4 \d+", last)  # two numbers of one token, each with its end


def options(theirs, renderer, **more):
    player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    given = {"taskset": "guess", "folder": str(theirs), "tokenizer": str(theirs / "model"), "env": {"player": player}}
    return {**given, "renderer": renderer, "start_s": 200.0, **more}


def opened(theirs, renderer, **more):
    python = str(theirs / "theirs" / "bin" / "python")
    settings: dict[str, Any] = {"python": python, "start_s": 240, "call_s": 240, "sessions": 4}
    return EnvironmentPool("verifiers", options(theirs, renderer, **more), **settings)


async def rollout(pool, row, draw, turn):
    """A rollout of drawn turns: the ids that the model read and said, the mask of what it said, turns, and the last answer."""
    session, prompt = await pool.open(row)
    ids, mask, turns = list(prompt), [0] * len(prompt), 0
    while True:
        said = turn(draw)
        ids, mask, turns = ids + said, mask + [1] * len(said), turns + 1
        answer = await pool.step(session, said)
        if answer.done:
            await pool.close(session)
            return ids, mask, turns, answer
        ids, mask = ids + answer.observation, mask + [0] * len(answer.observation)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_what_the_model_read_and_said_is_the_traces_token_by_token(theirs):
    """Many rollouts of several turns, whose numbers are not the tokens that their text would be encoded to."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(theirs / "model" / "tokenizer.json"))
    ends = [tokenizer.token_to_id(each) for each in ("<|im_end|>", "<|endoftext|>")]
    seed = 11

    def turn(draw):
        digits = [tokenizer.token_to_id(digit) for digit in f"{draw.choice(['', '0', '00'])}{draw.randrange(10)}"]
        return [*digits, draw.choice(ends)]

    async def test():
        async with opened(theirs, {"name": "qwen3", "thinking_retention": "all"}) as pool:
            rows = await pool.rows(0, 20)
            assert [row["metadata"]["task"] for row in rows] == list(range(10))  # there are no more
            waiting, turns = iter(range(ROLLOUTS)), []

            async def play():
                for number in waiting:
                    draw = random.Random(f"{seed}/{number}")
                    ids, mask, count, last = await rollout(pool, rows[number % 10], draw, turn)
                    branch = {"token_ids": ids, "mask": mask}
                    assert last.metadata["branches"] == [branch], f"seed {seed}, rollout {number}"
                    assert last.reward == pytest.approx(1 / count)
                    turns.append(count)

            await asyncio.gather(*(play() for _ in range(4)))
            assert len(turns) == ROLLOUTS
            assert sum(count > 1 for count in turns) > ROLLOUTS // 2
            with pytest.raises(RaisedError, match="found task 10, expected one of the 10 of the taskset"):
                await pool.open({"metadata": {"task": 10}})
            with pytest.raises(RaisedError, match="expected the number of a task as 'task'"):
                await pool.open({"metadata": {}})

    asyncio.run(test())


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_renderer_that_encodes_what_was_sampled_again_fails_by_name(theirs):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(theirs / "model" / "tokenizer.json"))
    apart = [tokenizer.token_to_id(digit) for digit in "12"]
    assert tokenizer.encode("12").ids != apart

    async def test():
        async with opened(theirs, {"name": "default"}, contexts=1) as pool:
            session, _ = await pool.open({"metadata": {"task": 7}})
            with pytest.raises(RaisedError, match=r"began context 2, expected at most 1.*from its text"):
                await pool.step(session, [*apart, tokenizer.token_to_id("<|im_end|>")])

    asyncio.run(test())


# Two players one after another, and two at once, each of which is told how many turns it had.
AGENTS = """
import asyncio
import verifiers.v1 as vf
from guess import GuessConfig, GuessTaskset


class AgentsEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        async def plays(turns):
            async with agents.player.interaction(task) as talk:
                await talk.turn()
                for number in range(1, turns):
                    await talk.turn(f"turn {number}")
                talk.trace.record_reward("turns", float(turns), 1.0)

        await plays(2)
        await plays(1)
        await asyncio.gather(plays(3), plays(2))


class AgentsTaskset(GuessTaskset):
    pass


__all__ = ["AgentsTaskset", "AgentsEnv"]
"""


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_agents_of_a_rollout_have_contexts_of_their_own_which_are_the_traces_branches(theirs):
    from tokenizers import Tokenizer

    end = Tokenizer.from_file(str(theirs / "model" / "tokenizer.json")).token_to_id("<|im_end|>")
    (theirs / "agents").mkdir()
    (theirs / "agents" / "__init__.py").write_text(AGENTS)

    async def test():
        async with opened(theirs, {"name": "qwen3", "thinking_retention": "all"}, taskset="agents") as pool:
            session, prompt = await pool.open({"metadata": {"task": 7}})
            contexts, ids, mask, turns = [], list(prompt), [0] * len(prompt), 0
            while True:
                turns += 1
                said = [turns, end]  # no two turns are alike
                ids, mask = ids + said, [*mask, 1, 1]
                answer = await pool.step(session, said)
                if answer.done or answer.fresh:
                    contexts.append((ids, mask))
                    ids, mask = [], []
                if answer.done:
                    break
                ids, mask = ids + answer.observation, mask + [0] * len(answer.observation)
            assert turns == 8
            assert answer.reward == 8.0
            branches = [(branch["token_ids"], branch["mask"]) for branch in answer.metadata["branches"]]
            assert len(branches) == 4
            assert all(branch in [found for found, _ in contexts] for branch, _ in branches)
            assert sorted(_spoken(*branches[0])) == sorted([1, end, 2, end])
            spoken = [token for context in contexts for token in _spoken(*context)[::2]]
            assert sorted(spoken) == list(
                range(1, 9)
            )  # each turn is the model's own in one context, and read in others

    asyncio.run(test())


def _spoken(ids, mask):
    return [token for token, own in zip(ids, mask, strict=True) if own]


@pytest.mark.parametrize(("length", "told"), [(2**14, True), (2**14 + 1, False)])
def test_the_metadata_of_a_long_rollout_fit_into_an_answer(length, told):
    branch = SimpleNamespace(token_ids=[9_999_999] * length, sampled_mask=[True] * length)
    metadata = verifiers._branches([SimpleNamespace(branches=[branch, branch])] * 2)
    assert ("branches" in metadata) == told
    read_result({"observation": [], "done": True, "metadata": metadata}, True)


def test_an_endpoint_reads_no_body_of_a_session_that_it_does_not_know():
    """The endpoint alone, of which verifiers is no part: a peer on loopback announces a large body and sends little of it."""
    web = pytest.importorskip("aiohttp.web")
    house = object.__new__(verifiers.House)
    house.talks = {"known": verifiers.Talk()}

    async def scenario():
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/inference/v1/generate", house._generate)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]

        async def asked(session):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = (
                "POST /inference/v1/generate HTTP/1.1",
                "Host: x",
                f"X-Session-ID: {session}",
                "Content-Length: 60000000",
            )
            writer.write("\r\n".join([*lines, "", ""]).encode() + b"[" * 1000)
            await writer.drain()
            try:
                return await asyncio.wait_for(reader.readline(), 1.0 if session == "known" else 30.0)
            finally:
                writer.close()

        try:
            for session in ("", "unknown", "known2"):
                assert b" 404 " in await asked(session)
            with pytest.raises(TimeoutError):
                await asked("known")  # its body is waited for
        finally:
            await runner.cleanup()

    asyncio.run(scenario())
