"""The environment `harness`: episodes of real programs, what of them is trained, and what becomes of those that are killed."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from chat_model import CHATML, write_model
from harness_agents import Model, call, talk

from tailrace.environment import (
    EnvironmentPool,
    RaisedError,
    SessionLostError,
    SetupError,
    completions,
    examine_environment,
)
from tailrace.environment.completions import BODY_BYTES, ChatAnswer, ChatRequest, _Handler, endpoint
from tailrace.environment.harness import Harness
from tailrace.environment.testing import check_environment

AGENT = Path(__file__).with_name("harness_agents.py")
CALL_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The directory of a model, and its tokenizer."""
    folder = tmp_path_factory.mktemp("harness") / "model"
    return folder, write_model(folder)


def options(model, **more):
    return {"command": [sys.executable, str(AGENT)], "tokenizer": str(model[0]), "think_s": 100.0, **more}


def opened(model, workers=1, **more):
    return EnvironmentPool(
        "harness", options(model, **more), workers=workers, sessions=8, call_s=CALL_S, start_s=CALL_S
    )


def row(prompt="less", **about):
    return {"prompt": prompt, "answer": "", "metadata": about, "seed": 3}


def turn(tokenizer, draw):
    """Token ids of a turn, often not those that its text would be encoded to."""
    digits = [tokenizer.token_to_id(each) for each in draw.choices("1234567890", k=draw.randint(1, 3))]
    said = digits if draw.random() < 0.5 else tokenizer.encode("12").ids
    return [*said, tokenizer.token_to_id("<|im_end|>")]


async def play(pool, tokenizer, given, draw, struck=None):
    """An episode: of each context the ids and the mask of what the model said; its messages, and the last answer."""
    session, prompt = await pool.open(given)
    contexts: list[tuple[list[int], list[int]]] = [([], [])]
    said, read = [], prompt
    while True:
        own = turn(tokenizer, draw)
        ids, mask = contexts[-1]
        contexts[-1] = ([*ids, *read, *own], mask + [0] * len(read) + [1] * len(own))
        said.append(tokenizer.decode(own[:-1]))
        if struck is not None:
            struck(pool)
        answer = await pool.step(session, own)
        read = list(answer.observation)
        if answer.done:
            await pool.close(session)
            return contexts, said, answer
        if answer.fresh:
            contexts.append(([], []))


def reference(tokenizer, talked, drawn, trained):
    """Ids and mask by plain transformers' chat template, part by part around the model's own tokens.

    Args:
        talked: the messages; ``[2]`` stands for turn 2 of the model.
        drawn: the turns of the model, by their numbers.
        trained: the numbers of those that are trained here.
    """
    transformers = pytest.importorskip("transformers")
    hugging = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHATML)
    whole, ids, mask = hugging.apply_chat_template(talked, tokenize=False), [], []
    for place in (int(each["content"][1:-1]) for each in talked if each["role"] == "assistant"):
        before, _, whole = whole.partition(f"[{place}]<|im_end|>")
        part = hugging(before, add_special_tokens=False)["input_ids"]
        ids, mask = ids + part + drawn[place], mask + [0] * len(part) + [int(place in trained)] * len(drawn[place])
    return ids, mask


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def own(place):
    return {"role": "assistant", "content": f"[{place}]"}


def test_episodes_are_recorded_token_by_token(model):
    """The ids and the mask of what is trained are those of plain transformers' template around the model's own tokens."""
    _, tokenizer = model

    async def scenario():
        async with opened(model, replayable=True) as pool:

            async def one(seed):
                turns, prompt = 1 + seed % 4, f"less {seed}"
                contexts, said, last = await play(pool, tokenizer, row(prompt, turns=turns), random.Random(seed))
                draw = random.Random(seed)
                drawn = [turn(tokenizer, draw) for _ in range(turns)]
                assert said == [tokenizer.decode(each[:-1]) for each in drawn]
                talked = [system("Guess."), user(prompt)]
                talked += [each for place in range(turns) for each in (own(place), user(f"turn {place}"))][:-1]
                assert contexts == [reference(tokenizer, talked, drawn, range(turns))], f"seed {seed}"
                assert last.reward == sum(text == "12" for text in said) / turns

            await asyncio.gather(*(one(seed) for seed in range(8)))
            assert pool.counts.lost == pool.counts.raised == 0

    asyncio.run(scenario())


