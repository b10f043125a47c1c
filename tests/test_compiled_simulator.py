"""The compiled copy of the simulator gives the event logs of the sources, byte for byte.

Compiling takes one to five minutes, so this is asked for: TAILRACE_COMPILED=1 pytest tests/test_compiled_simulator.py
"""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools" / "compile-simulator"
LOGS = """
import hashlib, sys
from tailrace.fleetsim import tokens
from tailrace.fleetsim.run import simulate
print("source" if tokens.__file__.endswith(".py") else "compiled")
for file in sys.argv[1:]:
    for seed in (0, 5):
        result = simulate(file, settings=("pipeline.steps=3", "fleet.warm_up=1"), seed=seed)
        print(file, seed, len(result.events), hashlib.sha256(repr([*result.events]).encode()).hexdigest())
"""
RECORD = '''
from dataclasses import dataclass, field
from tailrace.contracts.record import record

@record
class Plain:
    """Two fields."""

    id: str
    tokens: int = 3

@dataclass(slots=True)
class Made:
    counts: dict[int, int] = field(default_factory=dict)

@dataclass(frozen=True, slots=True)
class Frozen:
    id: str
'''


def test_only_plain_dataclasses_get_a_constructor_and_mean_the_same():
    made: dict[str, object] = {"__name__": "made"}
    text = runpy.run_path(str(TOOL))["with_constructors"](RECORD)
    exec(compile(text, "made", "exec"), made)
    plain, other = made["Plain"], made["Made"]
    assert text.count("def __init__(self, id: str, tokens: int = 3) -> None:") == text.count("def __init__") == 1
    assert plain("a") == plain(id="a", tokens=3) != plain("a", 4)
    assert hash(plain("a")) == hash(plain("a", 3))
    assert repr(plain("a")) == "Plain(id='a', tokens=3)"
    assert other().counts == {}
    assert made["Frozen"]("b").id == "b"


def test_a_folder_that_it_did_not_make_stays(tmp_path):
    (tmp_path / "mine").write_text("kept")
    done = subprocess.run([sys.executable, TOOL, "--clean", "--into", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no compiled copy" in done.stderr
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not os.environ.get("TAILRACE_COMPILED"), reason="takes minutes: set TAILRACE_COMPILED=1")
@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="there is no C compiler")
@pytest.mark.skipif(not importlib.util.find_spec("mypyc"), reason="mypyc is not installed")
@pytest.mark.skipif(not importlib.util.find_spec("setuptools"), reason="setuptools is not installed")
def test_event_logs_are_the_same_to_the_byte(tmp_path):
    copy = tmp_path / "compiled"
    subprocess.run([sys.executable, TOOL, "--into", copy, "--no-check"], check=True)
    configurations = sorted(map(str, (ROOT / "configs" / "fleet").glob("*.toml")))
    assert len(configurations) > 5
    sources = sorted(map(str, [*ROOT.glob("packages/*/src"), *ROOT.glob("apps/*/src")]))
    how, *logs = event_logs(sources, configurations)
    compiled, *logs_compiled = event_logs([str(copy)], configurations)
    assert (how, compiled) == ("source", "compiled")
    assert logs_compiled == logs
    subprocess.run([sys.executable, TOOL, "--clean", "--into", copy], check=True)
    assert not copy.exists()


def event_logs(path, configurations):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-c", LOGS, *configurations]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
