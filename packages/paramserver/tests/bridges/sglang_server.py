"""A server with the part of SGLang 0.5.23's HTTP interface that updates weights, as strict as its documentation.

Started as a process by the tests. The fields, defaults, status codes and sessions are those of `http_server.py`,
`io_struct.py` and `weight_updater.py` of the released wheel; an unknown field, which SGLang would ignore, is refused. Its
"model" is a dictionary of tensors for each tensor-parallel rank, and every rank is a process with SGLang's steps for joining
the group. What a test wants to go wrong it says over `/_test/fail`.
"""

import datetime
import hashlib
import json
import multiprocessing
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed.distributed_c10d as c10d

FIELDS = {  # path: {field: (type, required)}
    "/init_weights_update_group": {
        "master_address": (str, True),
        "master_port": (int, True),
        "rank_offset": (int, True),
        "world_size": (int, True),
        "group_name": (str, False),
        "backend": (str, False),
    },
    "/destroy_weights_update_group": {"group_name": (str, False)},
    "/update_weights_from_distributed": {
        "names": ([str], True),
        "dtypes": ([str], True),
        "shapes": ([[int]], True),
        "group_name": (str, False),
        "flush_cache": (bool, False),
        "abort_all_requests": (bool, False),
        "weight_version": (str, False),
        "load_format": (str, False),
        "selector": (("target", "draft", "all"), False),
        "torch_empty_cache": (bool, False),
    },
    "/begin_weight_update": {"selector": (("target", "draft", "all"), False)},
    "/end_weight_update": {},
    "/pause_generation": {"mode": (("abort", "retract", "in_place"), False)},
    "/continue_generation": {"torch_empty_cache": (bool, False)},
}


def fits(value, kind):
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(item, kind[0]) for item in value)
    if isinstance(kind, tuple):
        return value in kind
    return type(value) is kind


def problem(path, body):
    """What FastAPI would answer 422 to."""
    if not isinstance(body, dict):
        return "the body is no object"
    for name, value in body.items():
        if name not in FIELDS[path]:
            return f"unknown field {name}"
        if not fits(value, FIELDS[path][name][0]):
            return f"field {name} has the wrong type"
    missing = [name for name, (_, required) in FIELDS[path].items() if required and name not in body]
    return f"missing fields {missing}" if missing else None


def rank_main(pipe, tp_rank, inherited):
    """One tensor-parallel rank: joins groups as SGLang's `init_custom_process_group` does, receives, loads."""
    for other in inherited:  # the server's ends: only without them does its death show here
        other.close()
    groups, model, received = {}, {}, 0
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
                store = c10d.PrefixStore(name, store)
                backend = c10d.Backend(body.get("backend", "nccl"))
                group, _ = c10d._new_process_group_helper(
                    size,
                    rank,
                    [],
                    backend,
                    store,
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
                    torch.distributed.destroy_process_group(groups.pop(message[1]))
                    pipe.send((True, "Succeeded to destroy custom process group."))
                else:
                    pipe.send((False, "The group to be destroyed does not exist."))
            elif message[0] == "model":
                digest = {
                    name: [str(t.dtype).removeprefix("torch."), list(t.shape), hashlib.sha256(raw(t)).hexdigest()]
                    for name, t in model.items()
                }
                pipe.send((digest, received))
        except Exception as error:
            pipe.send((False, f"Failed to update parameter online: {type(error).__name__}: {error}."))


def raw(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


class State:
    def __init__(self, ranks, api_key):
        self.ranks, self.api_key, self.lock = ranks, api_key, threading.Lock()
        self.paused, self.session, self.version = None, False, "default"
        self.fail, self.log, self.flushed = {}, [], 0

    def all_ranks(self, *message):
        with self.lock:
            for pipe in self.ranks:
                pipe.send(message)
            answers = [pipe.recv() for pipe in self.ranks]
        return all(ok for ok, _ in answers), " | ".join(sorted({text for _, text in answers}))


class Handler(BaseHTTPRequestHandler):
    state: State

    def log_message(self, *_):
        pass

    def reply(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self):
        key = self.state.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.reply(401, {"error": "Unauthorized"})
            return False
        return True

    def planned(self, path):
        """A failure that a test asked for; True if it answered."""
        plan = self.state.fail.get(path)
        if plan is None or plan.get("after", 0) > 0:
            if plan:
                plan["after"] -= 1
            return False
        if "hang_s" in plan:
            time.sleep(plan["hang_s"])
        if "trickle_s" in plan:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            end = time.monotonic() + plan["trickle_s"]
            while time.monotonic() < end:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
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

    def do_GET(self):
        state = self.state
        if self.path == "/_test/state":
            models = []
            with state.lock:
                for pipe in state.ranks:
                    pipe.send(("model",))
                    models.append(pipe.recv())
            content = {"paused": state.paused, "session": state.session, "version": state.version, "log": state.log}
            self.reply(200, {**content, "flushed": state.flushed, "models": models})
            return
        if not self.allowed() or self.planned(self.path):
            return
        state.log.append(self.path)
        if self.path == "/model_info":
            self.reply(200, {"model_path": "test", "weight_version": state.version, "is_generation": True})
        elif self.path == "/server_info":
            sizes = {"tp_size": len(state.ranks), "pp_size": 1, "dp_size": 1, **state.fail.get("sizes", {})}
            self.reply(200, {**sizes, "version": "0.5.23"})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self):
        state, path = self.state, self.path
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if path == "/_test/fail":
            state.fail = body
            state.log.clear()
            self.reply(200, {})
            return
        if not self.allowed() or self.planned(path):
            return
        state.log.append(path)
        if path not in FIELDS:
            self.reply(404, {"detail": "Not Found"})
        elif (found := problem(path, body)) is not None:
            self.reply(422, {"detail": found})
        else:
            getattr(self, path[1:])(body)

    def answer(self, success, message):
        self.reply(200 if success else 400, {"success": success, "message": message})

    def init_weights_update_group(self, body):
        self.answer(*self.state.all_ranks("init", {"group_name": "weight_update_group", **body}))

    def destroy_weights_update_group(self, body):
        self.answer(*self.state.all_ranks("destroy", body.get("group_name", "weight_update_group")))

    def begin_weight_update(self, _):
        if self.state.session:
            self.answer(False, "a weight-update session is already open; call end_weight_update() first")
        else:
            self.state.session = True
            self.answer(True, "Success")

    def end_weight_update(self, _):
        opened, self.state.session = self.state.session, False
        self.answer(
            opened, "Success" if opened else "no weight-update session is open; call begin_weight_update() first"
        )

    def update_weights_from_distributed(self, body):
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

    def pause_generation(self, body):
        self.state.paused = body.get("mode", "abort")
        self.reply(200, {"message": "Generation paused successfully.", "status": "ok"})

    def continue_generation(self, _):
        self.state.paused = None
        self.reply(200, {"message": "Generation continued successfully.", "status": "ok"})


def main(tp_size, api_key):
    fork, ranks = multiprocessing.get_context("fork"), []
    for tp_rank in range(tp_size):
        ours, theirs = fork.Pipe()
        ranks.append(ours)
        fork.Process(target=rank_main, args=(theirs, tp_rank, list(ranks)), daemon=True).start()
        theirs.close()
    Handler.state = State(ranks, api_key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
