"""The stream generation service over HTTP, on real sockets: streams, cuts, slow readers, and every refusal."""

import asyncio
import http.client
import json
import os
import select
import signal
import socket
import stat
import time
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("torch")

from safetensors.torch import save

from tailrace.rollout import StreamGenerationService
from tailrace.rollout.errors import ServeError
from tailrace.rollout.service.handle import in_thread
from tailrace.rollout.serving import RequestLimits, app, listen, serve, server
from tailrace.rollout.testing import TensorFakeEngine, fake_token, fake_weights, save_fake_model

DEADLINE_S = 60.0


class Client:
    """Blocking calls, which the tests make in threads."""

    def __init__(self, url, token):
        self.url, self.token = urlsplit(url), token

    def send(self, method, path, body=None, token=None):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=DEADLINE_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        token = self.token if token is None else token
        connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        return connection, connection.getresponse()

    async def call(self, method, path, body=None, token=None):
        """The status and the lines of the answer."""

        def work():
            connection, response = self.send(method, path, body, token)
            lines = [json.loads(line) for line in response.read().splitlines()]
            connection.close()
            return response.status, lines

        return await asyncio.to_thread(work)

    async def some(self, body, count):
        """The first lines of an answer; then the connection is cut."""

        def work():
            connection, response = self.send("POST", "/v1/generate", body)
            lines = [json.loads(response.readline()) for _ in range(count)]
            connection.close()
            return response.headers["X-Request-Id"], lines

        return await asyncio.to_thread(work)


@asynccontextmanager
async def served(tmp_path, *, step_s=0.0, limits=RequestLimits(), relays=(), **options):  # noqa: B008 - frozen
    model = save_fake_model(tmp_path / "model")
    build = lambda path, given: TensorFakeEngine(step_s=step_s)  # noqa: E731
    service = StreamGenerationService(model, start=in_thread(build), max_tokens=20, flush_s=0.002, **options)
    told = asyncio.get_running_loop().create_future()

    def ready(url, token_file):
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        told.set_result(Client(url, token_file.read_text()))

    serving = asyncio.create_task(serve(service, listen("127.0.0.1", 0), ready, limits=limits, relays=relays))
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({told, serving}, return_when=asyncio.FIRST_COMPLETED)
        client = told.result() if told.done() else await serving
        client.service = service
        yield client
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    assert not service.weights.directory.exists()


def assert_right(line, prompt):
    pairs = [fake_token(100 + version, prompt, position) for position, version in enumerate(line["versions"])]
    assert [line["tokens"], line["logprobs"]] == [[token for token, _ in pairs], [logprob for _, logprob in pairs]]


def test_samples_stream_and_updates_arrive(tmp_path):
    async def scenario():
        async with served(tmp_path) as client:
            assert (await client.call("GET", "/v1/status"))[1][0]["version"] == 0
            body = {"prompts": [[1, 2], [3]], "samples": 3, "max_tokens": 9, "at_least_version": 4}
            waiting = asyncio.create_task(client.call("POST", "/v1/generate", body))
            status, [answer] = await client.call("POST", "/v1/update?version=4", save(fake_weights(104)))
            assert (status, answer) == (200, {"version": 4})
            status, lines = await waiting
            assert status == 200
            assert sorted((line["prompt"], line["sample"]) for line in lines) == [
                (p, s) for p in (0, 1) for s in range(3)
            ]
            for line in lines:
                assert line.keys() == {"prompt", "sample", "tokens", "logprobs", "versions", "finish"}
                assert set(line["versions"]) == {4}
                assert line["finish"] == ("stop" if line["tokens"][-1] == 7 else "length")
                assert_right(line, ((1, 2), (3,))[line["prompt"]])
            assert (await client.call("GET", "/v1/status"))[1][0]["version"] == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("ahead", [2, None])
