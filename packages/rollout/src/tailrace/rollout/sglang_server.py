"""SGLang's HTTP server, as an engine has it: started by the replica and ended with it, or one that runs and is joined.

A server of its own listens on this machine alone, with a key that only the replica knows. It runs in an environment of its own,
since SGLang pins another torch; its interpreter is engine option `python`. It is written for SGLang 0.5.23.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tailrace.contracts import MissingExtraError, extra
from tailrace.processes import Child
from tailrace.processes.child import last_line
from tailrace.processes.guard import guarded
from tailrace.rollout import sglang_plugin
from tailrace.rollout.errors import EngineDiedError, EngineMissingError, ModelLoadError, OptionError
from tailrace.rollout.memory import SLEEPS
from tailrace.rollout.model_files import model_type
from tailrace.rollout.options import (
    CacheShape,
    EngineOptions,
    check_engine_args,
    check_known,
    check_parallel,
    resolve_device,
    resolve_dtype,
)
from tailrace.rollout.sglang_plugin import MEMORY

if TYPE_CHECKING:
    from tailrace.paramserver.bridges.http_calls import HttpCalls
    from tailrace.paramserver.bridges.sglang import SGLangServer

_log = logging.getLogger(__name__)
TRIED = ("0.5.23",)
"""Versions that the tests ran."""
KEY_VARIABLE = "SGLANG_API_KEY"
"""Environment variable with the API key of a server that is joined."""
CALLED = (
    "/abort_request",
    "/begin_weight_update",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/end_weight_update",
    "/flush_cache",
    "/generate",
    "/init_weights_update_group",
    "/load_lora_adapter",
    "/model_info",
    "/pause_generation",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/server_info",
    "/unload_lora_adapter",
    "/update_weights_from_distributed",
    "/v1/loads",
    "/weights_checker",
)
"""The paths of a server that an engine calls."""
_OPTION_OF = {
    "device": "device",
    "dtype": "dtype",
    "random_seed": "seed",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_batch_tokens",
    "max_total_tokens": "kv_cache_bytes",
    "mem_fraction_static": "gpu_memory_utilization",
    "page_size": "block_tokens",
    "disable_radix_cache": "prefix_cache",
    "disable_cuda_graph": "eager",
    "tp_size": "tensor_parallel_size",
    "enable_memory_saver": "sleep_level",
    **dict.fromkeys(("enable_lora", "max_lora_rank", "max_loras_per_batch", "max_loaded_loras"), "adapter_rank"),
}
_KEPT = {
    "model_path": "model.path names the model",
    "skip_tokenizer_init": "an engine gets token ids",
    "incremental_streaming_output": "an engine counts the tokens of each event",
    "sampling_backend": "the others refuse seeds where some requests of a batch are greedy",
    "weight_version": "an engine names each version that it loads",
    "pp_size": "SGLang takes weights by broadcast with tensor parallelism alone",
    "dp_size": "a run has rollout.replicas for it",
    **dict.fromkeys(
        ("host", "port", "api_key", "admin_api_key"), "the server listens on this machine alone, with a key of its own"
    ),
}
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that may get adapters: SGLang is told at its start, in which the first adapter is not known."""
_START_S = 600.0
_PORTS = 3
_LOOK_S = 0.25
_ASK_S = 60.0
_END_GRACE_S = 10.0
_MAX_NUM_SEQS = 256
_OF_THE_JOINED = ("server", "max_model_len", "seed", "apart", "device", "answer_s")
_MORE_CONTEXT = 8  # SGLang keeps some of a context's tokens for itself


