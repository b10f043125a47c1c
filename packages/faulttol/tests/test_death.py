"""Why an actor died, in one line, from what Ray says and what its process wrote."""

import pytest

from tailrace.faulttol.elastic import cause_of_death

SILENT = (
    "The actor died unexpectedly before finishing this task.\n\tpid: 17\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
    "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
    "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage"
)
EXITED = SILENT.partition("Worker unexpectedly")[0] + "Worker exits unexpectedly. Worker exits with an exit code 7."
TRACEBACK = "\x1b[36mray::x\x1b[39m died\nTraceback (most recent call last):\n  ...\nValueError: head_dim=16\n"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (SILENT, "its process 17 was killed from outside (SIGKILL), ran out of memory, or ended without a word"),
        (EXITED, "Worker exits with an exit code 7"),
        (TRACEBACK, "ValueError: head_dim=16"),
        ("The actor was killed by ray.kill\n\tmore", "The actor was killed by ray.kill"),
        ("", "no reason given"),
    ],
)
def test_what_ray_knows(tmp_path, message, cause):
    assert cause_of_death(message, tmp_path, 17) == cause
    assert cause_of_death(message, None, 17) == cause


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        ("one\nFatal Python error: Segmentation fault\n\nStack (most recent call first):\n", "Segmentation fault"),
        ("Traceback:\ntorch.OutOfMemoryError: CUDA out of memory.\nbye\n", "CUDA out of memory"),
        ("ValueError: first\nValueError: second\n" + "x" * 70_000 + "\nKeyError: 'third'\n", "KeyError: 'third'"),
    ],
)
def test_its_own_last_words_say_more(tmp_path, written, cause):
    (tmp_path / "worker-ab-01-17.err").write_text(written)
    (tmp_path / "worker-ab-01-18.err").write_text("RuntimeError: of another process\n")
    assert cause in cause_of_death(SILENT, tmp_path, 17)


def test_warnings_are_no_last_words(tmp_path):
    (tmp_path / "worker-ab-01-17.err").write_text(":job_id:01\n/x.py:3: UserWarning: slow\n")
    assert "ended without a word" in cause_of_death(SILENT, tmp_path, 17)
