"""Shows a run: a `RunStatus` rendered for ``tailrace status``, a live display on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.contracts import shown
from tailrace.faulttol.recovery import DISPENSABLE
from tailrace.pipeline.run.figures.status import WINDOW_STEPS, RunStatus

REDRAWS_PER_SECOND = 2
LINE_EVERY_S = 10.0
LONG_WAIT_S = 5.0
MOST_ROWS = 16
KV_CELLS = 10
NARROW = 76  # characters
LOSSES = {"loss": "loss", "approx_kl": "KL", "entropy": "entropy", "grad_norm": "gradient norm"}
_COLORS = {
    "generating": "green", "answering": "green", "idle": "yellow", "down": "red", "starting": "dim", "releasing": "magenta",
}  # fmt: skip


def panel(status: RunStatus, *, wall_s: float) -> RenderableType:
    """The whole display.

    Args:
        status: the status.
        wall_s: seconds since the run began.
    """
    parts: list[RenderableType] = [_head(status, wall_s), _phase(status)]
    if status.steps:
        parts += [Text(), _figures(status)]
    if status.replicas and status.phase == "training":  # before and after it, they are not the run's
        parts += [Text(), _replicas(status.replicas)]
        if status.environments:
            parts += [Text(), _environments(status)]
    said = [Text(text, style="yellow") for text in (*filter(None, [status.warning]), *status.notes)]
    warned = [*contradictions(status), *given_up(status), *_down(status), *said, *long_waits(status)]
    if warned:
        parts += [Text(), *warned]
    return Group(*parts)


def line(status: RunStatus, *, wall_s: float) -> str:
    """The status in one line, for logs."""
    parts = [f"[{clock(wall_s)}] {status.phase}"]
    if status.detail:
        parts.append(status.detail)
    if status.phase == "training" and status.steps:
        parts.append(f"step {status.step} of {status.steps}")
        parts += [f"{name} {value}" for name, value in _measured(status) if value != "none yet"]
    if status.left_s is not None:
        parts.append(f"{clock(status.left_s)} left")
    parts += [text.plain for text in (*contradictions(status), *given_up(status), *long_waits(status))]
    return ", ".join(parts)


def restarts(counts: Mapping[str, int]) -> str:
    """How many members were restarted since they failed, and of which roles."""
    parts = [f"{count} {role}" for role, count in sorted(counts.items()) if count]
    total = sum(counts.values())
    return f"{total} ({', '.join(parts)})" if parts else "0"


def incident_line(incident: Mapping[str, Any]) -> str:
    """An incident with its time."""
    return f"[{clock(incident['wall_s'])}] {shown(incident['text'])}"


def contradictions(status: RunStatus) -> list[Text]:
    """A line if snapshots of replicas contradict the controller's state, which is a fault in Tailrace or in an engine."""
    if not status.contradictions:
        return []
    many = f"{status.contradictions} snapshot{'s' if status.contradictions != 1 else ''}"
    return [
        Text(f"{many} of replicas contradict the controller: they run something else than it believes", style="red")
    ]


def given_up(status: RunStatus) -> list[Text]:
    """A line for each member that is not restarted any more."""
    if status.over:
        return []
    lines = []
    for gone in status.given_up:
        where = f" on {gone['machine']}" if gone["machine"] else ""
        does = "nobody does" if gone["role"] in DISPENSABLE else "others do"
        lines.append(f"{gone['role']} {gone['id']} is given up{where}, and {does} its work: {gone['reason']}")
    return [Text(line, style="yellow") for line in lines]


def _down(status: RunStatus) -> list[Text]:
    """Members that are not up, except replicas, which have their own rows."""
    others = [
        f"{member['role']} {member['id']} is {member['health']}"
        for member in status.down
        if member["role"] != "replica"
    ]
    return [Text(", ".join(others), style="yellow")] if others and status.phase == "training" else []


def long_waits(status: RunStatus) -> list[Text]:
    """The waits that last longer than usual."""
    if status.phase in ("done", "failed", "interrupted"):
        return []
    waits = sorted(
        (wait for wait in status.waits if wait["waited_s"] >= LONG_WAIT_S), key=lambda wait: -wait["waited_s"]
    )
    return [
        Text(
            f"waiting {wait['waited_s']:.0f} s for {wait['for']} (given up in {clock(wait['left_s'])})", style="yellow"
        )
        for wait in waits[:3]
    ]


