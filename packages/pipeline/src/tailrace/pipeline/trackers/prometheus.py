"""Tracker ``prometheus``: the newest figures in Prometheus' text format, for a scraper that asks.

The format is a line for each figure, so it is written here: with the package ``prometheus_client`` Ray would open a page of
its own, which asks nobody for a token.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from tailrace.pipeline.trackers.tracker import TrackedRun

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ASK_S = 5.0


@dataclass(frozen=True)
class Prometheus:
    """An HTTP server with ``/metrics``, for as long as the run goes on.

    Args:
        port: its port; 0: any, which the run's summary names.
        host: its address. Whoever reaches it may read the figures.
    """

    port: int = 9464
    host: str = "127.0.0.1"
    apart: ClassVar[bool] = True

    def check(self) -> None:
        """See `TrackerPlugin`.

        Raises:
            ValueError: the port is no port.
        """
        if not 0 <= self.port < 65_536:
            raise ValueError(f"option 'port': found {self.port}, expected 0 to 65535")

    def open(self, run: TrackedRun) -> _Server:
        """See `TrackerPlugin`."""
        return _Server(self, run)


class _Server:
    def __init__(self, options: Prometheus, run: TrackedRun) -> None:
        self._label = re.sub(r'["\\\n]', "_", run.name)
        self._figures: dict[str, float] = {}
        newest = self._page

        class Page(BaseHTTPRequestHandler):
            timeout = _ASK_S

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = newest().encode()
                self.send_response(200)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the library's name
                """Says nothing."""

        self._server = ThreadingHTTPServer((options.host, options.port), Page)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        self.place = f"http://{options.host}:{self._server.server_port}/metrics"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        steps = max(step, self._figures.get("steps", 0))  # an evaluation may come behind a later step
        self._figures = {**self._figures, **figures, "steps": steps}  # whoever reads has one or the other

    def close(self, *, finished: bool) -> None:
        del finished
        self._server.shutdown()
        self._server.server_close()

    def _page(self) -> str:
        lines = []
        for name, value in self._figures.items():
            plain = "tailrace_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            lines += [f"# TYPE {plain} gauge", f'{plain}{{run="{self._label}"}} {value!r}']
        return "\n".join([*lines, ""])
