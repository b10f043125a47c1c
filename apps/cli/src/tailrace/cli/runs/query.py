"""``tailrace query``: SQL over what a run left, by DuckDB (extra ``query``). Nothing of the run is changed.

steps, evaluations    metrics.jsonl: one row for each, a column for each figure
events                events.jsonl: what happened, one row for each event: t, instant, kind, data (JSON)
commands              events.jsonl: what the controller decided, one row for each command: t, instant, kind, seq, data (JSON)
trajectories          what was trained on, without its tokens; while the run goes on, what no rollback can ask for any more
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import CommandError
from tailrace.cli.json_text import json_text
from tailrace.contracts import extra, shown
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import check_header
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.trajstore import read_trained

Form = Literal["table", "json", "csv"]
MOST_SHOWN = 200
"""Rows of a table on a terminal; --json and --csv have all."""
_INSTANTS = """
    CREATE TEMP TABLE instants AS SELECT *, row_number() OVER () - 1 AS instant FROM read_json(
        ?, format = 'newline_delimited', columns = {t: 'DOUBLE', events: 'JSON[]', commands: 'JSON[]'})"""
_OF_INSTANTS = {
    "events": """
        CREATE TABLE events AS SELECT t, instant, event ->> 'is' AS kind, event AS data
        FROM (SELECT t, instant, unnest(events) AS event FROM instants)""",
    "commands": """
        CREATE TABLE commands AS
        SELECT t, instant, command ->> 'is' AS kind, CAST(command ->> 'seq' AS BIGINT) AS seq, command AS data
        FROM (SELECT t, instant, unnest(commands) AS command FROM instants)""",
}
_OF_TOKENS = ("prompt", "versions", "logprobs", "observations", "contexts")
_ROWS = "SELECT * FROM read_json(?, format = 'newline_delimited', sample_size = -1, union_by_name = true)"
_FLOATS, _COUNTS = "DOUBLE", "BIGINT"
_COLUMNS = {
    "steps": {
        **dict.fromkeys(("t", "at"), _FLOATS),
        **dict.fromkeys(("step", "version"), _COUNTS),
        **dict.fromkeys(("loss", "reward_mean", "staleness_mean", "staleness_max", "tokens", "wall_s"), _FLOATS),
    },
    "evaluations": {
        **dict.fromkeys(("t", "at"), _FLOATS),
        **dict.fromkeys(("step", "version"), _COUNTS),
        "mode": "VARCHAR",
        **dict.fromkeys(("reward", "accuracy"), _FLOATS),
        **dict.fromkeys(("problems", "failed"), _COUNTS),
        **dict.fromkeys(("length_p50", "length_p99"), _FLOATS),
    },
    "trajectories": {
        **dict.fromkeys(("trajectory", "group"), "VARCHAR"),
        **dict.fromkeys(("oldest_version", "completed_version", "consumed_version"), _COUNTS),
        "reward": _FLOATS,
        **dict.fromkeys(("tokens", "generated"), _COUNTS),
        "finish": "VARCHAR",
        "metadata": "JSON",
    },
}
"""Columns that a table has from the start; those of other figures come with the first row that has one."""


def query(run: Path, sql: str | None, form: Form) -> None:
    """Print the answer to a query; without one, the tables with their columns.

    Args:
        run: a run directory, of a run that goes on too.
        sql: in DuckDB's dialect; None or nothing but spaces: there is no query.
        form: how the answer is printed.

    Raises:
        RunDirectoryError: the run does not exist.
        MissingExtraError: DuckDB is not installed.
        CommandError: the query is wrong; its message is DuckDB's.
    """
    with extra("tailrace", "query"):
        import duckdb

    directory = RunDirectory.open(run)
    with duckdb.connect() as database:
        try:
            _fill(database, directory)
        except duckdb.Error as error:
            raise RunDirectoryError(f"{directory.root}: {' '.join(str(error).split())}") from None
        # From here on a query reads the tables alone: it comes from a person, and what it is about from a run.
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        if sql is None or not sql.strip():
            _show_tables(database)
            return
        try:
            database.execute(sql)
            names = [column[0] for column in database.description or ()]
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise CommandError(
                    f"found two columns {twice[0]!r}, expected names of their own: a.{twice[0]} AS other"
                )
            _print(names, _batches(database), form)
        except duckdb.Error as error:
            raise CommandError(" ".join(str(error).split())) from None


def _fill(database: Any, directory: RunDirectory) -> None:
    """Make the tables."""
    if not directory.events.exists():
        raise RunDirectoryError(f"{directory.events}: found no event log, expected that of a run")
    with tempfile.TemporaryDirectory(prefix="tailrace-query-") as folder:
        log = Path(folder) / "events.jsonl"
        try:
            _copy_instants(directory.events, log)
        except RunDirectoryError:
            raise
        except OSError as error:
            if error.filename is not None:
                raise
            raise RunWriteError(error.errno, error.strerror, folder) from error
        database.execute(_INSTANTS, [str(log)])
        for made in _OF_INSTANTS.values():
            database.execute(made)
        database.execute("DROP TABLE instants")
        _fill_rows(database, directory, Path(folder))


def _copy_instants(events: Path, to: Path) -> None:
    """Copy the log without its header and without a last line that is half written.

    Raises:
        RunDirectoryError: it is a log of another format.
    """
    with events.open("rb") as log, to.open("wb") as instants:
        check_header(events, log.readline())
        for line in log:
            if line.endswith(b"\n"):
                instants.write(line)


def _fill_rows(database: Any, directory: RunDirectory, folder: Path) -> None:
    kinds = {"step": "steps", "evaluation": "evaluations"}
    lines: dict[str, list[str]] = {name: [] for name in kinds.values()}
    for row in read_metrics(directory.metrics):
        if (kind := row.pop("kind")) in kinds:  # another version may write others beside them
            lines[kinds[kind]].append(json.dumps(row))
    found, growing = directory.trained, not directory.summary.exists()
    trained = read_trained(found, tokens=False, growing=growing) if found.exists() else ()
    lines["trajectories"] = [json.dumps(_without_tokens(row)) for row in trained]
    for name, told in lines.items():
        columns = ", ".join(f'"{column}" {kind}' for column, kind in _COLUMNS[name].items())
        database.execute(f"CREATE TABLE {name} ({columns})")
        if not told:
            continue
        path = folder / f"{name}.jsonl"
        path.write_text("\n".join(told))
        for column, kind, *_ in database.execute(f"DESCRIBE {_ROWS}", [str(path)]).fetchall():
            if column not in _COLUMNS[name]:
                quoted = column.replace('"', '""')
                database.execute(f'ALTER TABLE {name} ADD COLUMN "{quoted}" {kind}')
        database.execute(f"INSERT INTO {name} BY NAME {_ROWS}", [str(path)])


def _without_tokens(row: dict[str, Any]) -> dict[str, Any]:
    """A trained trajectory with the number of its tokens in their place, which old archives hold.

    Its metadata are text, of which DuckDB makes no columns: they would have what other rows have, too.
    """
    tokens = row["tokens"]
    return {name: value for name, value in row.items() if name not in _OF_TOKENS} | {
        "tokens": len(tokens) if isinstance(tokens, list) else tokens,
        "metadata": json.dumps(row.get("metadata")),
    }


def _batches(database: Any) -> Iterator[tuple[Any, ...]]:
    while rows := database.fetchmany(10_000):
        yield from rows


def _show_tables(database: Any) -> None:
    for name in (*_COLUMNS, *_OF_INSTANTS):
        (count,) = database.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608 - names of ours
        columns = ", ".join(shown(row[0]) for row in database.execute(f"DESCRIBE {name}").fetchall())
        print(f"{name} ({count:,} rows): {columns}")


def _print(names: list[str], rows: Iterator[tuple[Any, ...]], form: Form) -> None:
    if form == "json":
        print("[", end="")
        for index, row in enumerate(rows):
            print("," if index else "", json_text(dict(zip(names, row, strict=True))), sep="\n", end="")
        print("\n]")
        return
    if form == "csv":
        writer = csv.writer(sys.stdout)
        lines = chain([names], rows)
        writer.writerows(map(_on_screen, lines) if sys.stdout.isatty() else lines)
        return
    table, count = Table(box=box.SIMPLE, pad_edge=False), 0
    for name in names:
        table.add_column(Text(shown(name)), overflow="fold")
    for row in rows:
        count += 1
        if count <= MOST_SHOWN:
            table.add_row(*(Text(_cell(value)) for value in row))
    plain_console().print(table)
    if count > MOST_SHOWN:
        print(f"{count:,} rows, of which the first {MOST_SHOWN} are shown; --json and --csv have all")


def _on_screen(row: Sequence[Any]) -> list[Any]:
    """A row whose texts do nothing to a terminal."""
    return [shown(value) if isinstance(value, str) else value for value in row]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else shown(str(value))