class Server(ABC):
    """A server that answers.

    Attributes:
        host, port: where it listens.
        key: its API key; empty: none.
        ours: whether it is ours alone.
        calls: requests that wait for their answer.
        info: what ``/server_info`` says.
        extended: whether it has Tailrace's plugin (`tailrace.rollout.sglang_plugin`).
        max_model_len: most prompt and response tokens of one request.
        deepest_sleep: the deepest level of sleep that it can be put to.
    """

    host: str
    port: int
    key: str
    ours: bool
    calls: HttpCalls
    info: Mapping[str, Any]
    extended: bool
    max_model_len: int
    deepest_sleep: int = 0

    @property
    def keeps_seeds(self) -> bool:
        """Whether a request's seed counts."""
        return self.extended or self.info.get("enable_deterministic_inference") is True

    def ask_ranks(self, question: str, timeout_s: float) -> dict[int, dict[str, str]]:
        """What each rank answers to a question to the plugin.

        Raises:
            BridgeError: the server does not answer, or not with that.
        """
        from tailrace.paramserver.errors import EngineRefused

        answer = self.calls.call("POST", "/weights_checker", {"action": question}, timeout_s) or {}
        try:
            return {
                int(rank["parallelism_info"][0]["tp_rank"]): {
                    str(key): str(text) for key, text in rank["checksums"].items()
                }
                for rank in answer["ranks"]
            }
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineRefused(
                f"found no ranks with checksums in the answer of /weights_checker: {answer!r:.200}"
            ) from error

    def weights(self) -> SGLangServer:
        """What gives it weights."""
        from tailrace.paramserver.bridges.sglang import SGLangServer

        return SGLangServer(self.calls.url, api_key=self.key or None, host=self._our_address())

    def ended(self) -> str | None:
        """Why its process is no more, as far as can be told from here; None: it is, or is not ours."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End it, if it is ours."""

    def _our_address(self) -> str:
        """The address of this host on which the server reaches us."""
        with socket.create_connection((self.host, self.port), _ASK_S) as connection:
            address: str = connection.getsockname()[0]
        return address

    def _meet(self) -> None:
        """Ask what it is.

        Raises:
            EngineMissingError: it lacks a path that an engine calls.
            EngineDiedError: it does not answer.
        """
        self.info = _answer(self.calls, "/server_info")
        version = str(self.info.get("version"))
        missing = [path for path in CALLED if _absent(self.calls, path)]
        if missing:
            raise EngineMissingError(
                f"SGLang {version} at {self.calls.url} has no {', '.join(missing)}, expected the interface of {TRIED[-1]}"
            )
        if version not in TRIED:
            _log.warning("found SGLang %s at %s; tried are %s", version, self.calls.url, ", ".join(TRIED))
        self.extended = self._has_plugin()

    def _has_plugin(self) -> bool:
        from tailrace.paramserver.errors import BridgeError, EngineRefused

        try:
            return bool(self.ask_ranks(MEMORY, _ASK_S))
        except EngineRefused:
            return False
        except BridgeError as error:
            raise EngineDiedError(str(error)) from error


