"""The process of a tracker that works apart from the run: ``python -m tailrace.pipeline.trackers.apart``, over its streams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.pipeline.trackers.delivery import tracker_plugin
from tailrace.pipeline.trackers.tracker import TrackedRun, Tracker
from tailrace.processes import serve


class _Keeper:
    """Answers the run's messages."""

    def __init__(self) -> None:
        self._tracker: Tracker | None = None

    def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._answer(message)
        except Exception as error:  # told to the run, which ends this process
            return {"error": f"{type(error).__name__}: {error}"}

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._tracker is None:
            about = message["open"]
            plugin = tracker_plugin(about["name"], about["options"])
            self._tracker = plugin.open(TrackedRun(Path(about["directory"]), about["config"]))
            return {"place": self._tracker.place}
        if "log" in message:
            step, figures = message["log"]
            self._tracker.log(step, figures)
        else:
            self._tracker.close(finished=message["close"])
        return {}


if __name__ == "__main__":
    serve(_Keeper())
