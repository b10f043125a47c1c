"""Every command that README and docs show is one that there is; those that need no run of somebody's end, and rightly."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from tailrace.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SIMULATED = ("simulate", "compare", "plan", "reproduce", "fuzz", "plugins", "fit-cost")
# What is tried elsewhere, since it needs a run, files of one's own, a model, a service or minutes of training.
ELSEWHERE = {
    "run": "tests/test_end_to_end.py, apps/*/tests/test_app.py, .github: the quick starts",
    "init": "apps/cli/tests/test_init.py",
    "config": "apps/cli/tests/test_config_command.py",
    "rank": "apps/cli/tests/test_rank.py",
    "status": "apps/cli/tests/test_controller_watcher.py",
    "watch": "apps/cli/tests/test_watch_command.py",
    "report": "packages/report/tests",
    "query": "apps/cli/tests/test_query.py",
    "doctor": "apps/cli/tests/test_doctor.py",
    "explain": "packages/report/tests/test_explain.py",
    "chaos": "apps/cli/tests/test_chaos.py",
    "attach": "packages/runtime/tests/executor/test_attaching.py",
    "audit": "packages/pipeline/tests/test_audit.py",
    "export": "apps/cli/tests/test_export.py",
    "clean": "apps/cli/tests/test_clean.py",
    "new-plugin": "apps/cli/tests/test_new_plugin.py",
    "judge": "apps/cli/tests/test_judge.py",
    "sandbox": "apps/cli/tests/test_sandbox.py",
    "serve": "apps/cli/tests/test_serve.py",
    "profile": "apps/cli/tests/test_profile.py",
    "replay": "apps/cli/tests",
}
LONGEST_S = 3 * 3600.0
HOURS = ("reproduce", "plan", "compare", "fuzz")


def documented():
    """The command lines in blocks of code, each once, without `uv run tailrace`."""
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(
            r"^(?:    |\$ |)(?:\$ )?(?:[A-Z_]+=\S+ )?(?:uv run )?tailrace (.*)$", text, re.MULTILINE
        ):
            try:
                words = shlex.split(line.partition(" && ")[0], comments=True)
            except ValueError:
                continue  # a sentence
            if words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
                found.setdefault(tuple(words), f"{page.relative_to(ROOT)}: tailrace {' '.join(words)}")
    return found


COMMANDS = documented()
SHOWN = [pytest.param(words, id=shlex.join(words)) for words in COMMANDS if words[0] in SIMULATED]


def test_each_is_a_command_and_its_options_are_known():
    assert len(COMMANDS) > 60
    group, wrong = typer.main.get_command(app), []
    for words, where in COMMANDS.items():
        name, *rest = words
        command = group.commands.get(name)
        if command is None:
            wrong.append(f"{where}: no such command")
            continue
        if hasattr(command, "commands"):
            command, rest = command.commands.get(rest[0]), rest[1:]
        try:
            command.make_parser(command.context_class(command)).parse_args(list(rest))
        except Exception as error:
            wrong.append(f"{where}: {error}")
    assert wrong == []


def test_each_is_run_here_or_its_kind_elsewhere():
    assert {words[0] for words in COMMANDS} <= {*SIMULATED, *ELSEWHERE}


@pytest.mark.deep
@pytest.mark.timeout(LONGEST_S + 60)
@pytest.mark.parametrize("words", SHOWN)
def test_one_that_needs_nothing_ends_rightly(words, tmp_path, pytestconfig):
    """The command runs in full, as it is shown; what it writes goes into a folder of its own."""
    if words[0] in HOURS and not pytestconfig.getoption("deep"):
        pytest.skip("it takes up to hours: --deep alone runs it, not a part of the long tests")
    missing = [word for word in words[1:] if re.search(r"\.(toml|jsonl?)$|^runs/", word) and not (ROOT / word).exists()]
    if "--with" in words or "--policy" in words:
        pytest.skip("it needs a plugin of one's own")
    named = [option for option, word in pairwise(words) if word in missing]
    if any(not option.startswith("--") or option in ("--replay", "--config") for option in named):
        pytest.skip(f"it needs a file of one's own: {', '.join(missing)}")
    for name in ("configs", "docs", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "tailrace.cli.main", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr[-2_000:]
    if words[0] == "reproduce":
        assert re.search(r"^\w+: predictions scored \d+", done.stdout, re.MULTILINE), done.stdout[-2_000:]
        assert "broke with" not in done.stdout
