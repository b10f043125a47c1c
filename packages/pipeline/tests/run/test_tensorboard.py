"""TensorBoard's files: what is written can be read, and a disk that is full is a line, no traceback."""

import resource
import signal
import subprocess
import sys

import pytest

pytest.importorskip("tensorboardX")

from tailrace.pipeline.run.figures.metrics import tensorboard_writer

FULL = """
import sys
from pathlib import Path
from tailrace.pipeline.run.figures.metrics import tensorboard_writer

writer = tensorboard_writer(Path(sys.argv[1]))
for step in range(2000):
    writer.add_scalar("step/loss", 0.5, step)
writer.flush()
print("done")
"""


def test_what_is_written_is_in_the_directory(tmp_path):
    writer = tensorboard_writer(tmp_path / "tensorboard")
    writer.add_scalar("step/loss", 0.5, 3)
    writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"step/loss" in file.read_bytes()


def test_a_full_disk_is_one_line(tmp_path):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, preexec_fn=limit, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = done.stderr.splitlines()
    assert "is incomplete: File too large; metrics.jsonl has the same data" in line
