"""Checks of a machine: a good one passes, and each fault that can be made here is found."""

import json
import os
import random
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.contracts import PluginError, plugins
from tailrace.faulttol import machine_checks
from tailrace.faulttol.machine_checks import (
    GROUP,
    Arithmetic,
    Disk,
    GpuMemory,
    Loopback,
    Memory,
    UnfitError,
    arithmetic,
    check_machine,
    memory,
)

SMALL = (Arithmetic(repeats=1), Disk(1 << 20, 0), Memory(1 << 20, 0), Loopback(1 << 20, 1.0))


@pytest.mark.parametrize("check", SMALL, ids=lambda check: type(check).__name__)
def test_a_good_machine_passes_and_nothing_is_left(check, tmp_path):
    assert check.run(tmp_path)
    assert not list(tmp_path.iterdir())


def test_all_checks_run_in_processes_of_their_own(tmp_path):
    findings = list(check_machine(tmp_path, plugins.names(GROUP)))
    assert [finding.check for finding in findings] == ["arithmetic", "disk", "gpu-memory", "loopback", "memory"]
    for finding in findings:
        assert finding.seconds > 0
        assert finding.found


def test_a_name_that_is_no_check_is_told_before_any_runs(tmp_path):
    with pytest.raises(PluginError, match=r"'dsk'.*disk"):
        next(check_machine(tmp_path, ["disk", "dsk"]))


def test_a_check_that_hangs_finds_the_machine_unfit(tmp_path, monkeypatch):
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    (finding,) = check_machine(tmp_path, ["disk"], timeout_s=0.5)
    assert not finding.fit
    assert "did not end" in finding.found