class OwnServer(Server):
    """A server that is started here and ends with `close` or with this process, however that ends.

    Args:
        model_path: Hugging Face model directory.
        options: see `EngineOptions`.

    Raises:
        EngineMissingError: the interpreter has no SGLang, or one with another interface.
        DeviceMissingError: this machine does not have the device.
        OptionError: the model cannot span so many devices.
        ModelLoadError: it does not start; the message has its last line.
    """

    ours = True

    def __init__(self, model_path: str, options: EngineOptions) -> None:
        shape = CacheShape.read(model_path)
        self.max_model_len = min(options.max_model_len or shape.max_len, shape.max_len)
        python = interpreter(options)
        self.host, self.key = "127.0.0.1", secrets.token_hex(16)
        device = resolve_device(options)
        self.deepest_sleep = max(SLEEPS) if device == "cpu" else min(options.sleep_level, max(SLEEPS))
        settings = _settings(model_path, options, shape, device) | {"host": self.host, "api_key": self.key}
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-sglang-")
        folder = Path(self._folder.name)
        variables = _environment(options, device) | {"PYTHONPATH": str(_lay_plugin(folder))}
        self._said: IO[bytes] = (folder / "said").open("w+b")
        for left in reversed(range(_PORTS)):
            self.port = _free_port(self.host)
            self.calls = _calls(f"http://{self.host}:{self.port}", self.key)
            (folder / "server.json").write_text(
                json.dumps(_flags({**settings, "port": self.port, **options.engine_args}))
            )
            self._child = Child(
                guarded([python, "-c", _LAUNCH, str(folder / "server.json")]),
                group=True,
                stdout=self._said,
                stderr=self._said,
                environment=variables,
            )
            try:
                self._await_start(model_path)
                break
            except BaseException as error:
                if left and isinstance(error, ModelLoadError) and self._lost_its_port():
                    self._child.end(_END_GRACE_S)
                    continue
                self.close()
                raise
        try:
            self._meet()
            if not self.extended:
                raise EngineMissingError(
                    f"SGLang {self.info.get('version')} took no plugin from an entry point, expected that of {TRIED[-1]}"
                )
        except BaseException:
            self.close()
            raise

    def _lost_its_port(self) -> bool:
        """Whether another process took the port before the server did. It has forgotten what the server said then."""
        self._said.seek(0)
        lost = b"address already in use" in self._said.read().lower()
        if lost:
            self._said.seek(0)
            self._said.truncate()
        return lost

    def ended(self) -> str | None:
        """Why it is no more: its status and its last line."""
        status = self._child.poll()
        return None if status is None else f"it ended with status {status}: {last_line(self._said)}"

    def close(self) -> None:
        """End it and what it started."""
        self._child.end(_END_GRACE_S)
        self._said.close()
        self._folder.cleanup()

    def _await_start(self, model_path: str) -> None:
        from tailrace.paramserver.errors import EngineTimeout, EngineUnreachable

        deadline = time.monotonic() + _START_S
        while True:
            if (why := self.ended()) is not None:
                raise ModelLoadError(f"SGLang's server does not start with {model_path}: {why}")
            try:
                if self.calls.exchange("GET", "/health", None, _ASK_S)[0] == 200:
                    return
            except (EngineTimeout, EngineUnreachable):
                pass  # it does not listen yet
            if time.monotonic() > deadline:
                raise ModelLoadError(
                    f"SGLang's server did not start with {model_path} in {_START_S:.0f} s; it said {last_line(self._said)!r}"
                )
            time.sleep(_LOOK_S)


class JoinedServer(Server):
    """A server that somebody else started, for one replica alone: whoever else gives it weights is noticed, and is an error.

    Args:
        model_path: Hugging Face model directory, the same as the server's.
        options: see `EngineOptions`.

    Raises:
        EngineMissingError: its interface is another one.
        EngineDiedError: it does not answer, or wants another key.
        ModelLoadError: it serves a model of another type.
        OptionError: see `address_of`.
    """

    ours = False

    def __init__(self, model_path: str, options: EngineOptions) -> None:
        self.host, self.port = address_of(options)
        self.key = os.environ.get(KEY_VARIABLE, "")
        self.calls = _calls(options.server, self.key)
        shape = CacheShape.read(model_path)
        self._meet()
        found, expected = _answer(self.calls, "/model_info").get("model_type"), model_type(model_path)
        if found != expected:
            raise ModelLoadError(
                f"{self.calls.url} serves a model of type {found!r}, expected {expected!r} as {model_path}"
            )
        limit = self.info.get("context_length")
        limits = [shape.max_len, options.max_model_len, limit if type(limit) is int else None]
        self.max_model_len = min(one for one in limits if one is not None)

    def close(self) -> None:
        """Leave it as it is."""


def serve(model_path: str, options: EngineOptions) -> Server:
    """The server of an engine. Raises the errors of `OwnServer` and `JoinedServer`."""
    return JoinedServer(model_path, options) if options.server else OwnServer(model_path, options)