def branches(prompt):
    """The contexts of `harness_agents.branch`: their messages, and which turns are trained there."""
    begun = [system("Guess."), user(prompt), own(0)]
    return [
        ([*begun, user("go on"), own(1)], {0, 1}),
        ([*begun, user("or else"), own(2)], {2}),
        ([system("Check."), user("Is it so?"), own(3), user("sure?"), own(4)], {3, 4}),
        ([*begun, user("go on"), own(1), user("checked"), own(5)], {5}),
        ([system("Guess."), user("in short"), own(6)], {6}),
        ([system("Guess."), user("in short"), own(7)], {7}),
    ]


async def branched(pool, tokenizer, seed, strikes_at=None, **about):
    """An episode of `harness_agents.branch`, checked. The workers may be killed as a turn is answered, by its number."""
    turns = itertools.count()

    def struck(pool):
        if next(turns) == strikes_at:
            for pid in pool.pids:
                os.kill(pid, signal.SIGKILL)

    given = row(f"less {seed}", branches=True, **about)
    contexts, said, last = await play(pool, tokenizer, given, random.Random(seed), struck)
    draw = random.Random(seed)
    drawn = [turn(tokenizer, draw) for _ in range(8)]
    expected = [reference(tokenizer, talked, drawn, trained) for talked, trained in branches(f"less {seed}")]
    assert contexts == expected, f"seed {seed}"
    assert last.reward == float(said[6] == said[7])


@pytest.mark.deep
def test_forks_sub_agents_and_rewritten_histories_are_contexts_of_their_own(model, tmp_path):
    """Each turn is trained once, behind what the model read then, whoever is killed in the midst of a branch."""

    async def scenario():
        async with opened(model, workers=2, replayable=True) as pool:
            await asyncio.gather(*(branched(pool, model[1], seed) for seed in range(4)))
            for at in (2, 3, 5):
                await branched(pool, model[1], at, dies_at=at, once=str(tmp_path / str(at)))
            for at in (2, 4, 6):
                await branched(pool, model[1], 10 + at, strikes_at=at)
            assert pool.counts.replayed >= 6
            assert pool.counts.lost == pool.counts.raised == 0

    asyncio.run(scenario())


@pytest.mark.deep
@pytest.mark.timeout(1500)
def test_two_hundred_episodes_with_twenty_kills(model, tmp_path):
    """Ten harnesses, and ten times all workers with the endpoints of all episodes under way. Nothing is lost."""
    draw = random.Random(5)
    kinds = draw.sample(range(200), 20)

    async def scenario():
        async with opened(model, workers=2, replayable=True, think_s=CALL_S - 1) as pool:
            waiting = iter(range(200))

            async def player():
                for seed in waiting:
                    at = draw.randrange(1, 8)
                    if seed in kinds[:10]:
                        await branched(pool, model[1], seed, dies_at=at, once=str(tmp_path / str(seed)))
                    else:
                        await branched(pool, model[1], seed, strikes_at=at if seed in kinds else None)

            await asyncio.gather(*(player() for _ in range(8)))
            counts = pool.counts
            assert (counts.lost, counts.raised, counts.timeouts, counts.nonsense) == (0, 0, 0, 0)
            assert (counts.steps, counts.opened) == (200 * 8, 200)
            assert counts.replayed >= 20
            assert counts.workers_lost >= 10

    asyncio.run(scenario())


def test_an_episode_begins_no_more_contexts_than_it_may(model):
    async def scenario():
        async with opened(model, contexts=3) as pool:
            assert (await play(pool, model[1], row(turns=3, forgets=True), random.Random(0)))[2].done
            with pytest.raises(
                RaisedError, match=r"began context 4 of an episode, expected at most 3 \(option 'contexts'\)"
            ):
                await play(pool, model[1], row(turns=4, forgets=True), random.Random(0))

    asyncio.run(scenario())


def test_it_keeps_the_contract_of_environments(model):
    tokenizer = model[1]
    turns = [[*tokenizer.encode("12").ids, tokenizer.token_to_id("<|im_end|>")]] * 2
    check_environment(
        Harness,
        rows=[(row(turns=2), turns), (row("more", turns=3), turns), (row(turns=2, forgets=True), turns)],
        options=options(model, replayable=False),
        call_s=CALL_S,
    )


