"""``tailrace init``: a project that runs."""

import shlex
import subprocess
import sys
from pathlib import Path

from tailrace.cli.main import main
from tailrace.cli.runs.init import FILES
from tailrace.reward.testing import check_verifier

PAGE = Path(__file__).parents[3] / "docs" / "your-own-run.md"


def test_the_project_passes_every_check_and_its_own_test(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == sorted(FILES)
    assert main(["run", "mine/tailrace.toml", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "tailrace run mine/tailrace.toml --dry-run" in out
    assert "10 of" in out
    assert "verify.py:verify" in out
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_verify.py"]
    ran = subprocess.run(test, cwd=tmp_path / "mine", capture_output=True, text=True, timeout=60, check=False)
    assert "2 passed" in ran.stdout, ran.stdout


def test_what_it_says_to_type_is_typed_so_in_a_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my first try"]) == 0
    check, train = (line.partition(":")[2] for line in capsys.readouterr().out.splitlines()[1:])
    assert shlex.split(check) == ["tailrace", "run", "my first try/tailrace.toml", "--dry-run"]
    assert shlex.split(train) == ["tailrace", "run", "my first try/tailrace.toml"]


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "verify.py").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "found verify.py there" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["verify.py"]


def test_the_graded_verifier_of_the_page_fits_the_project(tmp_path, capsys):
    assert main(["init", str(tmp_path / "graded")]) == 0
    source = PAGE.read_text().split("## When the reward is graded")[1].split("```python\n")[1].split("```")[0]
    (tmp_path / "graded" / "verify.py").write_text(source)
    assert main(["run", str(tmp_path / "graded" / "tailrace.toml"), "--dry-run"]) == 0
    capsys.readouterr()
    found: dict = {}
    exec(source, found)
    right, wrong = "<answer> 12</answer>", "<answer> 13</answer>"
    check_verifier(found["verify"], right=right, wrong=wrong, answer="12")
    assert found["verify"](wrong, "12", {}) == {"reward": 0.2, "correct": False}
