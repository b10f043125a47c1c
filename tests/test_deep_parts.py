"""Each long test belongs to exactly one part of them, so that `.ci/run` reaches all, and every other test to each run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = 3
SAMPLE = """
import conftest
import pytest

conftest.DEAR = ("test_sample.py::test_dear[a]", "test_sample.py::test_dear[b]")

class Contract:
    @pytest.mark.parametrize("size", [1, 2])
    def test_sizes(self, size): ...
    def test_ends(self): ...
    def test_comes_back(self): ...

class TestQuick(Contract): ...

@pytest.mark.inherited(deep=[Contract.test_ends])
class TestMiddling(Contract): ...

@pytest.mark.inherited(keeps=[Contract.test_comes_back])
class TestSlow(TestMiddling):
    def test_its_own(self): ...

@pytest.mark.deep
@pytest.mark.parametrize("seed", range(12))
def test_long(seed): ...

@pytest.mark.deep
@pytest.mark.parametrize("kind", ["a", "b"])
def test_dear(kind): ...

@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", range(100))
def test_of_minutes(case): ...

@pytest.mark.parametrize("kind", ["a", "b"])
@pytest.mark.parametrize("seed", range(16))
def test_repeated(seed, kind): ...

@pytest.mark.cases(3)
@pytest.mark.parametrize("case", range(7))
def test_table(case): ...

def test_short(): ...
"""
LONG = {
    "TestMiddling::test_ends",
    "TestSlow::test_sizes[1]",
    "TestSlow::test_sizes[2]",
    "TestSlow::test_ends",
    *(f"test_long[{seed}]" for seed in range(12)),
    *(f"test_dear[{kind}]" for kind in "ab"),
    *(f"test_of_minutes[{case}]" for case in range(100)),
    *(f"test_table[{case}]" for case in (1, 2, 4, 6)),
    *(f"test_repeated[{seed}-{kind}]" for seed in range(4, 16) for kind in "ab"),
}
SHORT = {
    *(f"TestQuick::{name}" for name in ("test_sizes[1]", "test_sizes[2]", "test_ends", "test_comes_back")),
    *(f"TestMiddling::{name}" for name in ("test_sizes[1]", "test_sizes[2]", "test_comes_back")),
    *(f"TestSlow::{name}" for name in ("test_comes_back", "test_its_own")),
    *(f"test_table[{case}]" for case in (0, 3, 5)),
    *(f"test_repeated[{seed}-{kind}]" for seed in range(4) for kind in "ab"),
    "test_short",
}


@pytest.fixture
def run(tmp_path):
    """Runs the sample with this repository's settings; returns the tests that passed, or what pytest complained of."""
    file = tmp_path / "test_sample.py"
    file.write_text(SAMPLE)

    def run(*words, of=tmp_path):
        own = ["-c", ROOT / "pyproject.toml", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *own, "-n", "0", "-rp", *words, of],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            return done.stderr
        return set(re.findall(r"^PASSED test_sample\.py::(\S+)", done.stdout, re.MULTILINE))

    return run


def test_parts_share_no_long_test_and_leave_none_out(run, tmp_path):
    assert run() == run(of=tmp_path / "test_sample.py") == SHORT  # deselected, and skipped
    assert run("--deep") == SHORT | LONG
    parts = [run("--deep-part", f"{number}/{PARTS}") - SHORT for number in range(1, PARTS + 1)]
    assert set().union(*parts) == LONG
    assert sum(map(len, parts)) == len(LONG)
    assert all(parts), parts
    both = {"TestSlow::test_sizes[1]", "TestSlow::test_sizes[2]"}
    assert any(both <= part for part in parts), "a class's tests of a name share what it makes"


@pytest.fixture
def ours(pytestconfig):
    return pytestconfig.pluginmanager.getplugin(str(ROOT / "conftest.py"))


def test_a_part_of_one_of_the_dearest_has_no_other_that_takes_minutes(run):
    for number, kind in enumerate("ab"):
        found = run("--deep-part", str(number)) - SHORT
        assert {name for name in found if "dear" in name} == {f"test_dear[{kind}]"}
        assert not any("minutes" in name for name in found), found


def test_the_dearest_are_there(ours):
    assert len(set(ours.DEAR)) == len(ours.DEAR) < ours.DEEP_PARTS
    for node in ours.DEAR:
        path, _, name = node.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), node


def test_a_number_alone_is_counted_round(run, ours):
    number, parts = 5, ours.DEEP_PARTS
    found = run("--deep-part", str(number + 7 * parts))
    assert found == run("--deep-part", f"{number}/{parts}")
    assert found >= SHORT


def test_some_of_what_is_collected_is_run(run):
    assert run("--some=test_sample.py::test_short", "--some=test_sample.py::TestQuick::test_sizes") == {
        "test_short",
        "TestQuick::test_sizes[1]",
        "TestQuick::test_sizes[2]",
    }
    assert run("--some=test_sample.py") == SHORT
    assert "--some: found no test of 'test_sample.py::test_s'" in run("--some=test_sample.py::test_s")


@pytest.mark.parametrize("part", ["0/3", "4/3", "1/", "one"])
@pytest.mark.cases(1)
def test_what_is_no_part_is_refused(run, part):
    assert f"--deep-part: found {part!r}, expected a number K" in run("--deep-part=" + part)
