"""A headless Chromium that is told what to do over a pipe (Chrome DevTools Protocol). It needs no library.

Each message is JSON and ends with a zero byte: Chromium reads commands at descriptor 3, and writes answers and events to 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.report.errors import ReportError

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none, as in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--mute-audio",
    "--remote-debugging-pipe",
)


class BrowserError(ReportError, RuntimeError):
    """The browser did not start, did not answer, or a script in it failed."""


def chromium() -> str | None:
    """The browser's program; None if there is none on this machine."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """One page in a browser of its own, which ends with the context.

    Args:
        width, height: of the page, in CSS pixels.
        media: emulated features of media, such as ``{"prefers-color-scheme": "dark"}``.

    Raises:
        BrowserError: there is no browser, or it does not start.
    """

    def __init__(self, width: int = 1280, height: int = 900, media: dict[str, str] | None = None) -> None:
        program = chromium()
        if program is None:
            raise BrowserError(f"found none of {', '.join(NAMES)}, expected a browser on this machine")
        self._profile = Path(tempfile.mkdtemp(prefix="tailrace-browser-"))
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        self.errors: list[str] = []
        """What the page's console and its scripts complained of."""
        self._number, self._rest, self._session = 0, b"", ""
        wiring = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a browser of this machine
                [
                    "/bin/bash",
                    "-c",
                    wiring,
                    "browser",
                    program,
                    *_FLAGS,
                    f"--user-data-dir={self._profile}",
                    "about:blank",
                ],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        try:
            targets = self.call("Target.getTargets")["targetInfos"]
            target = next(each["targetId"] for each in targets if each["type"] == "page")
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
            features = [{"name": name, "value": value} for name, value in (media or {}).items()]
            self.call("Emulation.setEmulatedMedia", features=features)
        except BaseException:
            self.close()
            raise

    def open(self, url: str) -> None:
        """Go to an address, and return once it has loaded."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def script(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited, as plain data.

        Raises:
            BrowserError: it failed.
        """
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"].get("exception", {}).get("description", found))[:500])
        return found["result"].get("value")

    def until(self, expression: str, within_s: float = ANSWER_S) -> float:
        """Wait until an expression is true. Returns the seconds that it took.

        Raises:
            BrowserError: it did not become true in time.
        """
        began_s = time.monotonic()
        while True:
            try:
                if self.script(expression):
                    return time.monotonic() - began_s
            except BrowserError:
                pass  # the page is being replaced by the next
            if time.monotonic() - began_s > within_s:
                raise BrowserError(f"found {expression!r} still false after {within_s:g} s, expected it to become true")
            time.sleep(0.02)

    def resize(self, width: int, height: int) -> None:
        """Give the page a size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def press(self, key: str, code: int = 0) -> None:
        """Press a key and let it go, such as ``Tab`` (9) or ``ArrowDown`` (40)."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """Write the page as PNG: all of it, or what the window shows."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its answer.

        Raises:
            BrowserError: it was refused, or there was no answer.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._to, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise BrowserError(f"{method}: the browser is gone ({error.strerror})") from error
        until_s = time.monotonic() + ANSWER_S
        while True:
            found = self._next(method, until_s)
            if found.get("id") == self._number:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error'].get('message')}")
                return dict(found["result"])
            self._note(found)

    def close(self) -> None:
        """End the browser."""
        for end in (self._to, self._from):
            os.close(end)
        self._process.kill()
        self._process.wait(timeout=ANSWER_S)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, method: str, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until_s - time.monotonic()))
            block = os.read(self._from, 1 << 16) if ready else b""
            if not block:
                why = "is gone" if ready else f"did not answer for {ANSWER_S:g} s"
                raise BrowserError(f"{method}: the browser {why}")
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(
                str(parameters["exceptionDetails"].get("exception", {}).get("description", parameters))[:500]
            )
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
