"""One scoring worker of a scorer: a child process that is killed when it misses a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

from tailrace.reward.errors import WorkerDiedError, WorkerTimeoutError

_READ_BYTES = 1 << 16
_SAID_BYTES = 1 << 16  # of what verifiers print, this much is kept at most
DEBUG = "TAILRACE_DEBUG"
"""With this environment variable, what verifiers print is shown on stderr."""


class WorkerProcess:
    """A worker process that starts on its first request. Not thread-safe.

    After `WorkerTimeoutError` or `WorkerDiedError` the process is gone; the next request starts a fresh one. What verifiers
    print is not shown, but the last line of it stands in these errors.

    Args:
        local: verifiers in addition to the installed ones: name to ``module:function`` or ``file.py:function``.
        start_timeout_s: deadline for starting the process, and for importing one verifier.
    """

    def __init__(self, local: Mapping[str, str], start_timeout_s: float) -> None:
        self._local = dict(local)
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._loaded: set[str] = set()

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return None if self._process is None else self._process.pid

    def verify(
        self, verifier: str, response: str, answer: str, metadata: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """The worker's reply, ``{"reward": ...}`` or ``{"error": ...}``. Importing the verifier has its own deadline.

        Raises:
            WorkerTimeoutError: no reply within `timeout_s`; the worker was killed.
            WorkerDiedError: the process ended before it replied.
            TypeError: `metadata` has a value that JSON cannot carry.
        """
        request = {"verifier": verifier, "response": response, "answer": answer, "metadata": dict(metadata)}
        line = json.dumps(request).encode()
        if verifier not in self._loaded:
            reply = self._ask(json.dumps({"load": verifier}).encode(), self._start_timeout_s, f"loading {verifier!r}")
            if "error" in reply:
                return reply
            self._loaded.add(verifier)
        return self._ask(line, timeout_s, f"the verifier {verifier!r}")

    def stop(self) -> None:
        """Kill the process and its children, and reap it."""
        process, self._process = self._process, None
        self._loaded.clear()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said, self._said = self._said, None
        for stream in (process.stdin, process.stdout, said):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._said = None if os.environ.get(DEBUG) else tempfile.TemporaryFile("a+b")  # noqa: SIM115 - `stop` closes it
            self._process = subprocess.Popen(  # noqa: S603 (our own module, our own interpreter)
                [sys.executable, "-m", "tailrace.reward.worker", json.dumps(self._local)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=0,
                start_new_session=True,
            )
        return self._process

    def _ask(self, line: bytes, timeout_s: float, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        process = self._start()
        try:
            return self._exchange(process, line + b"\n", deadline)
        except TimeoutError:
            last = self._last_words()
            self.stop()
            raise WorkerTimeoutError(
                f"{what} gave no result within {timeout_s:g} s; the scoring worker was killed and will be replaced{last}"
            ) from None
        except (OSError, EOFError):
            last = self._last_words()
            self.stop()
            raise WorkerDiedError(
                f"the scoring worker ended with status {process.returncode} in {what}; it will be replaced{last}"
            ) from None
        finally:
            if self._said is not None and os.fstat(self._said.fileno()).st_size > _SAID_BYTES:
                self._said.truncate(0)

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        said = self._said.fileno()
        printed = os.pread(said, _READ_BYTES, max(0, os.fstat(said).st_size - _READ_BYTES))
        lines = printed.decode(errors="replace").strip().splitlines()
        return f"; the last that it printed: {lines[-1].strip():.200}" if lines else ""

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], line: bytes, deadline: float) -> dict[str, Any]:
        """Send a line and read one. Neither direction blocks past the deadline, however long the lines are."""
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018 (opened as pipes above)
        sending, reply = memoryview(line), bytearray()
        os.set_blocking(process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stdout, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        sending = sending[os.write(process.stdin.fileno(), sending) :]
                        if not sending:
                            selector.unregister(process.stdin)
                    else:
                        part = os.read(process.stdout.fileno(), _READ_BYTES)
                        if not part:
                            raise EOFError
                        reply += part
        parsed: dict[str, Any] = json.loads(reply)
        return parsed