def clock(seconds: float) -> str:
    """A time in seconds as text."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def _head(status: RunStatus, wall_s: float) -> Text:
    return Text.assemble(
        ("tailrace ", "bold cyan"),
        (status.app, "bold"),
        (f"  {status.run_dir}  {clock(wall_s)}{' simulated' if status.simulated else ''}", "dim"),
        overflow="fold",
    )


def _phase(status: RunStatus) -> RenderableType:
    style = {"failed": "bold red", "interrupted": "bold yellow"}.get(status.phase, "bold")
    text = Text(status.phase, style=style)
    if status.detail:
        text.append(f"  {status.detail}", style="not bold")
    left = f"  {clock(status.left_s)} left" if status.left_s is not None else ""
    if status.over and status.steps:
        text.append(f"  step {status.step} of {status.steps}", style="not bold")
        return text
    if not status.steps or status.phase != "training":
        text.append(left, style="not bold dim")
        return text
    row = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=status.steps, completed=status.step, width=30)
    row.add_row(text, bar, Text(f"step {status.step} of {status.steps}{left}"))
    return row


def _measured(status: RunStatus) -> Iterable[tuple[str, str]]:
    accuracy = held_out = "none yet"
    if status.accuracy is not None:
        before = f" (before {100 * status.accuracy_before:.1f} %)" if status.accuracy_before is not None else ""
        accuracy = f"{100 * status.accuracy:.1f} %{before}"
    if status.held_out_reward is not None:
        was = status.held_out_reward_before
        held_out = f"{status.held_out_reward:.3f}" + (f" (before {was:.3f})" if was is not None else "")
    staleness = "none yet"
    if status.staleness_mean is not None:
        staleness = f"{status.staleness_mean:.2f} mean, {status.staleness_max} max"
        staleness += f", bound {status.bound}" if status.bound is not None else ""
    trained = f"{status.trained_tokens_per_s:,.0f} tokens/s" if status.trained_tokens_per_s is not None else "none yet"
    if not status.simulated:  # a simulated run learns nothing
        yield "reward", f"{status.reward:.3f}" if status.reward is not None else "none yet"
        if status.accuracy is not None or status.held_out_reward is None:
            yield "accuracy", accuracy
        if status.held_out_reward is not None:
            yield "held-out reward", held_out
    yield "staleness", staleness
    for name, value in status.losses.items():
        yield LOSSES.get(name, name), f"{value:.3g}"
    yield "trained", trained
    if status.recent_tokens_per_s is not None:
        yield f"last {WINDOW_STEPS} steps", f"{status.recent_tokens_per_s:,.0f} tokens/s"
    if not status.over:
        yield "generated", f"{status.generated_tokens_per_s:,.0f} tokens/s"


def _figures(status: RunStatus) -> RenderableType:
    pairs = [
        *_measured(status),
        *([] if status.over else [("trainer", status.trainer), ("buffered", f"{status.buffered_groups} groups")]),
        ("repacks", str(status.repacks)),
        ("restarts", restarts(status.restarts)),
    ]
    if status.partial_rollout:  # such a pipeline interrupts and does not repack
        interrupted = f"{status.interrupting_pulls} for pulls, {status.migrated} migrated"
        pairs = [("interruptions", interrupted) if pair == ("repacks", "0") else pair for pair in pairs]
    if status.pooled:
        blocked = f", blocked for {status.blocked_cycles} cycles" if status.blocked_cycles else ""
        pairs.append(("pool", f"{status.pooled} trajectories{blocked}"))
    if status.failed_groups:
        pairs.append(("failed", f"{status.failed_groups} groups"))
    if (costs := status.cost_model) is not None:
        error = f", error {costs['error']:.0%}" if "error" in costs else ""
        pairs.append(("cost model", f"{costs['source']}{error}, {costs['samples']} steps"))
    if status.delayed_groups:
        pairs.append(("delayed", f"{status.delayed_groups} groups dropped"))
    pairs += _turns(status)
    pairs += [(f"relay {id_}", holds) for id_, holds in list(status.relays.items())[:MOST_ROWS]]
    pairs += list(status.seats.items())[:MOST_ROWS]
    return _Pairs(pairs)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Names and values, in two columns of each, or in one where two would be cut."""

    pairs: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = 1 if options.max_width < NARROW else 2
        grid = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            grid.add_column(style="dim")
            grid.add_column(min_width=min(26, options.max_width // 4))  # that columns stay where they are
        rows = -(-len(self.pairs) // columns)
        for row in range(rows):
            grid.add_row(*(text for pair in self.pairs[row::rows] for text in pair))
        yield grid


def _turns(status: RunStatus) -> Iterable[tuple[str, str]]:
    if not status.turns:
        return
    waiting = f", {status.waiting_turns} wait for a session" if status.waiting_turns else ""
    yield "turns", f"{status.turns:,}{waiting}"
    if status.answer_p50_s is not None and status.answer_p99_s is not None:
        yield "answers", f"p50 {status.answer_p50_s:.2g} s, p99 {status.answer_p99_s:.2g} s"


def _environments(status: RunStatus) -> Table:
    headings = ["environment", "doing", "sessions", "answering", *(["workers"] if status.workers else [])]
    table = Table.grid(padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(justify="left" if heading in ("environment", "doing") else "right")
    table.add_row(*(Text(heading, style="dim") for heading in headings))
    for each in status.environments[:MOST_ROWS]:
        style = "dim" if each["doing"] == "idle" else _COLORS.get(each["doing"], "cyan")  # it is fast, not in want
        doing = Text(each["doing"], style=style)
        row: list[RenderableType] = [
            each["id"],
            doing,
            str(each["sessions"]),
            str(each["answering"]),
            str(status.workers),
        ]
        table.add_row(*row[: len(headings)])
    if len(status.environments) > MOST_ROWS:
        table.add_row(Text(f"and {len(status.environments) - MOST_ROWS} more", style="dim"))
    return table


def _replicas(replicas: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for heading in ("replica", "doing", "version", "trajectories", "KV cache"):
        table.add_column(justify="right" if heading in ("version", "trajectories") else "left")
    table.add_row(
        *(Text(heading, style="dim") for heading in ("replica", "doing", "version", "trajectories", "KV cache"))
    )
    for replica in replicas[:MOST_ROWS]:
        doing = str(replica["doing"])
        version = "none" if replica["version"] is None else str(replica["version"])
        style = _COLORS.get(doing.split()[0], "cyan")
        table.add_row(
            replica["id"], Text(doing, style=style), version, str(replica["trajectories"]), _kv(replica["kv"])
        )
    if len(replicas) > MOST_ROWS:
        table.add_row(Text(f"and {len(replicas) - MOST_ROWS} more", style="dim"))
    return table


def _kv(share: float) -> Text:
    filled = min(KV_CELLS, max(0, round(share * KV_CELLS)))
    return Text.assemble(("━" * filled, "cyan"), ("━" * (KV_CELLS - filled), "bright_black"), f" {share:4.0%}")


# While a run runs, its display is redrawn seldom, since it shares the run's cores.


@contextmanager
def display(*, plain: bool = False) -> Iterator[RunLines | Screen]:
    """Show the status in this context. Yields what to call with each change of the status."""
    if plain or not sys.stdout.isatty():
        yield RunLines(lambda text: print(text, flush=True))
        return
    console = plain_console()
    screen = Screen(lambda text: console.print(Text(text, style="yellow")))
    live = Live(
        get_renderable=screen.render, console=console, refresh_per_second=REDRAWS_PER_SECOND, vertical_overflow="crop"
    )
    with live:
        yield screen


class _News:
    """Which incidents were shown already."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, status: RunStatus) -> Iterator[str]:
        """The lines of incidents since the last call."""
        new = status.incidents_total - self._shown
        self._shown = status.incidents_total
        for incident in status.incidents[-new:] if new > 0 else ():
            yield incident_line(incident)


class RunLines:
    """A line for each phase, step, evaluation and incident, and every few seconds between them.

    Args:
        write: takes a line without a newline.
        clock: returns seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._shown: tuple[object, ...] | None = None
        self._at = 0.0
        self._news = _News()

    def say(self, text: str) -> None:
        """Write a line on stderr."""
        sys.stderr.write(f"{text}\n")  # in one piece, since another thread may write
        sys.stderr.flush()

    def __call__(self, status: RunStatus) -> None:
        """Write new incidents, and a line if phase, step or evaluation changed or the last line is old.

        Why a run failed is printed at the end.
        """
        for text in self._news(status):
            self._write(text)
        if status.phase == "failed":
            return
        news = (status.phase, status.step, status.accuracy, status.held_out_reward)
        now = self._clock()
        if news != self._shown or now - self._at >= LINE_EVERY_S:
            self._shown, self._at = news, now
            self._write(line(status, wall_s=status.wall_s))


class Screen:
    """The live display. Incidents are written above it, where they stay."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._status: RunStatus | None = None
        self._write, self._news = write, _News()

    def say(self, text: str) -> None:
        """Write a line above the display."""
        self._write(text)

    def __call__(self, status: RunStatus) -> None:
        """Show a status."""
        self._status = status
        for text in self._news(status):
            self._write(text)

    def render(self) -> RenderableType:
        """The display now."""
        status = self._status
        if status is None:
            return Text("starting", style="dim")
        return panel(status, wall_s=status.wall_s + max(0.0, time.time() - status.updated_at))
