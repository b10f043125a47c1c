"""The backend ``sandbox-fusion``: programs run on a SandboxFusion server (ByteDance), by its HTTP API ``/run_code``.

Used only where its URL is named, since what isolates the programs is the server's affair. It takes a limit of time and of
memory; CPU, processes and files are limited by the server's own settings, and a run that is cancelled goes on there until its
time limit.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.limits import DEFAULT_LIMITS, Limits
from tailrace.reward.sandbox.protocol import ProgramRun, RunVerdict

NAME = "sandbox-fusion"
_GRACE_S = 30.0  # for its queue and the network
_REPLY_BYTES = 64 << 20


def fusion_sandbox(url: str = "") -> FusionSandbox:
    """A sandbox on the server at `url`, such as ``http://localhost:8080``.

    Raises:
        NoSandboxError: `url` is no HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise NoSandboxError(f"found the address {url!r}, expected sandbox-fusion:http://HOST:PORT")
    return FusionSandbox(url)


class FusionSandbox:
    """Runs programs on one server, as many at a time as it is asked for."""

    name = NAME

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def run(self, program: str, *, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS) -> ProgramRun:
        """See `Sandbox`. ``cpu_s`` is the time that the server says, and stdin goes as text."""
        asked = {
            "code": program.encode("utf-8", "replace").decode(),
            "language": "python",
            "stdin": stdin.decode(errors="replace"),
            "run_timeout": limits.wall_s,
            "memory_limit_MB": limits.memory_mib,
        }
        begun = time.monotonic()
        try:
            reply = await asyncio.to_thread(self._post, asked, limits.wall_s + _GRACE_S)
            return _read(reply, time.monotonic() - begun, limits)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"the SandboxFusion server at {self._url} gave no result: {type(error).__name__}: {error}"
            return _failed(reason, time.monotonic() - begun)

    async def close(self) -> None:
        """Nothing is kept open."""

    def _post(self, asked: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 (http or https: the factory has seen to it)
            f"{self._url}/run_code", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            reply = json.loads(response.read(_REPLY_BYTES))
        if not isinstance(reply, dict):
            raise TypeError(f"found {type(reply).__name__}, expected an object")
        return reply


def _read(reply: dict[str, Any], took_s: float, limits: Limits) -> ProgramRun:
    ran = reply.get("run_result")
    if reply["status"] == "SandboxError" or not isinstance(ran, dict):
        return _failed(f"the SandboxFusion server failed: {reply.get('message', '')!s:.200}", took_s)
    kept = limits.output_kib << 10
    stdout, stderr = (ran.get("stdout") or "").encode(), (ran.get("stderr") or "").encode()
    truncated = len(stdout) > kept or len(stderr) > kept
    code = ran.get("return_code")
    limit = "wall" if ran["status"] == "TimeLimitExceeded" else "output" if truncated else None
    if limit is None and code is None:
        return _failed(f"the SandboxFusion server gave no exit code: {ran['status']}", took_s)
    verdict = RunVerdict.OVER_BUDGET if limit else RunVerdict.OK if code == 0 else RunVerdict.ERROR
    wall_s = float(ran.get("execution_time") or took_s)
    return ProgramRun(
        verdict, limit, None if limit else code, stdout[:kept], stderr[:kept], truncated, wall_s, wall_s, NAME
    )


def _failed(reason: str, took_s: float) -> ProgramRun:
    return ProgramRun(RunVerdict.INFRASTRUCTURE, None, None, b"", b"", False, 0.0, took_s, NAME, reason)