def address_of(options: EngineOptions) -> tuple[str, int]:
    """Host and port of a server that is joined.

    Raises:
        OptionError: `server` is no address, or options are given that only the server's own start can set.
    """
    wrong = [name for name in options.given if name not in _OF_THE_JOINED]
    if wrong:
        raise OptionError(
            f"engine option {wrong[0]!r}: found it beside 'server', expected it among the arguments of the server that runs"
        )
    host: str | None = None
    port: int | None = None
    parts = urllib.parse.urlsplit(options.server)
    with contextlib.suppress(ValueError):  # a port that is no number
        host, port = parts.hostname, parts.port
    if host is None or port is None or parts.scheme != "http" or parts.path.strip("/"):
        raise OptionError(f"engine option server: found {options.server!r}, expected http://HOST:PORT")
    return host, port


def check_arguments(options: EngineOptions) -> None:
    """Refuse arguments of the server that an option sets, that an engine relies on, or that the installed SGLang does not have.

    Raises:
        OptionError: there is one.
        EngineMissingError: there are some, and no SGLang has its list of them where it is expected.
    """
    check_engine_args(options.engine_args, _OPTION_OF, _KEPT)
    known = _arguments(interpreter(options)) if options.engine_args else ()
    for name in options.engine_args:
        check_known(name, known, "SGLang")


@lru_cache(maxsize=4)
def _arguments(python: str) -> tuple[str, ...]:
    """Names of the arguments of the SGLang that an interpreter has, which is read and not imported."""
    find = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    try:
        found = subprocess.run(  # noqa: S603 - the interpreter that the user names
            [python, "-c", find], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
        path = Path(found.stdout.strip()) / "srt" / "arg_groups" / "field_order.py"
        names = [node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)]
    except (OSError, subprocess.SubprocessError, SyntaxError, ValueError) as error:
        raise EngineMissingError(
            f"engine option engine_args: found no list of SGLang's arguments with {python} ({type(error).__name__}), expected "
            f"that of {TRIED[-1]}"
        ) from error
    return tuple(name for name in names if isinstance(name, str) and name.isidentifier())


def interpreter(options: EngineOptions) -> str:
    """The Python that is to run the server.

    Raises:
        EngineMissingError: there is none, or it has no SGLang, as far as can be seen without running it.
    """
    if not options.python:
        if importlib.util.find_spec("sglang") is None:
            raise EngineMissingError(
                "found no SGLang beside Tailrace; name the interpreter of an environment that has it (engine option python), "
                "such as tools/sglang/make builds, or a server that runs (engine option server)"
            )
        return sys.executable
    if not os.access(options.python, os.X_OK):
        raise EngineMissingError(f"engine option python: found no program {options.python!r}, expected an interpreter")
    return options.python


def _lay_plugin(folder: Path) -> Path:
    """A folder from which the server's processes take Tailrace's plugin."""
    path = folder / "plugins"
    described = path / "tailrace_sglang_plugin-0.dist-info"
    described.mkdir(parents=True)
    shutil.copyfile(sglang_plugin.__file__, path / "tailrace_sglang_plugin.py")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: tailrace-sglang-plugin\nVersion: 0\n")
    (described / "entry_points.txt").write_text("[sglang.srt.plugins]\ntailrace = tailrace_sglang_plugin:install\n")
    return path


