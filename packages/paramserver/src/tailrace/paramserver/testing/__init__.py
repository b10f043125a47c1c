"""For tests of what speaks with inference servers: a stand-in for a server of SGLang, in a process of its own.

with SGLangStandIn(tp_size=2, api_key="key") as server:
    SGLangServer(server.url, api_key="key").update(reader, 7)
    assert server.state()["version"] == "7"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

from tailrace.processes import Child

_WAIT_S = 60.0


class SGLangStandIn:
    """A server with the part of SGLang's interface that Tailrace calls, see `tailrace.paramserver.testing.sglang_server`.

    Args:
        tp_size: its tensor-parallel ranks.
        api_key: what requests must carry; empty: none is asked for.
    """

    def __init__(self, tp_size: int = 1, api_key: str = "") -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "tailrace.paramserver.testing.sglang_server", str(tp_size), api_key]
        self.process = Child(command, stdout=subprocess.PIPE, environment=environment, group=True)
        self.url = f"http://127.0.0.1:{int(self.process.line(_WAIT_S))}"

    def fail(self, **plans: Any) -> None:
        """Say what is to go wrong from now on, by path; ``__generate`` is ``/generate``."""
        self.ask("/_test/fail", {name.replace("__", "/"): plan for name, plan in plans.items()})

    def state(self) -> dict[str, Any]:
        """What it holds and was asked."""
        return self.ask("/_test/state")

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask it as a test does."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=_WAIT_S) as answer:  # noqa: S310
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def __enter__(self) -> SGLangStandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