def test_a_reader_that_is_cut_resumes_and_gets_each_sample_once(tmp_path, ahead):
    async def scenario():
        async with served(tmp_path, step_s=0.001, ahead=ahead) as client:
            prompts = [[index, 5] for index in range(40)]
            request, first = await client.some({"prompts": prompts}, 5)
            have = [[line["prompt"], line["sample"]] for line in first]
            request, second = await client.some({"request": request, "have": have}, 4)
            have += [[line["prompt"], line["sample"]] for line in second]
            status, rest = await client.call("POST", "/v1/generate", {"request": request, "have": have})
            assert status == 200
            assert sorted(line["prompt"] for line in [*first, *second, *rest]) == list(range(40))
            for line in [*first, *second, *rest]:
                assert_right(line, tuple(prompts[line["prompt"]]))
            # all was sent; whoever lost the end of it may ask for that again
            status, again = await client.call("POST", "/v1/generate", {"request": request, "have": have})
            assert sorted(line["prompt"] for line in again) == sorted(line["prompt"] for line in rest)
            # and with the prompts, a service that knows nothing of the request leaves out what the reader has
            body = {"prompts": prompts, "request": "other", "have": have}
            status, fresh = await client.call("POST", "/v1/generate", body)
            assert sorted(line["prompt"] for line in fresh) == sorted(line["prompt"] for line in rest)

    asyncio.run(scenario())


def test_a_reader_that_does_not_come_back_is_forgotten(tmp_path):
    async def scenario():
        async with served(tmp_path, limits=RequestLimits(linger_s=0.05), ahead=3) as client:
            request, _ = await client.some({"prompts": [[1]], "samples": 500}, 1)
            while client.service.status()["samples"]["left"]:
                await asyncio.sleep(0.02)
            status, [line] = await client.call("POST", "/v1/generate", {"request": request, "have": []})
            assert (status, line["type"]) == (404, "UnknownRequestError")

    asyncio.run(scenario())


@pytest.mark.deep
def test_a_reader_that_reads_slowly_stops_generation(tmp_path):
    async def scenario():
        async with served(tmp_path, ahead=64) as client:
            body = {"prompts": [[1]], "samples": 30_000}
            connection, _ = await asyncio.to_thread(client.send, "POST", "/v1/generate", body)
            left = None
            while left != client.service.status()["samples"]["left"]:
                left = client.service.status()["samples"]["left"]
                await asyncio.sleep(0.3)
            assert left > 10_000  # what the sockets hold was generated, the rest was not
            assert client.service.status()["samples"]["unread"] <= 64
            connection.close()

    asyncio.run(scenario())