# The arguments come from a file: among those of the process, all of the machine could read the key.
_LAUNCH = """
import json, sys
from sglang.launch_server import run_server
from sglang.srt.server_args import prepare_server_args
run_server(prepare_server_args(json.load(open(sys.argv[1]))))
"""


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Arguments as on a command line; those that are false or None are left out."""
    flags: list[str] = []
    for name, value in settings.items():
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if value is not True:
            flags += map(str, value) if isinstance(value, list | tuple) else [_text(value)]
    return flags


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _settings(model_path: str, options: EngineOptions, shape: CacheShape, device: str) -> dict[str, Any]:
    """Arguments of ``sglang.launch_server``, by name."""
    if options.tensor_parallel_size > 1 and device == "cpu":
        raise OptionError(
            f"engine option tensor_parallel_size: found {options.tensor_parallel_size}, expected 1: SGLang has one device on "
            "CPU"
        )
    check_parallel(shape, options.tensor_parallel_size)
    dtype = resolve_dtype(options, device)
    max_num_seqs = options.max_num_seqs or _MAX_NUM_SEQS
    found: dict[str, Any] = {
        "model_path": model_path,
        "skip_tokenizer_init": True,
        "device": device,
        "dtype": dtype,
        "max_running_requests": max_num_seqs,
        "context_length": min(options.max_model_len or shape.max_len, shape.max_len) + _MORE_CONTEXT,
        "random_seed": options.seed,
        "tp_size": options.tensor_parallel_size,
        "incremental_streaming_output": True,
        "disable_radix_cache": not options.prefix_cache,
        "disable_cuda_graph": bool(options.eager) or device == "cpu",
        "log_level": "warning",
        "sleep_on_idle": True,
        "sampling_backend": "pytorch",  # the others refuse seeds where some requests of a batch are greedy
        "load_snapshot_publish_interval": 1,  # its own is 15 steps, in which a request may take another block
    }
    if options.max_batch_tokens is not None:
        found["chunked_prefill_size"] = options.max_batch_tokens
    if options.block_tokens is not None:
        found["page_size"] = options.block_tokens
    cache_bytes = options.kv_cache_bytes
    if device == "cpu":
        cache_bytes = shape.cpu_kv_bytes(options, dtype, options.block_tokens or 1, max_num_seqs)
        found |= {"attention_backend": "torch_native", "disable_overlap_schedule": True}
    else:
        found["mem_fraction_static"] = options.gpu_memory_utilization
        found["enable_memory_saver"] = options.sleep_level > 0
    if cache_bytes is not None:
        found["max_total_tokens"] = cache_bytes // shape.kv_bytes_per_token(dtype)
    if options.adapter_rank:
        found |= {"enable_lora": True, "max_lora_rank": options.adapter_rank, "lora_target_modules": ADAPTED}
        found |= {
            "max_loras_per_batch": 2,
            "max_loaded_loras": 2,
        }  # the base without one, or the one before it, counts too
        if device == "cpu":
            found["lora_backend"] = "torch_native"
    return found


def _environment(options: EngineOptions, device: str) -> dict[str, str]:
    """The server's variables: ours, without those that are about our interpreter."""
    found = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"
    }
    found |= {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "PYTHONWARNINGS": "ignore"}
    if device == "cpu":
        found |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(options.threads or 1)}
    elif options.threads:
        found["OMP_NUM_THREADS"] = str(options.threads)
    return found


def _calls(url: str, key: str) -> HttpCalls:
    try:
        with extra("tailrace-rollout", "sglang"):
            from tailrace.paramserver.bridges.http_calls import HttpCalls
    except MissingExtraError as error:
        raise EngineMissingError(str(error)) from error
    return HttpCalls(url, api_key=key or None)


def _answer(calls: HttpCalls, path: str) -> dict[str, Any]:
    from tailrace.paramserver.errors import BridgeError

    try:
        return calls.call("GET", path, None, _ASK_S) or {}
    except BridgeError as error:
        raise EngineDiedError(str(error)) from error


def _absent(calls: HttpCalls, path: str) -> bool:
    from tailrace.paramserver.errors import BridgeError

    try:
        status, _ = calls.exchange(
            "OPTIONS", path, None, _ASK_S
        )  # 405 where there is something, which this leaves alone
        return status == 404
    except BridgeError as error:
        raise EngineDiedError(str(error)) from error


def _free_port(host: str) -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
    return port
