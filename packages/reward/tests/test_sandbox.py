"""Choosing a sandbox, its limits, and what happens when one of its own processes dies."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tailrace.reward.sandbox import Limits, NoSandboxError, RunVerdict, probe_sandbox, sandbox_names, select_sandbox
from tailrace.reward.sandbox import select as selection
from tailrace.reward.sandbox.probe import Probe

SLEEP = "import os, time\nif os.fork() == 0: os.fork()\ntime.sleep(60)"
LOCAL = ("sandlock", "bubblewrap")


@pytest.fixture(params=LOCAL)
def backend(request):
    found = probe_sandbox(request.param)
    if not found.works:
        pytest.skip(f"{request.param} does not work here: {found.reason}")
    return request.param


def _below(pid):
    """Processes that descend from this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat[stat.rindex(")") + 2 :].split()[1])
    found, growing = {pid}, True
    while growing:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        growing = bool(more)
    return found - {pid}


async def _until(holds, what, timeout_s=20):
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.01)
    assert holds(), what


def _gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def test_a_probe_says_what_holds(backend):
    assert all(probe_sandbox(backend).facts.values())
    assert {"no TCP", "no UDP", "no host files", "no environment"} <= set(probe_sandbox(backend).facts)


def test_where_none_works_one_line_names_probes_and_remedies(monkeypatch):
    monkeypatch.setattr(selection, "probe_sandbox", lambda name: Probe(False, f"no {name} today"))
    with pytest.raises(NoSandboxError) as refused:
        select_sandbox()
    line = str(refused.value)
    assert "sandlock: no sandlock today; bubblewrap: no bubblewrap today" in line
    assert "tailrace-reward[sandbox]" in line
    assert "\n" not in line


def test_an_unknown_name_is_refused():
    with pytest.raises(NoSandboxError, match="found the sandbox 'nope', expected auto, bubblewrap"):
        select_sandbox("nope")
    with pytest.raises(NoSandboxError, match="expected a number of programs at a time"):
        select_sandbox("sandlock:none")
    assert {*LOCAL, "sandbox-fusion"} <= set(sandbox_names())


@pytest.mark.parametrize("name", Limits.__slots__)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 0.5, True])
def test_limits_are_above_zero_and_whole_where_they_count(name, value):
    if name in ("cpu_s", "wall_s") and value in (0.5, True):
        assert getattr(Limits(**{name: value}), name) == value
        return
    with pytest.raises(ValueError, match=f"found {name}="):
        Limits(**{name: value})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_supervisor_is_no_fault_of_the_program_and_is_replaced(backend, number):
    async def run():
        sandbox = select_sandbox(backend)
        try:
            task = asyncio.create_task(sandbox.run(SLEEP))
            await _until(lambda: sandbox.pids and len(_below(sandbox.pids[0])) >= 3, "the program does not start")
            (supervisor,) = sandbox.pids
            below = _below(supervisor)
            os.kill(supervisor, number)
            ended = await asyncio.wait_for(task, 20)
            assert ended.verdict is RunVerdict.INFRASTRUCTURE
            assert ended.reason
            await _until(lambda: all(map(_gone, below)), "processes of the program are left")
            assert (await sandbox.run("print(1)")).stdout == b"1\n"
            assert supervisor not in sandbox.pids
        finally:
            await sandbox.close()

    asyncio.run(run())


def test_a_killed_caller_takes_everything_along(backend, tmp_path):
    code = (
        "import asyncio, sys\nfrom tailrace.reward.sandbox import select_sandbox\n"
        f"async def run():\n    sandbox = select_sandbox({backend!r})\n"
        f"    task = asyncio.create_task(sandbox.run({SLEEP!r}))\n"
        "    while not sandbox.pids: await asyncio.sleep(0.01)\n"
        "    print(sandbox.pids[0], flush=True)\n    await task\nasyncio.run(run())\n"
    )

    async def run():
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        caller = await asyncio.create_subprocess_exec(
            os.sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=environment
        )
        supervisor = int(await asyncio.wait_for(caller.stdout.readline(), 60))
        await _until(lambda: len(_below(supervisor)) >= 3, "the program does not start")
        below = _below(supervisor)
        caller.kill()
        await caller.wait()
        await _until(lambda: all(map(_gone, {supervisor, *below})), "processes of the caller are left")
        await _until(lambda: not list(tmp_path.iterdir()), "files of the caller are left")

    asyncio.run(run())


def test_closing_ends_what_runs(backend):
    async def run():
        sandbox = select_sandbox(backend)
        task = asyncio.create_task(sandbox.run(SLEEP))
        await _until(lambda: sandbox.pids and len(_below(sandbox.pids[0])) >= 3, "the program does not start")
        below = _below(sandbox.pids[0])
        await sandbox.close()
        await sandbox.close()
        assert (await task).verdict is RunVerdict.INFRASTRUCTURE
        assert all(map(_gone, below))
        with pytest.raises(RuntimeError, match="closed"):
            await sandbox.run("pass")

    asyncio.run(run())