def test_killed_workers_and_harnesses_lose_nothing_that_can_be_replayed(model, tmp_path):
    """Each episode meets one kill, of its harness or of the worker with the endpoint. The record is that of one without."""
    tokenizer = model[1]

    async def scenario():
        async with opened(model, workers=2, replayable=True) as pool:
            for seed in range(4):
                about = (
                    {"turns": 3, "dies_at": 1 + seed % 2, "once": str(tmp_path / str(seed))}
                    if seed < 2
                    else {"turns": 3}
                )
                strikes = iter([False, seed >= 2, False])

                def struck(pool, strikes=strikes):
                    if next(strikes):
                        for pid in pool.pids:
                            os.kill(pid, signal.SIGKILL)

                found = await play(pool, tokenizer, row(**about), random.Random(seed), struck)
                whole = await play(pool, tokenizer, row(turns=3), random.Random(seed))
                assert found[:2] == whole[:2]
                assert found[2].reward == whole[2].reward
            assert pool.counts.replayed >= 4
            assert pool.counts.lost == 0

    asyncio.run(scenario())


def test_a_killed_harness_that_is_not_replayable_is_lost_by_name(model, tmp_path):
    async def scenario():
        async with opened(model) as pool:
            with pytest.raises(SessionLostError, match="has neither a snapshot nor `replayable`"):
                await play(pool, model[1], row(dies_at=1, once=str(tmp_path / "once")), random.Random(0))
            assert pool.counts.lost == 1
            assert (await play(pool, model[1], row(), random.Random(0)))[2].done  # the others are none the wiser

    asyncio.run(scenario())


def test_one_that_is_killed_every_time_is_given_up(model):
    async def scenario():
        async with opened(model, replayable=True) as pool:
            with pytest.raises(
                SessionLostError,
                match=r"died 3 times in one call: .*HarnessGoneError: the harness ended with status 137",
            ):
                await play(pool, model[1], row(dies_always_at=1), random.Random(0))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({"fails_at": 0}, "the harness ended with status 1: no such tool"),
        ({"fails_at": 1}, "the harness ended with status 1: no such tool"),
        ({"fails_at": 1, "status": 255}, "the harness ended with status 255: no such tool"),
        ({"reward": "none"}, "the harness ended and told no reward"),
        ({"reward": "nonsense"}, "told reward = 'much', expected a finite number"),
        ({"turns": 0}, "ended before it asked"),
    ],
)
@pytest.mark.cases(3)
def test_what_a_harness_does_wrong_is_told_by_name(model, about, found):
    async def scenario():
        async with opened(model) as pool:
            with pytest.raises(RaisedError, match=found):
                await play(pool, model[1], row(**about), random.Random(0))

    asyncio.run(scenario())


def test_a_harness_that_thinks_too_long_fails_and_ends(model):
    async def scenario():
        async with opened(model, think_s=0.5) as pool:
            with pytest.raises(RaisedError, match=r"it neither asked nor ended within 0\.5 s"):
                await play(pool, model[1], row(sleeps_at=0), random.Random(0))

    asyncio.run(scenario())


def test_a_reward_by_post_and_none_where_a_verifier_judges(model):
    async def scenario():
        draws = random.Random(4)
        async with opened(model) as pool:
            for how in ("post", "post, then words"):  # those of the model, which are no reward
                _, said, last = await play(pool, model[1], row(reward=how), draws)
                assert last.reward == sum(text == "12" for text in said) / 3
        async with opened(model, rewarded=False) as pool:
            assert (await play(pool, model[1], row(reward="none"), draws))[2].reward == 0.0

    asyncio.run(scenario())


