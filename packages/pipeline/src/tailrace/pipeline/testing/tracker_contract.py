"""What holds for every tracker (entry-point group ``tailrace.tracker``): run it on your own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tailrace.pipeline.trackers import TrackedRun, TrackerPlugin

CONFIG = {"app": "laminar", "seed": 3, "trainer": {"options": {"lr": 1e-4, "betas": [0.9, 0.95], "schedule": None}}}
ROWS: tuple[tuple[int, Mapping[str, float]], ...] = (
    (0, {"evaluation/sampled/accuracy": 0.25}),
    (1, {"step/loss": 0.5, "step/tokens": 12_345.0}),
    (2, {"step/loss": -1e-9, "step/tokens": 0.0}),
    (1, {"evaluation/sampled/accuracy": 0.5}),  # it was measured while step 2 ran
    (3, {}),
)
LATER: tuple[tuple[int, Mapping[str, float]], ...] = ((3, {"step/loss": 0.125}),)
READ_S = 10.0


Seen = Callable[[str], Mapping[str, float]]
"""Reads back, from the place that a tracker names, the newest value of each figure."""


def check_tracker(
    plugin: TrackerPlugin, directory: Path, *, live: Seen | None = None, kept: Seen | None = None
) -> None:
    """Check a tracker: it takes rows in any order of steps, says where they are, ends, and goes on when a run is resumed.

    Args:
        plugin: with its options.
        directory: an empty run directory.
        live: reads while the tracker is open, again and again for at most 10 s.
        kept: reads once it is closed.

    Raises:
        AssertionError: it does not keep what `Tracker` promises.
    """
    plugin.check()
    run = TrackedRun(directory, CONFIG)
    for rows in (ROWS, LATER):
        tracker = plugin.open(run)
        assert tracker.place, "found no place, expected where a person looks"
        for step, figures in rows:
            tracker.log(step, figures)
        wanted = {name: value for _, figures in rows for name, value in figures.items()}
        if live is not None:
            _await(live, tracker.place, wanted)
        tracker.close(finished=rows is LATER)
        if kept is not None:
            _await(kept, tracker.place, wanted)


def _await(seen: Seen, place: str, wanted: Mapping[str, float]) -> None:
    deadline = time.monotonic() + READ_S
    while True:
        found = seen(place)
        missing = {name: value for name, value in wanted.items() if found.get(name) != value}
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not missing, f"found {dict(found)} at {place}, expected {missing} too"
