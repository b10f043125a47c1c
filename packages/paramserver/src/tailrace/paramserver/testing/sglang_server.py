"""A server with the part of SGLang's HTTP interface that Tailrace calls, as strict as SGLang's own data classes.

    python -m tailrace.paramserver.testing.sglang_server TP_SIZE API_KEY        # prints its port

``sglang_fields.json`` has the fields of each request, as `tools/sglang/fields` read them from SGLang's `io_struct`; an unknown
field, which SGLang would ignore, is refused. Status codes, sessions and streams are those of its HTTP server. Its "model" is a
dictionary of tensors for each tensor-parallel rank, and every rank is a process with SGLang's steps for joining the group. A
token follows from the weights and all tokens before it (`next_token`), so a test can predict each response. One that is not in
the vocabulary ends the server, as it does SGLang. What a test wants to go wrong it says over ``/_test/fail``.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed.distributed_c10d as c10d

from tailrace.contracts import element_digest

FIELDS: dict[str, Any] = json.loads(Path(__file__).with_name("sglang_fields.json").read_text())
"""``version`` and, in ``paths``, the fields of each path's request: annotation, and whether it is required."""
VOCABULARY, CONTEXT, CAPACITY = 50, 64, 4096
_JSON_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "float"),
    float: ("float",),
    str: ("str", "Literal", "array"),
    list: ("list", "List", "Set"),
    dict: ("dict", "Dict"),
}
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_MOST_ADAPTERS = 2
_PLAIN = {"/model_info", "/server_info", "/v1/loads", "/health", "/flush_cache"}


def next_token(weights: str, tokens: Sequence[int]) -> tuple[int, float]:
    """The token behind others, and its log-probability.

    Args:
        weights: `weights_of` the model.
        tokens: prompt and response so far.
    """
    drawn = zlib.crc32(f"{weights} {list(tokens)}".encode())
    return drawn % VOCABULARY, -(1 + drawn % 1000) / 1000


def weights_of(model: Mapping[str, Any]) -> str:
    """A digest of tensors by name."""
    whole = hashlib.sha256()
    for name in sorted(model):
        whole.update(name.encode() + _raw(model[name].detach()))
    return whole.hexdigest()


def problem(fields: Mapping[str, Any], body: object) -> str | None:
    """What is wrong with the fields of a request, which SGLang would answer 422 to or ignore."""
    if not isinstance(body, dict):
        return "the body is no object"
    for name, value in body.items():
        if name not in fields:
            return f"unknown field {name}"
        annotation = fields[name]["type"]
        kinds = ("None", "Optional") if value is None else _JSON_KINDS[type(value)]
        if annotation != "Any" and not any(kind in annotation for kind in kinds):
            return f"field {name} has the wrong type"
        if annotation.startswith("Literal") and repr(value) not in annotation:
            return f"field {name} has another value than {annotation}"
    missing = [name for name, field in fields.items() if field["required"] and name not in body]
    return f"missing fields {missing}" if missing else None


