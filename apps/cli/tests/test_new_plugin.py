"""``tailrace new-plugin``: for every axis a package that installs, passes its own tests and is fuzzed by its name."""

import ast
import inspect
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.cli.components.new_plugin import ABOUT
from tailrace.cli.main import main
from tailrace.controller.spec import AXES

QUICK = "sync"
UV = os.environ.get("UV") or shutil.which("uv")
MAIN = "import sys; from tailrace.cli.main import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAILRACE_DEBUG", raising=False)


def installed(root):
    """Install a package into a folder of its own; returns an environment that has it on the path."""
    command = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        sys.executable,
        "--target",
        "site",
    ]
    subprocess.run([*command, str(Path(root).resolve())], check=True)
    return {**os.environ, "PYTHONPATH": str(Path("site").resolve()), "COLUMNS": "120"}


def ran(*arguments, env):
    done = subprocess.run(
        [sys.executable, *arguments], env=env, text=True, capture_output=True, timeout=240, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_every_axis_has_a_template():
    assert set(ABOUT) == set(AXES)


@pytest.mark.parametrize(
    ("axis", "protocol"),
    [
        ("admission", c.AdmissionPolicy), ("batching", c.BatchingPolicy), ("routing", c.RoutingPolicy), ("sync", c.SyncPolicy),
        ("relocation", c.RelocationPolicy), ("training", c.TrainingPolicy), ("provisioning", c.ProvisioningPolicy),
        ("recovery", c.RecoveryPolicy),
    ],
)  # fmt: skip
def test_a_template_names_arguments_as_its_protocol_does(axis, protocol):
    """Type checkers take another name for another method, and readers for another meaning."""
    tree = ast.parse((files("tailrace.cli") / "plugin_project" / f"{axis}.py.txt").read_text())
    (policy,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "MyPolicy"]
    written = {
        each.name: [one.arg for one in each.args.args] for each in policy.body if isinstance(each, ast.FunctionDef)
    }
    wanted = {
        name: each for name, each in vars(protocol).items() if inspect.isfunction(each) and not name.startswith("_")
    }
    assert wanted
    for name, method in wanted.items():
        assert name in written or name not in protocol.__abstractmethods__, name
        assert written.get(name, list(inspect.signature(method).parameters)) == list(
            inspect.signature(method).parameters
        ), name


@pytest.mark.skipif(UV is None, reason="needs uv to build and install a package")
@pytest.mark.parametrize(
    "axis", [QUICK, *(pytest.param(each, marks=pytest.mark.deep) for each in AXES if each != QUICK)]
)
@pytest.mark.deep
def test_a_new_package_installs_passes_its_tests_and_is_fuzzed(axis, capsys, deep):
    name = f"my-own-{axis}"
    assert main(["new-plugin", axis, name]) == 0
    told = capsys.readouterr().out
    assert f"tailrace fuzz --with {name}" in told
    assert f"--set pipeline.{axis}={name}" in told
    environment = installed(name)
    status, said = ran("-m", "pytest", "-q", "-p", "no:cacheprovider", name, env=environment)
    assert status == 0, said
    assert "3 passed" in said
    status, said = ran("-c", MAIN, "fuzz", "--with", name, "--seeds", "2", env=environment)
    assert status == 0, said
    assert f"{name} 2" in " ".join(said.split())
    if deep:
        chosen = [f"pipeline.{axis}={name}", f"pipeline.{axis}.{ABOUT[axis].option}={ABOUT[axis].value}"]
        status, said = ran("-c", MAIN, "config", "laminar", "--set", chosen[0], "--set", chosen[1], env=environment)
        assert status == 0, said
        assert f'"{name}"' in said


def test_the_folder_may_be_another_and_nothing_is_overwritten(capsys):
    assert main(["new-plugin", "training", "by-eights", "--dir", "deep/down"]) == 0
    assert "class ByEights(TrainingPolicy):" in Path("deep/down/src/by_eights/__init__.py").read_text()
    assert 'by-eights = "by_eights:ByEights"' in Path("deep/down/pyproject.toml").read_text()
    for path in Path("deep/down").rglob("*.*"):
        assert not {"THE_AXIS", "THE_OPTION", "my_policy", "MyPolicy"} & set(path.read_text().split())
    before = {path: path.read_bytes() for path in Path("deep").rglob("*.*")}
    capsys.readouterr()
    assert main(["new-plugin", "training", "by-eights", "--dir", "deep/down"]) == 2
    assert "deep/down: found files, expected a new directory" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in Path("deep").rglob("*.*")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["snyc", "mine"], ["'snyc'", "did you mean 'sync'?"]),
        (["sync", "Mine"], ["'Mine'", "small letters"]),
        (["sync", "mine_own"], ["'mine_own'", "hyphens"]),
        (["sync", "../mine"], ["'../mine'"]),
        (["sync", "barrier"], ["'barrier' on axis sync already"]),
        (["sync", "json"], ["'json'", "a Python package that is installed here", "my-json"]),
        (["sync", "class"], ["'class'", "a word of Python"]),
        (["sync"], ["NAME", "--help"]),
        (["sync", "mine", "--dir", "file"], ["file: found a file"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(capsys, arguments, words):
    Path("file").write_text("precious")
    assert main(["new-plugin", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--with", "barier"], ["--with barier", "did you mean 'barrier'?"]),
        (["--with", "barrier", "--policy", "sync=on-idle"], ["'on-idle' and 'barrier' on axis sync"]),
    ],
)
def test_a_name_that_fuzz_cannot_place_is_one_line(capsys, arguments, words):
    assert main(["fuzz", "--seeds", "1", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_a_built_in_is_named_without_its_axis(capsys):
    assert main(["fuzz", "--seeds", "4", "--with", "barrier", "--with", "migration"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "barrier 4" in out
    assert "migration 4" in out
