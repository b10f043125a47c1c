"""The package as a newcomer meets it: its example runs, it brings nothing, and its names are what they were."""

import re
import subprocess
import sys
from pathlib import Path

import tailrace.processes

PACKAGE = Path(__file__).parents[1]


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_example(tmp_path):
    page = (PACKAGE / "README.md").read_text()
    printed = run(re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1), tmp_path)
    shown = re.search(r"\nprints\n\n(.*?)\n\n", page, re.DOTALL).group(1)
    assert printed.strip() == "\n".join(line.strip() for line in shown.splitlines())


def test_it_needs_the_standard_library_only(tmp_path):
    code = "import sys, tailrace.processes, tailrace.processes.asynchronous; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run(code, tmp_path).split()}
    ours = {name for name in run(code, tmp_path).split() if name.startswith("tailrace.")}
    assert all(name.startswith("tailrace.processes") for name in ours)
    start = {name.partition(".")[0] for name in run("import sys; print(*sys.modules)", tmp_path).split()}
    assert loaded - start - {"tailrace"} <= set(sys.stdlib_module_names)


def test_importing_it_for_a_child_loads_no_event_loop(tmp_path):
    assert "asyncio" not in run("import sys, tailrace.processes; print(*sys.modules)", tmp_path).split()


def test_public_names():
    for name in tailrace.processes.__all__:
        assert getattr(tailrace.processes, name).__doc__
    assert sorted(tailrace.processes.__all__) == [
        "Child",
        "ChildEndedError",
        "ChildError",
        "ChildTimeoutError",
        "Ending",
        "LineError",
        "ProcessId",
        "at_end_of",
        "die_with_parent",
        "private_streams",
        "serve",
        "wait_for_parent",
    ]
