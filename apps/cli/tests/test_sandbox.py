"""``tailrace sandbox``: what it prints, its exit status, and bad input."""

import json

import pytest

from tailrace.cli.main import main
from tailrace.reward.sandbox import AUTOMATIC, Probe, probe_sandbox

KEYS = {"verdict", "limit", "exit_code", "stdout", "truncated", "cpu_s", "wall_s", "isolation"}


@pytest.fixture
def works():
    if not any(probe_sandbox(name).works for name in AUTOMATIC):
        pytest.skip("no sandbox works here")


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(content):
        (tmp_path / "program.py").write_bytes(content)
        return "program.py"

    return write


def test_check_names_what_works(works, capsys):
    assert main(["sandbox", "check", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["isolation"] in AUTOMATIC
    assert set(said["probes"]) == set(AUTOMATIC)
    assert main(["sandbox", "check", "--sandbox", said["isolation"]]) == 0
    assert f"programs run in {said['isolation']}" in capsys.readouterr().out


def test_where_none_works_the_exit_status_is_2(capsys, monkeypatch):
    monkeypatch.setattr("tailrace.cli.components.sandbox.probe_sandbox", lambda name: Probe(False, f"no {name}"))
    assert main(["sandbox", "check", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["isolation"] is None
    assert said["probes"]["sandlock"]["reason"] == "no sandlock"


@pytest.mark.deep
def test_a_program_is_run(works, program, capsys):
    file = program(b"print('hi'); raise SystemExit(3)")
    assert main(["sandbox", "run", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.keys() >= KEYS
    assert (said["verdict"], said["exit_code"], said["stdout"], said["limit"]) == ("error", 3, "hi\n", None)
    assert main(["sandbox", "run", file]) == 0
    assert capsys.readouterr().out.splitlines()[:1] == ["hi"]
    assert main(["sandbox", "run", program(rb"print('\x1b]0;title\x07\tone\ntwo')")]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["\\x1b]0;title\\x07\tone", "two"]
    options = ["--cpu-s", "0.3", "--wall-s", "2", "--memory-mib", "64", "--json"]
    assert main(["sandbox", "run", program(b"while True: pass"), *options]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "over-budget"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "absent.py"], "absent.py: No such file"),
        (["run", "."], ".: Is a directory"),
        (["run", "latin.py"], "latin.py: found byte 1 that is no UTF-8"),
        (["run", "program.py", "--cpu-s", "0"], "found cpu_s=0.0, expected a finite number above 0"),
        (["run", "program.py", "--wall-s", "-1"], "found wall_s=-1.0"),
        (["run", "program.py", "--cpu-s", "nan"], "found cpu_s=nan"),
        (["run", "program.py", "--memory-mib", "0"], "found memory_mib=0"),
        (["run", "program.py", "--memory-mib", "much"], "'much'"),
        (["run", "program.py", "--sandbox", "nope"], "found the sandbox 'nope', expected auto,"),
        (["run", "program.py", "--sandbox", "sandbox-fusion:ftp://x"], "expected sandbox-fusion:http://HOST:PORT"),
        (["check", "--sandbox", "nope"], "found the sandbox 'nope', expected auto,"),
    ],
)
def test_bad_input_is_one_line(program, tmp_path, capsys, arguments, named):
    program(b"pass")
    (tmp_path / "latin.py").write_bytes(b"#\xe9")
    assert main(["sandbox", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert named in said.err
    assert len(said.err.splitlines()) == 1
