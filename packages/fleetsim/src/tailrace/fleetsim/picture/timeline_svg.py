"""``timeline.svg``: who did what, to print and to put into a document. One system, or several over the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tailrace.fleetsim.picture.scene import Scene
from tailrace.fleetsim.picture.svg import Svg
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.charts import TimeAxis
from tailrace.pipeline.run.reporting.timeline_chart import COLORS, WORK
from tailrace.pipeline.run.timeline import Doing, MarkKind, Span

WIDTH, LEFT, RIGHT, EDGE = 1200.0, 92.0, 72.0, 12.0
TRAINER_HEIGHT, ROW_HEIGHT, GAP = 24.0, 15.0, 3.0
COLUMN = 0.5  # pixels that show one thing
SHADES = 6
FAINTEST = 0.22
MARK_SIZE = 4.0
LABEL_WIDTH = 34.0
DRAWN_MARKS = {
    MarkKind.REPACK: ("repack", False),
    MarkKind.EVICTION: ("releasing", True),
    MarkKind.DOWN: ("down", True),
}
NAMES = {Doing.GENERATING: "generating, stronger with more trajectories", Doing.WAITING: "waiting for a batch"}
MARK_NAMES = {MarkKind.REPACK: "repacked away", MarkKind.EVICTION: "migrated away", MarkKind.DOWN: "died"}

Piece = tuple[Doing, float]
"""What is done, and how dark it is drawn."""


def timeline_svg(scenes: Sequence[Scene], title: str) -> str:
    """The drawing.

    Args:
        scenes: each on a block of its own. Several share the length of the time axis, each from the begin of its stretch.
        title: for those who cannot see it.
    """
    svg = Svg(WIDTH, title)
    return svg.draw(blocks(svg, scenes, 8.0))


def blocks(svg: Svg, scenes: Sequence[Scene], y: float) -> float:
    """The scenes below each other, and a legend; returns the height so far."""
    length_s = max(scene.shown_s[1] - scene.shown_s[0] for scene in scenes) or 1.0
    seen: set[Doing | MarkKind] = set()
    for scene in scenes:
        y = _block(svg, scene, y, length_s, seen, relative=len(scenes) > 1)
    return _legend(svg, y, seen) + 8


def nice_ticks(begin: float, end: float, most: int = 8) -> list[float]:
    """Round numbers from one to another, at most about so many."""
    if end <= begin:
        return [begin]
    rough = (end - begin) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first = math.ceil(begin / step - 1e-9)
    return [number * step for number in range(first, math.floor(end / step + 1e-9) + 1)]


def _block(svg: Svg, scene: Scene, y: float, length_s: float, seen: set[Doing | MarkKind], *, relative: bool) -> float:
    """One system; returns where the next one begins."""
    begin_s, end_s = scene.shown_s
    scale = (WIDTH - LEFT - RIGHT) / length_s
    svg.text(LEFT, y + 18, scene.name, "title")
    svg.text(LEFT, y + 36, "; ".join(filter(None, (scene.caption, scene.rows_note))), "muted")
    top = y + 62
    svg.text(WIDTH - EDGE, top - 8, "busy", "muted", "small", "right")
    at = top
    members = [(TRAINER, "0"), *((REPLICA, member) for member in scene.loads)]
    for role, member in members:
        height = TRAINER_HEIGHT if role == TRAINER else ROW_HEIGHT
        spans = [span for span in scene.spans if (span.role, span.member) == (role, member)]
        _row(svg, scene, role, member, spans, at, height, scale, seen)
        middle = at + height / 2 + 4
        svg.text(LEFT - 8, middle, role if role == TRAINER else member, "right", "" if role == TRAINER else "small")
        busy = _busy(role, spans, begin_s, end_s)
        svg.text(WIDTH - EDGE, middle, f"{100 * busy:.0f} %", "muted", "small", "right")
        at += height + (2 * GAP if role == TRAINER else GAP)
    bottom = at - GAP
    _steps(svg, scene, top, bottom, scale)
    _marks(svg, scene, top, scale, seen)
    _axis(svg, (0.0, length_s) if relative else (begin_s, begin_s + length_s), bottom, scale, relative=relative)
    return bottom + 48


def _row(
    svg: Svg,
    scene: Scene,
    role: str,
    member: str,
    spans: Sequence[Span],
    y: float,
    height: float,
    scale: float,
    seen: set[Doing | MarkKind],
) -> None:
    begin_s, end_s = scene.shown_s
    moment_s = COLUMN / scale
    count = math.ceil((end_s - begin_s) / moment_s)
    moments = [begin_s + (column + 0.5) * moment_s for column in range(count)]
    loads = iter(scene.loads.get(member, ()) if role == REPLICA else ())
    pieces = list(_pieces(moments, spans, loads, scene.peak))
    x = LEFT
    for piece, many in groupby(pieces):
        width = COLUMN * sum(1 for _ in many)
        if piece is not None:
            doing, shade = piece
            seen.add(doing)
            svg.rect(x, y, width, height, COLORS[doing].removeprefix("$"), opacity=shade)
        x += width


def _pieces(
    moments: Sequence[float], spans: Sequence[Span], loads: Iterator[tuple[float, float]], peak: float
) -> Iterator[Piece | None]:
    """What is drawn at each moment; None where nothing is known."""
    ordered = iter(sorted(spans, key=lambda span: span.start_s))
    span, load = next(ordered, None), next(loads, None)
    for at_s in moments:
        while span is not None and span.end_s <= at_s:
            span = next(ordered, None)
        while load is not None and load[0] <= at_s:
            load = next(loads, None)
        if span is None or span.start_s > at_s:
            yield None
        elif span.doing is Doing.GENERATING and load is not None:
            shade = max(1, math.ceil(SHADES * min(1.0, load[1] / peak))) / SHADES
            yield span.doing, FAINTEST + (1 - FAINTEST) * shade
        else:
            yield span.doing, 1.0


def _busy(role: str, spans: Iterable[Span], begin_s: float, end_s: float) -> float:
    work = sum(
        max(0.0, min(span.end_s, end_s) - max(span.start_s, begin_s)) for span in spans if span.doing in WORK[role]
    )
    return work / (end_s - begin_s) if end_s > begin_s else 0.0


def _steps(svg: Svg, scene: Scene, top: float, bottom: float, scale: float) -> None:
    begin_s, end_s = scene.shown_s
    labelled = LEFT - LABEL_WIDTH
    for at_s, version in scene.steps:
        if not begin_s <= at_s <= end_s:
            continue
        x = LEFT + (at_s - begin_s) * scale
        svg.line(x, top - 4, x, bottom, "muted", dash="2 3")
        if x - labelled >= LABEL_WIDTH:
            labelled = x
            svg.text(x, top - 8, f"v{version}", "muted", "small", "middle")


def _marks(svg: Svg, scene: Scene, top: float, scale: float, seen: set[Doing | MarkKind]) -> None:
    begin_s, end_s = scene.shown_s
    replicas = top + TRAINER_HEIGHT + 2 * GAP + ROW_HEIGHT / 2
    rows = {member: replicas + place * (ROW_HEIGHT + GAP) for place, member in enumerate(scene.loads)}
    rows_of_trainer = top + TRAINER_HEIGHT / 2
    last: dict[tuple[MarkKind, str, str], float] = {}
    for mark in sorted(scene.marks, key=lambda mark: mark.at_s):
        if mark.kind not in DRAWN_MARKS or not begin_s <= mark.at_s <= end_s:
            continue
        x = LEFT + (mark.at_s - begin_s) * scale
        key = (mark.kind, mark.role, mark.member)
        if x - last.get(key, -math.inf) < 2 * MARK_SIZE:
            continue
        last[key] = x
        seen.add(mark.kind)
        color, down = DRAWN_MARKS[mark.kind]
        svg.triangle(x, rows.get(mark.member, rows_of_trainer), MARK_SIZE, color, down=down)


def _axis(svg: Svg, shown_s: tuple[float, float], bottom: float, scale: float, *, relative: bool) -> None:
    begin_s, end_s = shown_s
    time = TimeAxis.for_length(end_s)
    svg.line(LEFT, bottom + 4, WIDTH - RIGHT, bottom + 4, "rule")
    for tick in nice_ticks(time(begin_s), time(end_s)):
        x = LEFT + (tick * time.seconds - begin_s) * scale
        svg.line(x, bottom + 4, x, bottom + 8, "muted")
        svg.text(x, bottom + 21, f"{tick:,g}", "muted", "small", "middle")
    since = "since the begin of the stretch" if relative else "of the run"
    svg.text(WIDTH - RIGHT, bottom + 36, f"{time.unit} {since}", "muted", "small", "right")


def _legend(svg: Svg, y: float, seen: set[Doing | MarkKind]) -> float:
    x = LEFT
    for doing in (each for each in COLORS if each in seen):
        svg.rect(x, y, 12, 12, COLORS[doing].removeprefix("$"), radius=2)
        x = _named(svg, x, y, NAMES.get(doing, str(doing)))
    for kind in (each for each in DRAWN_MARKS if each in seen):
        color, down = DRAWN_MARKS[kind]
        svg.triangle(x + 6, y + 6, MARK_SIZE + 1, color, down=down)
        x = _named(svg, x, y, MARK_NAMES[kind])
    return y + 20


def _named(svg: Svg, x: float, y: float, name: str) -> float:
    svg.text(x + 17, y + 10, name, "small")
    return x + 17 + 6.0 * len(name) + 16
