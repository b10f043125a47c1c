"""Processor time out of /proc."""

import os
import shutil
import time

from tailrace.fleetsim.profile.run import Others, cores_here, machine_s, usage

TICK = os.sysconf("SC_CLK_TCK")


def process(proc, pid, parent, user, system, name="a (b) c"):
    (proc / str(pid)).mkdir()
    fields = ["S", str(parent), *["0"] * 9, str(user), str(system), "0", "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_a_process_and_all_that_it_started(tmp_path):
    process(tmp_path, 10, 1, 100, 20)
    process(tmp_path, 11, 10, 7, 0)
    process(tmp_path, 12, 11, 1, 1)
    process(tmp_path, 20, 1, 999, 999)
    (tmp_path / "self").mkdir()
    (tmp_path / "13").mkdir()  # it has ended
    assert usage(10, tmp_path) == {10: 120 / TICK, 11: 7 / TICK, 12: 2 / TICK}
    assert usage(77, tmp_path) == {}
    assert usage(10, tmp_path / "none") == {}


def test_the_machine_counts_neither_idleness_nor_guests_twice(tmp_path):
    (tmp_path / "stat").write_text("cpu 100 10 50 9999 777 3 4 5 60 1\ncpu0 1 1 1 1\n")
    assert machine_s(tmp_path) == (100 + 10 + 50 + 3 + 4 + 5) / TICK
    assert machine_s(tmp_path / "none") == 0.0


def test_our_own_work_is_not_that_of_others(tmp_path):
    def busy(seconds):
        (tmp_path / "stat").write_text(f"cpu {round(seconds * TICK)} 0 0 0 0 0 0 0 0 0\n")

    busy(50)
    process(tmp_path, 10, 1, 100, 20)
    others = Others(10, tmp_path)
    process(tmp_path, 11, 10, 5 * TICK, 0)
    busy(55)
    time.sleep(0.05)
    others.look()
    assert others.cores == 0.0
    shutil.rmtree(tmp_path / "11")  # what it did stays ours
    busy(56)
    others.look()
    assert 1.0 <= others.cores <= 1.0 / 0.05


def test_cores():
    assert 1 <= cores_here() <= os.cpu_count()
