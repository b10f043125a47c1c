"""``tailrace query``: SQL over what a run left, by DuckDB (extra ``query``). Nothing of the run is changed.

steps, evaluations    metrics.jsonl: one row for each, a column for each figure
events                events.jsonl: what happened, one row for each event: t, instant, kind, data (JSON)
commands              events.jsonl: what the controller decided, one row for each command: t, instant, kind, seq, data (JSON)
trajectories          what was trained on, without its tokens; empty until the run has ended
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from tailrace.cli.errors import CommandError
from tailrace.contracts import extra, shown
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.trajstore import read_trained

Form = Literal["table", "json", "csv"]
MOST_SHOWN = 200
"""Rows of a table on a terminal; --json and --csv have all."""
_INSTANTS = """
    CREATE TEMP TABLE instants AS SELECT *, row_number() OVER () - 1 AS instant FROM read_json(
        ?, format = 'newline_delimited', columns = {t: 'DOUBLE', events: 'JSON[]', commands: 'JSON[]'}, ignore_errors = true)"""
_OF_INSTANTS = {
    "events": """
        CREATE TABLE events AS SELECT t, instant, event ->> 'is' AS kind, event AS data
        FROM (SELECT t, instant, unnest(events) AS event FROM instants)""",
    "commands": """
        CREATE TABLE commands AS
        SELECT t, instant, command ->> 'is' AS kind, CAST(command ->> 'seq' AS BIGINT) AS seq, command AS data
        FROM (SELECT t, instant, unnest(commands) AS command FROM instants)""",
}
_OF_TOKENS = ("prompt", "versions", "logprobs", "observations")
_ROWS = "SELECT * FROM read_json(?, format = 'newline_delimited', sample_size = -1, union_by_name = true)"
_EMPTY = {
    "steps": "step BIGINT",
    "evaluations": "step BIGINT, mode VARCHAR",
    "trajectories": 'trajectory VARCHAR, "group" BIGINT, consumed_version BIGINT, reward DOUBLE, tokens BIGINT',
}


def query(run: Path, sql: str | None, form: Form) -> None:
    """Print the answer to a query; without one, the tables with their columns.

    Args:
        run: a run directory, of a run that goes on too.
        sql: in DuckDB's dialect.
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
        _fill(database, directory)
        # From here on a query reads the tables alone: it comes from a person, and what it is about from a run.
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        if sql is None:
            _show_tables(database)
            return
        try:
            database.execute(sql)
            names = [column[0] for column in database.description or ()]
            _print(names, _batches(database), form)
        except duckdb.Error as error:
            raise CommandError(" ".join(str(error).split())) from None


def _fill(database: Any, directory: RunDirectory) -> None:
    """Make the tables."""
    if not directory.events.exists():
        raise RunDirectoryError(f"{directory.events}: found no event log, expected that of a run")
    database.execute(_INSTANTS, [str(directory.events)])
    for made in _OF_INSTANTS.values():
        database.execute(made)
    database.execute("DROP TABLE instants")
    metrics = []
    if directory.metrics.exists():
        with directory.metrics.open() as file:
            metrics = [line for line in file if line.endswith("\n")]  # the last one may be half written
    kinds = {"step": "steps", "evaluation": "evaluations"}
    lines: dict[str, list[str]] = {name: [] for name in kinds.values()}
    for line in metrics:
        row = json.loads(line)
        lines[kinds[row.pop("kind")]].append(json.dumps(row))
    trained = read_trained(directory.trained, tokens=False) if directory.trained.exists() else ()
    lines["trajectories"] = [json.dumps(_without_tokens(row)) for row in trained]
    with tempfile.TemporaryDirectory(prefix="tailrace-query-") as folder:
        for name, found in lines.items():
            path = Path(folder) / f"{name}.jsonl"
            path.write_text("\n".join(found))
            content = f"AS {_ROWS}" if found else f"({_EMPTY[name]})"
            database.execute(f"CREATE TABLE {name} {content}", [str(path)] if found else [])


def _without_tokens(row: dict[str, Any]) -> dict[str, Any]:
    """A trained trajectory with the number of its tokens; runs of before archives were packed have the tokens themselves."""
    tokens = row["tokens"]
    return {name: value for name, value in row.items() if name not in _OF_TOKENS} | {
        "tokens": len(tokens) if isinstance(tokens, list) else tokens
    }


def _batches(database: Any) -> Iterator[tuple[Any, ...]]:
    while rows := database.fetchmany(10_000):
        yield from rows


def _show_tables(database: Any) -> None:
    for name in (*_EMPTY, *_OF_INSTANTS):
        (count,) = database.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608 - names of ours
        columns = ", ".join(row[0] for row in database.execute(f"DESCRIBE {name}").fetchall())
        print(f"{name} ({count:,} rows): {columns}")


def _print(names: list[str], rows: Iterator[tuple[Any, ...]], form: Form) -> None:
    if form == "json":
        print("[", end="")
        for index, row in enumerate(rows):
            print("," if index else "", json.dumps(dict(zip(names, row, strict=True)), default=str), sep="\n", end="")
        print("\n]")
        return
    if form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(rows)
        return
    table, count = Table(box=box.SIMPLE, pad_edge=False), 0
    for name in names:
        table.add_column(shown(name), overflow="fold")
    for row in rows:
        count += 1
        if count <= MOST_SHOWN:
            table.add_row(*(_cell(value) for value in row))
    Console().print(table)
    if count > MOST_SHOWN:
        print(f"{count:,} rows, of which the first {MOST_SHOWN} are shown; --json and --csv have all")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else shown(str(value))