def weights(v):
    """A safetensors body one of whose values is `v`."""
    found = fake_weights(1)
    found["v"][1, 2] = v
    return save(found)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/generate", b"{", 400, ["RequestError", "not JSON"]),
        ("/v1/generate", [1], 400, ["RequestError", "an object"]),
        ("/v1/generate", {}, 400, ["RequestError", "'prompts'"]),
        ("/v1/generate", {"prompts": "text"}, 400, ["RequestError", "'text'"]),
        ("/v1/generate", {"prompts": [[1, -1]]}, 400, ["RequestError", "prompt 0", "-1"]),
        ("/v1/generate", {"prompts": [[1]], "sample": 3}, 400, ["RequestError", "'sample'", "did you mean 'samples'?"]),
        ("/v1/generate", {"prompts": [[1]], "samples": 0}, 400, ["RequestError", "'samples'", "0"]),
        ("/v1/generate", {"prompts": [[1]], "max_tokens": True}, 400, ["RequestError", "'max_tokens'", "True"]),
        ("/v1/generate", {"prompts": [[1]], "have": [1]}, 400, ["RequestError", "'have'"]),
        ("/v1/generate", {"prompts": [[1]], "request": "../x"}, 400, ["RequestError", "'request'"]),
        ("/v1/generate", {"prompts": [[*range(64)]]}, 400, ["RequestError", "64 tokens", "context of 64"]),
        ("/v1/generate", {"prompts": [[1, 100_000]]}, 400, ["RequestError", "100000", "99999"]),
        ("/v1/generate", {"prompts": ["text"]}, 400, ["RequestError", "tokenizer.json"]),
        (
            "/v1/generate",
            {"prompts": ["half \ud83d"]},
            400,
            ["RequestError", "prompt 0", "half of a character at place 5"],
        ),
        ("/v1/generate", {"\ud83d": 1}, 400, ["RequestError", "unknown field"]),
        ("/v1/generate", b"\xff\xfe{}", 400, ["RequestError", "not JSON"]),
        ("/v1/generate", b'{"prompts": [[1]], "samples": ' + b"9" * 900 + b"}", 400, ["RequestError", "'samples'"]),
        ("/v1/generate", b"[" * 999, 400, ["RequestError", "not JSON"]),
        ("/v1/generate", {"prompts": [[1.5]]}, 400, ["RequestError", "prompt 0"]),
        ("/v1/generate", {"prompts": [[True]]}, 400, ["RequestError", "prompt 0"]),
        ("/v1/generate", {"prompts": [[]]}, 400, ["RequestError", "prompt 0 is empty"]),
        ("/v1/generate", {"prompts": [None]}, 400, ["RequestError", "prompt 0"]),
        ("/v1/generate", b'{"prompts": [[1]], "max_tokens": NaN}', 400, ["RequestError", "'max_tokens'", "nan"]),
        ("/v1/generate", {"prompts": [[1]], "max_tokens": 1 << 63}, 400, ["RequestError", "'max_tokens'"]),
        ("/v1/generate", {"prompts": [[1]], "at_least_version": -1}, 400, ["RequestError", "'at_least_version'"]),
        ("/v1/generate", {"request": "gone"}, 404, ["UnknownRequestError", "'gone'"]),
        ("/v1/generate", {"prompts": [[1]], "at_least_version": 9}, 408, ["VersionTimeoutError", "version 9"]),
        ("/v1/generate", {"prompts": [[1]], "samples": 101}, 413, ["RequestTooLargeError", "101 samples", "100"]),
        ("/v1/generate", {"prompts": ["x" * 2000]}, 413, ["RequestTooLargeError", "1000"]),
        ("/v1/update?version=x", b"", 400, ["RequestError", "'x'"]),
        ("/v1/update?version=2", save(fake_weights(1)), 409, ["UpdateRefusedError", "above 2"]),
        ("/v1/update?version=3", save(fake_weights(1))[:-4], 409, ["UpdateRefusedError", "safetensors"]),
        ("/v1/update?version=3", b"", 409, ["UpdateRefusedError", "safetensors"]),
        ("/v1/update?version=3", save({"w": fake_weights(1)["w"]}), 409, ["UpdateRefusedError", "partial", "'v'"]),
        ("/v1/update?version=3", weights(v=float("nan")), 409, ["UpdateRefusedError", "NaN or infinity in 'v'"]),
        ("/v1/update?version=3", weights(v=float("-inf")), 409, ["UpdateRefusedError", "NaN or infinity in 'v'"]),
        ("/v1/update?version=-3", b"", 400, ["RequestError", "'-3'"]),
        ("/v1/update?version=3", b"x" * 5000, 413, ["RequestTooLargeError", "4000"]),
        ("/v1/update", {"relay": "", "version": 3}, 400, ["RequestError", "'relay'"]),
        ("/v1/update", {"relay": "127.0.0.1:9"}, 400, ["RequestError", "'version'"]),
        ("/v1/update", {"relay": "127.0.0.1:9", "version": 3}, 400, ["RequestError", "TAILRACE_RELAY_TOKEN"]),
        ("/v1/update", {"relay": "127.0.0.1:99", "version": 3}, 400, ["RequestError", "127.0.0.1:99", "127.0.0.1:9:"]),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(tmp_path, monkeypatch, path, body, status, words):
    monkeypatch.delenv("TAILRACE_RELAY_TOKEN", raising=False)
    limits = RequestLimits(body_bytes=1000, update_bytes=4000, samples=100, version_wait_s=0.05)

    async def scenario():
        async with served(tmp_path, limits=limits, relays=["127.0.0.1:9"]) as client:
            await client.service.update(fake_weights(102), 2)
            found, [line] = await client.call("POST", path, body)
            assert found == status, line
            assert all(word in json.dumps(line) for word in words), line
            assert client.service.version == 2
            assert len(list(client.service.weights.directory.iterdir())) == 2  # the token and version 2
            _, [sample] = await client.call("POST", "/v1/generate", {"prompts": [[1, 2]]})
            assert set(sample["versions"]) == {2}
            assert_right(sample, (1, 2))

    asyncio.run(scenario())


@pytest.mark.parametrize("token", ["", "wrong", "ä"])
def test_nothing_is_told_without_the_token(tmp_path, token):
    async def scenario():
        async with served(tmp_path) as client:
            for method, path in (("GET", "/v1/status"), ("POST", "/v1/generate"), ("POST", "/v1/update?version=1")):
                status, [line] = await client.call(method, path, b"x", token=token)
                assert (status, line["type"]) == (401, "TokenError")
            assert client.service.version == 0

    asyncio.run(scenario())


def test_too_many_requests_are_refused_until_one_is_done(tmp_path):
    async def scenario():
        async with served(tmp_path, limits=RequestLimits(requests=1), ahead=2) as client:
            request, _ = await client.some({"prompts": [[1]], "samples": 9}, 1)
            status, [line] = await client.call("POST", "/v1/generate", {"prompts": [[1]]})
            assert (status, line["type"]) == (413, "RequestTooLargeError")
            await client.call("POST", "/v1/generate", {"request": request})
            status, _ = await client.call("POST", "/v1/generate", {"prompts": [[1]]})
            assert status == 200

    asyncio.run(scenario())


def test_weights_come_from_a_relay(tmp_path, monkeypatch):
    paramserver = pytest.importorskip("tailrace.paramserver")
    token = paramserver.new_token()
    monkeypatch.setenv("TAILRACE_RELAY_TOKEN", token)

    async def scenario():
        with (
            paramserver.RelayServer(f"one-{os.getpid()}", token=token) as relay,
            paramserver.Publisher(relay.address, token=token) as publisher,
        ):
            async with served(tmp_path, relays=[relay.address]) as client:
                publisher.publish(5, [*fake_weights(105).items()])
                status, [line] = await client.call("POST", "/v1/update", {"relay": relay.address, "version": 5})
                assert (status, line) == (200, {"version": 5})
                _, [sample] = await client.call("POST", "/v1/generate", {"prompts": [[1, 2]]})
                assert set(sample["versions"]) == {5}
                assert_right(sample, (1, 2))

    asyncio.run(scenario())


def test_a_client_cannot_have_a_relay_of_its_choice_dialled(tmp_path, monkeypatch):
    """Whoever is dialled is shown a proof of the relays' secret."""
    monkeypatch.setenv("TAILRACE_RELAY_TOKEN", "secret")

    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            async with served(tmp_path) as client:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                status, [line] = await client.call("POST", "/v1/update", {"relay": address, "version": 5})
                assert (status, line["type"]) == (400, "RequestError")
                assert address in line["error"]
            with pytest.raises(BlockingIOError):
                listener.accept()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "relay",
    ["nonsense", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:", "::::", "half \ud83d:1", "x" * 500, "[::1:5", "\0:1"],
)
def test_a_wrong_address_of_a_relay_is_one_line(tmp_path, monkeypatch, relay):
    monkeypatch.setenv("TAILRACE_RELAY_TOKEN", pytest.importorskip("tailrace.paramserver").new_token())

    async def scenario():
        async with served(tmp_path) as client:
            status, [line] = await client.call("POST", "/v1/update", {"relay": relay, "version": 5})
            assert 400 <= status < 500
            assert "\n" not in line["error"]
            assert client.service.version == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("begun", [b"", b"POST /v1/gen", b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: "])
@pytest.mark.parametrize("after_one", [False, True])
def test_headers_that_do_not_come_end_the_connection(tmp_path, monkeypatch, begun, after_one):
    monkeypatch.setattr(server, "HEADERS_S", 0.3)

    def drip(client):
        with socket.create_connection((client.url.hostname, client.url.port), timeout=DEADLINE_S) as connection:
            if after_one:
                connection.sendall(
                    f"GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n\r\n".encode()
                )
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            with suppress(ConnectionError):
                connection.sendall(begun)
                while True:  # a byte now and then is no whole request
                    connection.sendall(b"x" if begun else b"")
                    time.sleep(0.02)
                    if select.select([connection], [], [], 0)[0] and not connection.recv(1 << 16):
                        return

    async def scenario():
        async with served(tmp_path) as client:
            running = asyncio.create_task(client.call("POST", "/v1/generate", {"prompts": [[1]], "samples": 99}))
            await asyncio.wait_for(asyncio.to_thread(drip, client), DEADLINE_S)
            assert (await client.call("GET", "/v1/status"))[0] == 200
            assert len((await running)[1]) == 99

    asyncio.run(scenario())


def test_a_body_that_stands_still_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "BODY_S", 0.2)

    def stall(client):
        with socket.create_connection((client.url.hostname, client.url.port), timeout=DEADLINE_S) as connection:
            head = f"POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
            connection.sendall(f"{head}Content-Length: 50\r\n\r\n".encode() + b'{"prompts"')
            return connection.recv(1 << 16)

    async def scenario():
        async with served(tmp_path) as client:
            answer = await asyncio.to_thread(stall, client)
            assert answer.startswith(b"HTTP/1.1 400")
            assert (await client.call("GET", "/v1/status"))[0] == 200

    asyncio.run(scenario())


def test_a_port_in_use_is_said_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"127.0.0.1:{port}.*in use"):
            listen("127.0.0.1", port)