def test_a_check_that_dies_finds_the_machine_unfit(tmp_path, monkeypatch):
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'Bus error' >&2\nkill -BUS $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    (finding,) = check_machine(tmp_path, ["disk"])
    assert not finding.fit
    assert "Bus error" in finding.found


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"]])
def test_the_program_wants_a_directory_and_a_name(names, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", machine_checks.__name__, *names], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode != 0
    assert f"found {len(names)} arguments" in done.stderr


def test_what_a_check_prints_is_not_taken_for_its_answer(tmp_path):
    (tmp_path / "talks.py").write_text(
        "import os\n\nprint('loading')\n\n\nclass Talks:\n    def run(self, directory):\n"
        "        print('looking')\n        os.system('echo a tool speaks')\n        return 'all is well'\n"
    )
    info = tmp_path / "talks-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: talks\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ntalks = talks:Talks\n")
    done = subprocess.run(
        [sys.executable, "-m", machine_checks.__name__, str(tmp_path), "talks"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert json.loads(done.stdout) == {"fit": True, "found": "all is well"}
    assert done.stderr.splitlines() == ["loading", "looking", "a tool speaks"]


# ---- what each finds ------------------------------------------------------------------------------------------------


def test_a_disk_without_room_is_unfit(tmp_path):
    with pytest.raises(UnfitError, match="bytes free, expected"):
        Disk(1 << 20, 1 << 60).run(tmp_path)


def test_a_disk_that_is_not_there_is_unfit(tmp_path):
    with pytest.raises(UnfitError, match=r"No such file or directory.*expected a disk"):
        Disk(1 << 20, 0).run(tmp_path / "missing")


def test_a_disk_that_cannot_be_written_is_unfit(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(UnfitError, match="expected a disk that can be written"):
            Disk(1 << 20, 0).run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_reads_other_bytes_is_unfit(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: os.pwrite(number, b"\0", 12_345))  # the disk changes a byte
    with pytest.raises(UnfitError, match="other bytes"):
        Disk(1 << 20, 0).run(tmp_path)


def test_memory_that_is_not_there_is_unfit(tmp_path):
    with pytest.raises(UnfitError, match="of memory free, expected"):
        Memory(1 << 20, 1 << 60).run(tmp_path)


def test_memory_that_changes_is_unfit_and_the_place_is_told():
    kept = bytes(1000)
    changed = bytearray(kept)
    at = random.Random(7).randrange(1000)
    changed[at] ^= 4
    with pytest.raises(UnfitError, match=f"byte {at:,} of 1,000"):
        Memory._compare(changed, kept, "0x00")


def test_a_system_that_does_not_say_what_is_free_is_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "missing")
    assert Memory(1 << 16, 1 << 60).run(tmp_path)


def test_arithmetic_that_is_wrong_is_unfit_and_the_core_is_told(tmp_path, monkeypatch):
    right = arithmetic.product

    def wrong(one, other):
        rows = right(one, other)
        if isinstance(one[0][0], float):
            rows[3][4] = rows[3][4] + 1.0
        return rows

    monkeypatch.setattr(arithmetic, "product", wrong)
    before = os.sched_getaffinity(0)
    with pytest.raises(UnfitError, match=rf"core {min(before)}: a product"):
        Arithmetic(1).run(tmp_path)
    assert os.sched_getaffinity(0) == before


def test_the_product_of_matrices_is_that_of_a_worked_example():
    assert arithmetic.product([[1, 2], [3, 4]], [[5, 6], [7, 8]]) == [[19, 22], [43, 50]]


def test_every_entry_of_a_product_is_exact_in_floating_point():
    assert arithmetic._SIDE * arithmetic._ENTRY**2 < 2**53


def test_a_slow_loopback_is_unfit(tmp_path):
    with pytest.raises(UnfitError, match="MB/s at least"):
        Loopback(1 << 20, 1e15).run(tmp_path)


def test_a_loopback_that_loses_bytes_is_unfit(tmp_path, monkeypatch):
    monkeypatch.setattr(socket.socket, "sendall", lambda self, data: self.send(data[: len(data) // 2]))
    with pytest.raises(UnfitError, match="bytes came, expected the 1,048,576"):
        Loopback(1 << 20, 1.0).run(tmp_path)


SMI = """#!/bin/sh
[ "$1" = "--query-gpu=index,ecc.errors.uncorrected.volatile.total" ] || exit 2
printf '%s'
exit {status}
"""


def smi(folder, monkeypatch, text, status=0):
    program = folder / "nvidia-smi"
    program.write_text(SMI.replace("%s", text).replace("{status}", str(status)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_machine_without_gpus_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuMemory().run(tmp_path) == "no GPU"


def test_gpus_without_errors_pass(tmp_path, monkeypatch):
    smi(tmp_path, monkeypatch, "0, 0\\n1, [N/A]\\n")
    assert GpuMemory().run(tmp_path).startswith("2 GPUs")


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("0, 0\\n1, 3\\n", 0, "GPU 1: found 3 uncorrected errors"),
        ("0, [Unknown Error]\\n", 0, "expected the index and errors of a GPU"),
        ("GPU has fallen off the bus\\n", 15, "ended with 15 .GPU has fallen off the bus."),
    ],
)
def test_gpus_with_errors_are_unfit(tmp_path, monkeypatch, text, status, said):
    smi(tmp_path, monkeypatch, text, status)
    with pytest.raises(UnfitError, match=said):
        GpuMemory().run(tmp_path)


def test_a_driver_that_hangs_is_unfit(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UnfitError, match="did not answer"):
        GpuMemory(answer_s=0.3).run(tmp_path)


def test_every_public_name_is_documented():
    for name in machine_checks.__all__:
        assert name == "GROUP" or getattr(machine_checks, name).__doc__, name
    assert Path(machine_checks.__file__).is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "found 0 arguments, expected a directory"), ([".", "nope"], "found 'nope' in group tailrace.machine_check")],
)
def test_a_wrong_command_line_is_one_line(arguments, expected):
    command = [sys.executable, "-m", "tailrace.faulttol.machine_checks", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith(expected)
    assert ended.stderr.count("\n") == 1
