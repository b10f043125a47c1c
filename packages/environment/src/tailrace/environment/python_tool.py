"""The environment ``python``: a Python tool. A turn with a program gets what the program prints; one without ends the session.

The model writes a fenced block. Its variables are there in later blocks, since each run plays the blocks before it again,
without their output: so a session is the list of its blocks, a snapshot of it is small, and nothing of it lives between two
calls. A program that draws random numbers or asks the clock finds other values of its earlier blocks. Programs run in a sandbox
of `tailrace.reward.sandbox` alone; without one that works here the environment refuses to start.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import extra
from tailrace.environment.protocol import Observation, StepResult

if TYPE_CHECKING:
    from tailrace.reward.sandbox import Limits, ProgramRun, Sandbox


_HARNESS = Path(__file__).with_name("blocks.py.txt").read_text(encoding="utf-8")
_CUT = "\n[cut]\n"
_LATENCY = {"median": 0.0, "sigma": 0.0, "cap": math.inf}


class PythonTool:
    """A Python tool. Each turn earns 0: a verifier judges the last one.

    A turn's program is its last complete fenced block that is Python or names no language. Its answer is what the program
    prints; after an exception also the exception's last line, at a limit the limit's name. A turn without a block ends the
    session.

    Args:
        sandbox: a backend of `tailrace.sandbox`; ``auto`` takes the first that works.
        cpu_s: CPU seconds of one call, the blocks before it included.
        wall_s: likewise, seconds.
        memory_mib: memory of one call.
        most_calls: programs in a session; the answer to the last of them is the session's end.
        most_characters: longest observation; what is longer is cut.
        modules: installed modules that programs may import besides the standard library, such as ``numpy``.
        latency: seconds that each answer takes at least, for experiments with a tail of slow tools: ``median`` seconds,
            ``sigma`` (standard deviation of the natural logarithm) and ``cap``. They are drawn from the row's ``seed``, its
            prompt and the number of the call, so that a session that is played again waits as long.

    Raises:
        ValueError: an option is out of its range, or no option of `latency` has this name.
        MissingExtraError: tailrace-reward is not installed.
        NoSandboxError: no sandbox works here, or programs cannot import a module.
    """

    replayable = True

    def __init__(
        self,
        sandbox: str = "auto",
        cpu_s: float = 5.0,
        wall_s: float = 20.0,
        memory_mib: int = 256,
        most_calls: int = 16,
        most_characters: int = 2000,
        latency: Mapping[str, float] | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        for name, value in (("most_calls", most_calls), ("most_characters", most_characters)):
            if type(value) is not int or value < 1:
                raise ValueError(f"found {name} = {value!r}, expected a whole number above 0")
        self._limits = _limits(cpu_s, wall_s, memory_mib)
        self._modules = tuple(modules)
        get_sandbox(sandbox, self._modules)
        self._sandbox, self._most_calls, self._most_characters = sandbox, most_calls, most_characters
        self._latency = _checked_latency(latency or {})
        self._blocks: list[str] = []
        self._seed = ""

    def reset(self, row: Mapping[str, Any]) -> Observation:
        """Begin; the prompt says everything, so the observation is empty.

        Args:
            row: its ``prompt`` and, if it is there, ``seed`` decide the latencies; nothing else is read.
        """
        self._seed = f"{row.get('seed', '')}/{row.get('prompt', '')}"
        return ""

    def step(self, action: str) -> StepResult:
        """What the turn's program prints; done where there is none.

        Raises:
            SandboxFailedError: the sandbox failed, not the program.
        """
        from tailrace.reward.extraction import python_blocks

        found = python_blocks(action)
        if not found:
            return StepResult(done=True)
        wait_s = self.latency_s(len(self._blocks))
        self._blocks.append(textwrap.dedent(found[-1]))
        if wait_s:
            time.sleep(wait_s)
        run = run_program(self._sandbox, _HARNESS, json.dumps(self._blocks).encode(), self._limits, self._modules)
        printed, error = run.stdout.decode("utf-8", "replace"), run.stderr.decode("utf-8", "replace").strip()
        if run.verdict == "over-budget":
            error = f"over its limit: {run.limit}"
        elif run.verdict != "error":
            error = ""
        said = _cut(printed, self._most_characters) + (f"{error.splitlines()[-1]:.200}\n" if error else "")
        metadata = {"verdict": str(run.verdict), "cpu_s": run.cpu_s, "latency_s": wait_s}
        return StepResult(said, done=len(self._blocks) >= self._most_calls, metadata=metadata)

    def close(self) -> None:
        """Nothing is held."""

    def snapshot(self) -> bytes:
        """The blocks so far."""
        return json.dumps([self._seed, self._blocks]).encode()

    def restore(self, state: bytes) -> None:
        """Go on from a snapshot.

        Raises:
            ValueError: it is none.
        """
        self._seed, self._blocks = json.loads(state)

    def latency_s(self, call: int) -> float:
        """Seconds that the answer to a call takes at least; calls are counted from 0."""
        if not self._latency["median"]:
            return 0.0
        digest = hashlib.blake2b(f"{self._seed}/{call}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        normal = random.Random(int.from_bytes(digest, "big")).gauss(0.0, 1.0)
        return min(self._latency["median"] * math.exp(self._latency["sigma"] * normal), self._latency["cap"])


def _limits(cpu_s: float, wall_s: float, memory_mib: int) -> Limits:
    with extra("tailrace-environment", "python"):
        from tailrace.reward.sandbox import Limits

    return Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib)


def _checked_latency(given: Mapping[str, float]) -> dict[str, float]:
    unknown = sorted(set(given) - set(_LATENCY))
    if unknown:
        raise ValueError(f"found latency.{unknown[0]}, expected one of {', '.join(_LATENCY)}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"found latency.{name} = {value!r}, expected a number, at least 0")
    return {**_LATENCY, **given}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(0, most - len(_CUT))] + _CUT


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_sandboxes: dict[tuple[str, tuple[str, ...]], Sandbox] = {}


def run_program(sandbox: str, program: str, stdin: bytes, limits: Limits, modules: tuple[str, ...] = ()) -> ProgramRun:
    """Run a program and wait for its end.

    Args:
        sandbox: the sandbox's name, see `tailrace.reward.sandbox.select_sandbox`.
        program: its source.
        stdin: its input.
        limits: its limits.
        modules: installed modules that it may import.

    Raises:
        NoSandboxError: no sandbox works here.
        SandboxFailedError: the sandbox failed, which says nothing of the program.
    """
    from tailrace.reward.errors import SandboxFailedError
    from tailrace.reward.sandbox import RunVerdict

    found, loop = get_sandbox(sandbox, modules)
    run = asyncio.run_coroutine_threadsafe(found.run(program, stdin=stdin, limits=limits), loop).result()
    if run.verdict is RunVerdict.INFRASTRUCTURE:
        raise SandboxFailedError(f"the sandbox {run.isolation!r} failed: {run.reason}")
    return run


def get_sandbox(name: str, modules: tuple[str, ...] = ()) -> tuple[Sandbox, asyncio.AbstractEventLoop]:
    """The process's sandbox of this name with these modules, and the loop in which it runs; the first call probes it.

    Raises:
        NoSandboxError: no sandbox works here.
    """
    global _loop
    from tailrace.reward.sandbox import select_sandbox

    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="tailrace-sandbox", daemon=True).start()
        if (name, modules) not in _sandboxes:
            _sandboxes[name, modules] = select_sandbox(name, modules)
        return _sandboxes[name, modules], _loop