def test_what_it_starts_ends_with_its_session(model, tmp_path):
    """The harness of a session that is closed, and those of a killed worker, are gone."""
    script = tmp_path / "agent.py"
    script.write_text(
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(AGENT.parent)!r})\n"
        "import harness_agents\n"
        f"open({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w').close()\n"
        "harness_agents.main()\n"
    )

    async def scenario():
        async with opened(model, command=[sys.executable, str(script)]) as pool:
            session, _ = await pool.open(row())
            await pool.open(row("more"))
            pids = [int(each.stem) for each in tmp_path.glob("*.pid")]
            assert len(pids) == 2
            assert all(map(_lives, pids))
            await pool.close(session)
            await _until(lambda: sum(map(_lives, pids)) == 1)
            for pid in pool.pids:
                os.kill(pid, signal.SIGKILL)
            await _until(lambda: not any(map(_lives, pids)))

    asyncio.run(scenario())


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def _until(holds):
    async with asyncio.timeout(CALL_S):
        while not holds():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"command": []}, "expected one: a harness to start, or one that runs"),
        ({"url": "http://127.0.0.1:1"}, "expected one: a harness to start, or one that runs"),
        ({"command": ["no-such-program"]}, "expected a program that is here"),
        ({"folder": "/nowhere"}, "found folder = '/nowhere'"),
        ({"tokenizer": "/nowhere"}, "expected the model's directory with tokenizer.json"),
        ({"think_s": 0.0}, "found think_s = 0.0"),
        ({"turn_s": float("inf")}, "found turn_s = inf"),
        ({"contexts": 0}, "found contexts = 0, expected at least 1"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(model, given, found):
    with pytest.raises(SetupError, match=found):
        examine_environment("harness", options(model, **given), start_s=CALL_S)


def test_a_harness_that_runs_is_asked_for_each_episode(model):
    class Joined(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            about = asked["row"]["metadata"]
            failed = about.get("fails")
            if not failed:
                reward = talk(Model(asked["base_url"], asked["api_key"]), asked["row"])
            said = b"the tool is gone" if failed else json.dumps({"reward": reward}).encode()
            self.send_response(500 if failed else 200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Joined)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/play"

    async def scenario():
        async with opened(model, command=[], url=url) as pool:
            _, said, last = await play(pool, model[1], row(), random.Random(1))
            assert last.reward == sum(text == "12" for text in said) / 3
            with pytest.raises(RaisedError, match="answered 500: the tool is gone"):
                await pool.open(row(fails=True))

    try:
        asyncio.run(scenario())
    finally:
        server.shutdown()
        server.server_close()


def test_a_harness_that_runs_is_told_that_its_episode_is_over(model):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        harness = Harness(
            url=f"http://127.0.0.1:{listening.getsockname()[1]}/play", tokenizer=str(model[0]), think_s=0.5
        )
        with pytest.raises(RuntimeError, match=r"neither asked nor ended within 0\.5 s"):
            harness.reset(row())
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(CALL_S / 4)
            harness.close()
            while connection.recv(1 << 16):  # its request, and then the end of the connection
                continue


# ---- the endpoint alone ---------------------------------------------------------------------------------------------------


ASKED: list[Any] = []
"""What the fixture's model was asked, by `episode`."""


@pytest.fixture
def episode():
    """An episode whose model answers each request with the number of its messages."""
    found = endpoint().open(turn_s=30.0)
    done = threading.Event()
    ASKED.clear()

    def answer():
        while (asked := found.heard.get()) is not None:
            ASKED.append(asked)
            said: dict[str, Any] = {"role": "assistant", "content": f"{len(asked.messages)}"}
            if asked.tools:
                calls = [{"id": "call_1_0", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
                said = {"role": "assistant", "content": None, "tool_calls": calls}
            asked.answer(ChatAnswer(said, 5, 2))
        done.set()

    threading.Thread(target=answer, daemon=True).start()
    yield found
    endpoint().close(found)
    found.heard.put(None)
    assert done.wait(30)


USER = {"role": "user", "content": "x"}


def test_who_has_read_an_answer_and_asks_for_the_same_is_asking_again(episode, monkeypatch):
    """Also while the thread that has sent the first answer is yet to go on."""
    send, again = _Handler._send_bytes, threading.Event()

    def late(self, *given):
        send(self, *given)
        again.wait(10)

    monkeypatch.setattr(_Handler, "_send_bytes", late)
    try:
        for asked in (1, 2):
            assert call(episode.base_url, episode.key, "chat/completions", {"messages": [USER]})[0] == 200
            assert len(ASKED) == asked
    finally:
        again.set()


@pytest.mark.parametrize(
    ("body", "status", "found"),
    [
        (b"{", 400, "found a body that is no JSON"),
        (b"[" * 100_000, 400, "found a body that is no JSON"),
        (b"[]", 400, "found list as body"),
        ({}, 400, "found no 'messages'"),
        ({"messages": []}, 400, "found no 'messages'"),
        ({"messages": ["x"]}, 400, "found message 0 without a role"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, 400, "found message 1 with a content of type int"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "a part that is no text"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, 400, "'tool_calls' that are none"),
        ({"messages": [USER], "n": 2}, 400, "found n = 2"),
        ({"messages": [USER], "logprobs": True}, 400, "found logprobs"),
        ({"messages": [USER], "tools": [1]}, 400, "found 'tools'"),
        ({"messages": [USER], "stop": [3]}, 400, "found 'stop'"),
        ({"messages": [USER], "stream": True, "stream_options": "all"}, 400, "found 'stream_options'"),
    ],
)
def test_a_bad_request_is_answered_as_openai_does(episode, body, status, found):
    code, text = call(episode.base_url, episode.key, "chat/completions", body)
    error = json.loads(text)["error"]
    assert (code, set(error)) == (status, {"message", "type", "param", "code"})
    assert found in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not ASKED


def test_who_has_no_key_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(completions, "MOST_CONNECTIONS", 16)
    monkeypatch.setattr(completions, "MOST_UNKNOWN", 8)
    house = completions.Endpoint()
    episode = house.open(turn_s=30.0)
    at = urlsplit(episode.base_url)
    path, key = f"{at.path}/models", {"Authorization": f"Bearer {episode.key}"}
    known = http.client.HTTPConnection(at.netloc, timeout=60)
    with contextlib.ExitStack() as opened:
        for place in range(40):
            idle = opened.enter_context(socket.create_connection((at.hostname, at.port), timeout=60))
            idle.sendall(b"GET / HTTP/1.1\r\n" if place % 2 else b"")
            if place in (5, 39):  # the one that has shown its key goes on, and another one comes in
                known.request("GET", path, headers=key)
                assert known.getresponse().read().startswith(b"{")
        another = http.client.HTTPConnection(at.netloc, timeout=60)
        another.request("GET", path, headers=key)
        assert another.getresponse().status == 200
        another.close()
        known.close()


def test_connections_for_which_no_thread_starts_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(completions, "MOST_CONNECTIONS", 4)
    house = completions.Endpoint()
    episode, failing = house.open(turn_s=30.0), threading.Event()
    at, process = urlsplit(episode.base_url), ThreadingHTTPServer.process_request

    def exhausted(self, request, client_address):
        if failing.is_set():
            raise RuntimeError("can't start new thread")
        process(self, request, client_address)

    monkeypatch.setattr(ThreadingHTTPServer, "process_request", exhausted)
    failing.set()
    for _ in range(8):
        with socket.create_connection((at.hostname, at.port), timeout=30) as refused:
            assert refused.recv(1) == b""
    failing.clear()
    assert call(episode.base_url, episode.key, "models", None, "GET")[0] == 200
    assert not house._server._unknown


@pytest.mark.parametrize("reward", [True, "1", None, float("nan"), float("inf"), 10**400, -(10**400)])
def test_what_is_no_reward_is_refused(episode, reward):
    status, text = call(episode.base_url, episode.key, "reward", {"reward": reward})
    assert (status, episode.reward) == (400, None)
    assert "expected a finite number" in json.loads(text)["error"]["message"]


def test_a_key_opens_its_own_episode_alone(episode):
    other = endpoint().open(turn_s=30.0)
    for base_url, key in (
        (episode.base_url, other.key),
        (episode.base_url, ""),
        (episode.base_url.replace("/v1", "x/v1"), episode.key),
    ):
        status, text = call(base_url, key, "chat/completions", {"messages": [USER]})
        assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
    assert not ASKED
    assert call(episode.base_url, episode.key, "models", None, "GET")[0] == 200
    assert call(episode.base_url, episode.key, "embeddings", {})[0] == 404
    endpoint().close(other)
    assert call(other.base_url, other.key, "chat/completions", {"messages": [USER]})[0] == 401


def test_bodies_are_bounded_and_have_a_length(episode):
    long = {"Content-Length": str(BODY_BYTES + 1)}
    assert call(episode.base_url, episode.key, "chat/completions", b"", headers=long)[0] == 413
    assert (
        call(episode.base_url, episode.key, "chat/completions", b"", headers={"Transfer-Encoding": "chunked"})[0] == 411
    )


def test_a_request_that_does_not_come_whole_is_dropped(episode, monkeypatch):
    monkeypatch.setattr("tailrace.environment.completions.READ_S", 0.3)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        call(episode.base_url, episode.key, "chat/completions", b"{", headers={"Content-Length": "10"})
    assert not ASKED


def test_streams_and_tools(episode):
    body = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    status, text = call(episode.base_url, episode.key, "chat/completions", body)
    *events, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    chunks = [json.loads(each) for each in events]
    assert (status, end) == (200, "[DONE]")
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]) == "1"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == 7
    _, text = call(
        episode.base_url, episode.key, "chat/completions", {"messages": [USER], "tools": [{"type": "function"}]}
    )
    choice = json.loads(text)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["id"]) == ("tool_calls", "call_1_0")


def test_a_second_try_gets_the_first_answer(episode):
    """A client that went before the answer came asks again: the model is asked once. One that got it asks anew."""
    release = threading.Event()
    asked = episode.heard
    episode.heard = held = type(asked)()
    first = threading.Thread(
        target=call, args=(episode.base_url, episode.key, "chat/completions", {"messages": [USER]})
    )
    first.start()
    waiting = held.get(timeout=30)
    second = threading.Thread(
        target=lambda: (call(episode.base_url, episode.key, "chat/completions", {"messages": [USER]}), release.set())
    )
    second.start()
    time.sleep(0.1)
    waiting.answer(ChatAnswer({"role": "assistant", "content": "once"}, 1, 1))
    assert release.wait(30)
    first.join(30)
    assert held.empty()
    episode.heard = asked
    assert call(episode.base_url, episode.key, "chat/completions", {"messages": [USER]})[0] == 200
    assert len(ASKED) == 1


def test_a_connection_that_broke_does_not_undo_what_another_one_read(episode, monkeypatch):
    """A client's first try breaks as it is sent the answer, after its second try has read it: the next request is a new one."""
    send, read, asked = _Handler._send_bytes, threading.Event(), episode.heard
    wait, waits = ChatRequest.wait, threading.Semaphore(0)
    monkeypatch.setattr(ChatRequest, "wait", lambda self, timeout_s: (waits.release(), wait(self, timeout_s))[1])
    tries = itertools.count()

    def breaking(self, *given):
        if next(tries) == 0:
            read.wait(30)
            raise BrokenPipeError
        send(self, *given)

    monkeypatch.setattr(_Handler, "_send_bytes", breaking)
    episode.heard = held = type(asked)()

    def attempt():
        with contextlib.suppress(OSError, http.client.HTTPException):
            call(episode.base_url, episode.key, "chat/completions", {"messages": [USER]})
            read.set()

    both = [threading.Thread(target=attempt) for _ in range(2)]
    both[0].start()
    waiting = held.get(timeout=30)
    both[1].start()
    assert all(waits.acquire(timeout=30) for _ in both)
    waiting.answer(ChatAnswer({"role": "assistant", "content": "once"}, 1, 1))
    for each in both:
        each.join(30)
    episode.heard = asked
    assert read.is_set()
    _, text = call(episode.base_url, episode.key, "chat/completions", {"messages": [USER]})
    assert json.loads(text)["choices"][0]["message"]["content"] == "1"
    assert len(ASKED) == 1


def test_an_episode_that_is_over_refuses_what_waits(episode):
    held = episode.heard
    episode.heard = type(held)()
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(call(episode.base_url, episode.key, "chat/completions", {"messages": [USER]}))
    )
    waiting.start()
    episode.heard.get(timeout=30)
    endpoint().close(episode)
    waiting.join(30)
    episode.heard = held
    assert found[0][0] == 410


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_is_content(episode, stream):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=episode.base_url, api_key=episode.key, timeout=60) as client:
        if stream:
            chunks = list(client.chat.completions.create(model="m", messages=[USER], stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "1"
        else:
            said = client.chat.completions.create(model="m", messages=[USER], temperature=0.2, max_tokens=9)
            assert (said.choices[0].message.content, said.usage.completion_tokens) == ("1", 2)
        with pytest.raises(openai.BadRequestError, match="found n = 3"):
            client.chat.completions.create(model="m", messages=[USER], n=3)
        assert [each.id for each in client.models.list()] == ["policy"]