def _raw(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def rank_main(pipe: Connection, tp_rank: int, inherited: Sequence[Connection]) -> None:
    """One tensor-parallel rank: joins groups as SGLang's `init_custom_process_group` does, receives, loads."""
    for other in inherited:  # the server's ends: only without them does its death show here
        other.close()
    groups: dict[str, Any] = {}
    model: dict[str, Any] = {}
    received = 0
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        try:
            if message[0] == "init":
                body = message[1]
                timeout = datetime.timedelta(seconds=30)
                rank, size, name = body["rank_offset"] + tp_rank, body["world_size"], body["group_name"]
                url = f"tcp://{body['master_address']}:{body['master_port']}"
                store, rank, size = next(c10d.rendezvous(url, rank, size, timeout=timeout))
                store.set_timeout(timeout)
                group, _ = c10d._new_process_group_helper(
                    size,
                    rank,
                    [],
                    c10d.Backend(body.get("backend", "nccl")),
                    c10d.PrefixStore(name, store),
                    group_name=name,
                    backend_options=None,
                    timeout=timeout,
                    device_id=None,
                )
                c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
                groups[name] = group
                pipe.send((True, "Succeeded to initialize custom process group."))
            elif message[0] == "receive":
                body = message[1]
                group = groups[body["group_name"]]
                weights, handles = [], []
                for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
                    weight = torch.empty(shape, dtype=getattr(torch, dtype))
                    handles.append(torch.distributed.broadcast(weight, src=0, group=group, async_op=True))
                    weights.append((name, weight))
                for handle in handles:
                    handle.wait()
                model.update(weights)
                received = max(received, sum(weight.nbytes for _, weight in weights))
                pipe.send((True, "Succeeded to update parameter online."))
            elif message[0] == "destroy":
                if message[1] in groups:
                    group = groups.pop(message[1])
                    torch.distributed.destroy_process_group(group)
                    group = None  # as in SGLang, which has no other reference: its connections end
                    pipe.send((True, "Succeeded to destroy custom process group."))
                else:
                    pipe.send((False, "The group to be destroyed does not exist."))
            elif message[0] == "elements":
                found = {}
                for number, (rank, name, box) in enumerate(message[1]):
                    if rank == tp_rank:
                        here = model[name][tuple(slice(*edges) for edges in box)]
                        found[str(number)] = f"{str(here.dtype).removeprefix('torch.')} {element_digest(_raw(here))}"
                pipe.send(found)
            elif message[0] == "model":
                digest = {
                    name: [str(t.dtype).removeprefix("torch."), list(t.shape), hashlib.sha256(_raw(t)).hexdigest()]
                    for name, t in model.items()
                }
                pipe.send((digest, received, weights_of(model)))
        except Exception as error:
            pipe.send((False, f"Failed to update parameter online: {type(error).__name__}: {error}."))


class _Server(ThreadingHTTPServer):
    request_queue_size = 256


class StandInState:
    """The server's: ranks, weights' version, what is in flight, and what is to go wrong.

    Args:
        ranks: pipes to the ranks.
        api_key: what requests must carry.
    """

    def __init__(self, ranks: Sequence[Connection], api_key: str) -> None:
        self.ranks, self.api_key, self.lock = ranks, api_key, threading.Lock()
        self.paused: str | None = None
        self.session, self.version, self.weights = False, "default", ""
        self.fail: dict[str, Any] = {}
        self.log: list[str] = []
        self.flushed = 0
        self.released: set[str] = set()
        self.seeds: list[int | None] = []
        self.adapters: list[str] = []
        self.asked: list[str | None] = []  # the adapters of requests
        self.changed = threading.Condition()
        self.running: dict[str, list[int]] = {}
        self.waiting: list[str] = []
        self.aborted: set[str] = set()
        self.most_running = 4

    def all_ranks(self, *message: Any) -> tuple[bool, str]:
        """Ask all ranks; whether all agree, and what they said."""
        with self.lock:
            for pipe in self.ranks:
                pipe.send(message)
            answers = [pipe.recv() for pipe in self.ranks]
        return all(ok for ok, _ in answers), " | ".join(sorted({text for _, text in answers}))

    def told(self, *message: Any) -> list[Any]:
        """What each rank answers."""
        with self.lock:
            for pipe in self.ranks:
                pipe.send(message)
            return [pipe.recv() for pipe in self.ranks]


class Handler(BaseHTTPRequestHandler):
    """Answers a connection, in a thread of its own."""

    state: ClassVar[StandInState]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def reply(self, status: int, content: object) -> None:
        """Answer with JSON; None: with an empty body."""
        data = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def allowed(self) -> bool:
        """Whether the request has the key; answers if not."""
        key = self.state.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.reply(401, {"error": "Unauthorized"})
            return False
        return True

    def planned(self, path: str) -> bool:
        """A failure that a test asked for; True if it answered."""
        plan = self.state.fail.get(path)
        if path == "/generate" or plan is None or plan.get("after", 0) > 0:
            if plan and path != "/generate":
                plan["after"] -= 1
            return False
        if "hang_s" in plan:
            time.sleep(plan["hang_s"])
        if plan.get("kill"):
            os._exit(9)
        if "trickle_s" in plan:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            end = time.monotonic() + plan["trickle_s"]
            while time.monotonic() < end:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.close_connection = True
        elif "raw" in plan:
            data = plan["raw"].encode()
            self.send_response(plan.get("status", 200))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        elif "status" in plan:
            self.reply(plan["status"], {"success": False, "message": plan.get("message", "planned")})
        else:
            return False
        return True

    def do_GET(self) -> None:
        """Answer what the server is and does."""
        state = self.state
        if self.path == "/_test/state":
            content: dict[str, Any] = {
                "paused": state.paused,
                "session": state.session,
                "version": state.version,
                "log": state.log,
            }
            content |= {"running": len(state.running), "waiting": len(state.waiting)}
            models = state.told("model")
            content |= {
                "released": sorted(state.released),
                "seeds": state.seeds,
                "adapters": state.adapters,
                "asked": state.asked,
            }
            content |= {"flushed": state.flushed, "models": [one[:2] for one in models], "weights": models[0][2]}
            self.reply(200, content)
            return
        if self.path == "/health":
            self.reply(200, None)
            return
        if not self.allowed() or self.planned(self.path):
            return
        state.log.append(self.path)
        if self.path == "/model_info":
            self.reply(200, {"model_path": "test", "model_type": "qwen3", "weight_version": state.version})
        elif self.path == "/server_info":
            sizes = {"tp_size": len(state.ranks), "pp_size": 1, "dp_size": 1, **state.fail.get("sizes", {})}
            limits = {
                "context_length": CONTEXT,
                "max_total_num_tokens": CAPACITY,
                "max_running_requests": state.most_running,
            }
            self.reply(200, {**sizes, **limits, "version": FIELDS["version"]})
        elif self.path == "/v1/loads?include=core":
            used = sum(map(len, list(state.running.values())))
            self.reply(200, {"loads": [{"dp_rank": 0, "token_usage": used / CAPACITY}]})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_OPTIONS(self) -> None:
        """Say whether there is such a path: 405 where there is."""
        there = self.path in {*FIELDS["paths"], *_PLAIN} and self.path not in self.state.fail.get("without", [])
        self.reply(405 if there else 404, {"detail": "Method Not Allowed" if there else "Not Found"})

    def do_POST(self) -> None:
        """Carry out a request."""
        state, path = self.state, self.path
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if path == "/_test/fail":
            state.fail = body
            state.log.clear()
            state.seeds.clear()
            state.asked.clear()
            self.reply(200, {})
            return
        if not self.allowed() or self.planned(path):
            return
        state.log.append(path)
        if path.startswith("/flush_cache"):
            with state.changed:  # as SGLang waits for requests to end
                idle = state.changed.wait_for(
                    lambda: not (state.running or state.waiting), float(path.partition("timeout=")[2] or 0)
                )
            self.reply(200 if idle else 400, None)
        elif path not in FIELDS["paths"]:
            self.reply(404, {"detail": "Not Found"})
        elif (found := problem(FIELDS["paths"][path], body)) is not None:
            self.reply(422, {"detail": found})
        else:
            getattr(self, path[1:])(body)

    def answer(self, success: bool, message: str) -> None:
        """Answer as SGLang's calls for weights do."""
        self.reply(200 if success else 400, {"success": success, "message": message})

    # ------------------------------------------------------------------------------------------------ weights

    def init_weights_update_group(self, body: dict[str, Any]) -> None:
        """Join a group."""
        self.answer(*self.state.all_ranks("init", {"group_name": "weight_update_group", **body}))

    def destroy_weights_update_group(self, body: dict[str, Any]) -> None:
        """Leave a group."""
        self.answer(*self.state.all_ranks("destroy", body.get("group_name", "weight_update_group")))

    def begin_weight_update(self, _: object) -> None:
        """Open a session."""
        if self.state.session:
            self.answer(False, "a weight-update session is already open; call end_weight_update() first")
        else:
            self.state.session = True
            self.answer(True, "Success")

    def end_weight_update(self, _: object) -> None:
        """Close the session."""
        opened, self.state.session = self.state.session, False
        self.answer(
            opened, "Success" if opened else "no weight-update session is open; call begin_weight_update() first"
        )

    def update_weights_from_distributed(self, body: dict[str, Any]) -> None:
        """Receive a bucket."""
        state = self.state
        if not state.session and "/begin_weight_update" not in state.fail:
            self.answer(False, "update_weights_from_distributed must run between begin_weight_update() and end")
            return
        success, message = state.all_ranks("receive", {"group_name": "weight_update_group", **body})
        if success:
            if body.get("flush_cache", True):
                if state.paused == "in_place":
                    self.answer(
                        False, "Weights were updated, but the cache was not flushed because requests are running"
                    )
                    return
                state.flushed += 1
            if body.get("weight_version") is not None:
                state.version = body["weight_version"]
        self.answer(success, message)

    def weights_checker(self, body: dict[str, Any]) -> None:
        """Answer as a server with Tailrace's plugin does, unless a test wants one without."""
        question, _, asked = body.get("action", "checksum").partition(" ")
        answers: list[Any] = []
        if "plugin" in self.state.fail.get("without", []):
            question = ""
        elif question == "tailrace.memory":
            answers = [{"bytes": "0"} for _ in self.state.ranks]
        elif question == "tailrace.elements":
            answers = self.state.told("elements", json.loads(asked))
        if not answers:
            self.answer(False, f"Unsupported action={body.get('action')!r:.40}")
            return
        ranks = [
            {"checksums": found, "per_gpu_checksum": "", "parallelism_info": [{"tp_rank": rank}]}
            for rank, found in enumerate(answers)
        ]
        self.reply(200, {"success": True, "message": "Success", "ranks": ranks})

    def load_lora_adapter(self, body: dict[str, Any]) -> None:
        """Read an adapter's files, once."""
        adapters, name = self.state.adapters, body["lora_name"]
        if name in adapters or len(adapters) == _MOST_ADAPTERS:
            self.answer(False, f"{name} is loaded already" if name in adapters else "too many adapters are loaded")
        elif not all((Path(body["lora_path"]) / file).is_file() for file in _ADAPTER_FILES):
            self.answer(False, "no adapter is there")
        else:
            adapters.append(name)
            self.answer(True, "")

    def unload_lora_adapter(self, body: dict[str, Any]) -> None:
        """Forget an adapter."""
        if loaded := body["lora_name"] in self.state.adapters:
            self.state.adapters.remove(body["lora_name"])
        self.answer(loaded, "" if loaded else "no such adapter")

    def release_memory_occupation(self, body: dict[str, Any]) -> None:
        """Give memory back. A server that works ends."""
        if self.state.running or self.state.waiting:
            os._exit(9)
        self.state.released |= set(body["tags"])
        self.reply(200, None)

    def resume_memory_occupation(self, body: dict[str, Any]) -> None:
        """Take memory again; what was not released ends the server."""
        if not self.state.released >= set(body["tags"]):
            os._exit(9)
        self.state.released -= set(body["tags"])
        self.reply(200, None)

    def pause_generation(self, body: dict[str, Any]) -> None:
        """Generate nothing from now on."""
        self.state.paused = body.get("mode", "abort")
        self.reply(200, {"message": "Generation paused successfully.", "status": "ok"})

    def continue_generation(self, _: object) -> None:
        """Generate again, with the weights that are there now."""
        self.state.weights = self.state.told("model")[0][2]
        with self.state.changed:
            self.state.paused = None
            self.state.changed.notify_all()
        self.reply(200, {"message": "Generation continued successfully.", "status": "ok"})

    # ------------------------------------------------------------------------------------------------ generation

    def abort_request(self, body: dict[str, Any]) -> None:
        """Stop requests whose id begins so. An id that is not there is ignored."""
        with self.state.changed:
            there = [*self.state.running, *self.state.waiting]
            self.state.aborted |= {rid for rid in there if body.get("abort_all") or rid.startswith(body["rid"])}
            self.state.changed.notify_all()
        self.reply(200, None)

    def generate(self, body: dict[str, Any]) -> None:
        """Stream a response."""
        state, prompt, sampling = self.state, body["input_ids"], body["sampling_params"]
        plan = state.fail.get("/generate", {})
        if plan.get("status"):
            self.reply(plan["status"], {"error": {"message": "planned"}})
            return
        if body.get("lora_path") not in (None, *state.adapters):
            self.reply(400, {"error": {"message": "no such adapter"}})
            return
        if (found := problem(FIELDS["sampling_params"], sampling)) is not None:
            self.reply(422, {"detail": found})
            return
        if not all(0 <= token < VOCABULARY for token in prompt):
            os._exit(9)  # as an index error in SGLang's embedding does
        if state.released:
            os._exit(9)
        state.asked.append(body.get("lora_path"))
        state.seeds.append(sampling.get("sampling_seed"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        if len(prompt) + sampling["max_new_tokens"] > CONTEXT:
            self._event({"error": {"message": "longer than the model's context length"}})
            return
        rid = body["rid"]
        try:
            self._stream(rid, list(prompt), sampling, plan)
        finally:
            with state.changed:
                state.running.pop(rid, None)
                state.aborted.discard(rid)
                if rid in state.waiting:
                    state.waiting.remove(rid)
                state.changed.notify_all()

    def _stream(self, rid: str, prompt: list[int], sampling: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        state, made = self.state, list[int]()
        logprobs: list[list[Any]] = []
        sent, reason = 0, None  # type: int, dict[str, Any] | None
        with state.changed:
            state.waiting.append(rid)
        while reason is None:
            if plan.get("abort_after") == 0:
                reason = {"type": "abort", "message": "planned"}
                self._event({"output_ids": [], "meta_info": self._meta(rid, [], 0, reason, plan)})
                break
            with state.changed:
                state.changed.wait_for(lambda: self._may_go_on(rid))
                if rid in state.aborted:
                    reason = {"type": "abort", "message": "Aborted by AbortReq."}
                elif rid in state.waiting:
                    state.waiting.remove(rid)
                    state.running[rid] = [*prompt]
            if reason is None:
                reason = self._one_more(prompt, made, logprobs, sampling, plan)
                with state.changed:
                    state.running[rid] = [*prompt, *made]
            if self._goes_wrong(plan, len(made)):
                return
            if plan.get("events_of", 1) > len(made) - sent and reason is None:
                continue
            first = sent if plan.get("incremental", True) else 0
            sent = len(made)
            meta = self._meta(rid, logprobs[first:], sent, reason, plan)
            self._event({"output_ids": made[first:], "meta_info": meta})
            time.sleep(plan.get("token_s", 0.001))
        self._part(b"data: [DONE]\n\n")
        self._part(b"")

    def _meta(
        self, rid: str, logprobs: list[list[Any]], sent: int, reason: Mapping[str, Any] | None, plan: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": rid,
            "completion_tokens": sent,
            "finish_reason": reason,
            "weight_version": self.state.version,
            "output_token_logprobs": logprobs,
            "num_retractions": 0,
            **plan.get("meta", {}),
        }

    def _may_go_on(self, rid: str) -> bool:
        state = self.state
        free = rid in state.running or (len(state.running) < state.most_running and state.waiting[0] == rid)
        return rid in state.aborted or (state.paused is None and free)

    def _one_more(
        self,
        prompt: list[int],
        made: list[int],
        logprobs: list[list[Any]],
        sampling: Mapping[str, Any],
        plan: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """Draw a token; why the response ends with it."""
        token, logprob = next_token(self.state.weights, [*prompt, *made])
        made.append(token)
        logprobs.append([logprob, token, None])
        ends = {*(sampling.get("stop_token_ids") or ()), *plan.get("end_tokens", ())}
        if len(made) >= sampling["max_new_tokens"]:
            return {"type": "length", "length": len(made)}
        if not sampling.get("ignore_eos") and token in ends:
            return {"type": "stop", "matched": token}
        if len(made) == plan.get("abort_after"):
            return {"type": "abort", "message": "planned"}
        return None

    def _goes_wrong(self, plan: Mapping[str, Any], made: int) -> bool:
        if made == plan.get("kill_after"):
            os._exit(9)
        if made == plan.get("hang_after"):
            time.sleep(plan["hang_s"])
        if made == plan.get("cut_after"):
            self.wfile.write(b"40\r\ndata: {")
            self.wfile.flush()
            return True
        return False

    def _event(self, content: object) -> None:
        self._part(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _part(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def main(tp_size: int, api_key: str) -> None:
    """Serve on a free port of this machine, which is printed."""
    fork, ranks = multiprocessing.get_context("fork"), list[Connection]()
    for tp_rank in range(tp_size):
        ours, theirs = fork.Pipe()
        ranks.append(ours)
        fork.Process(target=rank_main, args=(theirs, tp_rank, list(ranks)), daemon=True).start()
        theirs.close()
    Handler.state = StandInState(ranks, api_key)
    server = _Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
