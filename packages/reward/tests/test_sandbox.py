"""Choosing a sandbox, its limits, and what happens when one of its own processes dies."""

import asyncio
import contextlib
import os
import platform
import signal
import struct
from pathlib import Path

import pytest

from tailrace.reward.sandbox import Limits, NoSandboxError, RunVerdict, probe_sandbox, sandbox_names, select_sandbox
from tailrace.reward.sandbox import select as selection
from tailrace.reward.sandbox.scratch import DEEPEST, remove, scratch_size
from tailrace.reward.sandbox.seccomp import PROTECTED, asking_filter, program_filter, protecting_filters
from tailrace.reward.sandbox.select import Probe

pytestmark = pytest.mark.usefixtures("one_probe_of_each_sandbox")
SLEEP = "import os, time\nif os.fork() == 0: os.fork()\ntime.sleep(60)"
LOCAL = ("sandlock", "bubblewrap")


# The first one is that of `auto`; the other keeps the contract of hostile programs each time, and this file with --deep.
@pytest.fixture(params=["sandlock", pytest.param("bubblewrap", marks=pytest.mark.deep)])
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
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not holds():
                await asyncio.sleep(0.01)
            return
    pytest.fail(what)


def _gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


@pytest.mark.parametrize("backend", LOCAL, indirect=True)
def test_a_probe_says_what_holds(backend):
    assert all(probe_sandbox(backend).facts.values())
    assert {"no TCP", "no UDP", "no host files", "no environment"} <= set(probe_sandbox(backend).facts)


def test_where_none_works_one_line_names_probes_and_remedies(monkeypatch):
    monkeypatch.setattr(selection, "probe_sandbox", lambda name, modules: Probe(False, f"no {name} today"))
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
    if name in ("cpu_s", "wall_s", "idle_s") and value in (0.5, True):
        assert getattr(Limits(**{name: value}), name) == value
        return
    with pytest.raises(ValueError, match=f"found {name}="):
        Limits(**{name: value})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.cases(1)
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


def test_a_supervisor_that_died_while_it_waited_costs_no_run(backend):
    async def run():
        sandbox = select_sandbox(f"{backend}:1")
        try:
            assert (await sandbox.run("print(1)")).stdout == b"1\n"
            (waiting,) = sandbox.pids
            os.kill(waiting, signal.SIGKILL)
            await _until(lambda: _gone(waiting), "the supervisor lives on")
            found = await sandbox.run("print(2)")
            assert (found.verdict, found.stdout) == (RunVerdict.OK, b"2\n"), found.reason
            assert waiting not in sandbox.pids
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


@pytest.mark.parametrize("backend", LOCAL, indirect=True)
@pytest.mark.parametrize(
    ("start", "processes"),
    [("if os.fork() == 0: time.sleep(60)", 8), ("threading.Thread(target=time.sleep, args=(60,)).start()", 1)],
    ids=["processes", "threads"],
)
@pytest.mark.cases(1)
def test_a_program_does_not_grow_while_its_supervisor_cannot_look(backend, start, processes):
    program = f"import os, threading, time\nfor _ in range(300):\n    {start}\ntime.sleep(60)"

    def threads(supervisor):
        return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in _below(supervisor) if not _gone(pid))

    async def run():
        sandbox = select_sandbox(backend)
        try:
            found, tasks = 0, []
            while not found:  # what was below had ended, and the program had not begun
                if not tasks or tasks[-1].done():  # on a busy machine it may be ended before anybody has looked
                    tasks.append(asyncio.create_task(sandbox.run(program, limits=Limits(processes=processes))))
                task = tasks[-1]
                await _until(lambda: tasks[-1].done() or (sandbox.pids and _below(sandbox.pids[0])), "nothing starts")
                if task.done():
                    continue
                os.kill(sandbox.pids[0], signal.SIGSTOP)
                await asyncio.sleep(1.0)
                found = threads(sandbox.pids[0])
                os.kill(sandbox.pids[0], signal.SIGCONT)
            return found, await task
        finally:
            await sandbox.close()

    found, ended = asyncio.run(run())
    assert (
        1 <= found <= 8 + 3
    )  # eight threads to a process; one too many is what shows; bubblewrap has two processes of its own
    assert (str(ended.verdict), ended.limit) == ("over-budget", "processes")


def test_closing_ends_what_runs(backend):
    async def run():
        sandbox = select_sandbox(backend)
        sandbox._free = asyncio.Semaphore(1)
        task, waits = (asyncio.create_task(sandbox.run(program)) for program in (SLEEP, "pass"))
        await _until(lambda: sandbox.pids and len(_below(sandbox.pids[0])) >= 3, "the program does not start")
        below = _below(sandbox.pids[0])
        await sandbox.close()
        await sandbox.close()
        for each in (task, waits):
            assert (await each).verdict is RunVerdict.INFRASTRUCTURE
        assert all(map(_gone, below))
        with pytest.raises(RuntimeError, match="closed"):
            await sandbox.run("pass")

    asyncio.run(run())


def _answer(lines, number, *arguments):
    """What a filter answers to a system call, by an interpreter of the few instructions that it has."""
    data = struct.pack("=iIQ6Q", number, 0xC000003E if platform.machine() == "x86_64" else 0xC00000B7, 0, *arguments)
    held, place = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", lines, 8 * place)
        place += 1
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            held &= value
        elif code == 0x06:
            return {0x7FFF0000: "allow", 0x00050000: "idle", 0x7FC00000: "ask"}.get(value, "refuse")
        else:
            place += yes if {0x15: held == value, 0x35: held >= value, 0x45: held & value}[code] else no


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
@pytest.mark.parametrize(
    ("number", "arguments", "answer"),
    [
        (162, (), "idle"), (306, (9,), "idle"), (74, (9,), "idle"), (72, (3, 1024, 0), "refuse"), (72, (3, 1026, 1), "refuse"),
        (72, (3, 8, 7), "refuse"), (72, (3, 15, 7), "refuse"), (72, (3, 10, 19), "refuse"), (72, (3, 2, 1), "allow"),
        (72, (3, 1031, 9), "allow"), (72, (3, 0, 3), "allow"), (16, (3, 0x8901, 7), "refuse"), (16, (3, 0x8902, 7), "refuse"),
        (16, (3, 0x5401, 7), "allow"), (30, (1, 0, 0), "refuse"), (31, (1, 0, 0), "refuse"), (241, (7,), "refuse"),
        (62, (7, 9), "allow"), (0, (0, 7, 7), "allow"), (41, (2, 1, 0), "refuse"), (56, (0x20000000,), "refuse"),
    ],
)  # fmt: skip
def test_the_filter_answers_a_call(number, arguments, answer):
    assert _answer(program_filter(), number, *arguments, *(0,) * (6 - len(arguments))) == answer


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_each_start_of_a_process_or_a_thread_is_asked_about():
    answers = {number: _answer(asking_filter(), number, *(0,) * 6) for number in range(500)}
    assert {number for number, answer in answers.items() if answer != "allow"} == {56, 57, 58, 435}
    assert {answers[number] for number in (56, 57, 58, 435)} == {"ask"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
@pytest.mark.parametrize(
    ("number", "arguments", "answer"),
    [
        (62, (7, 9), "allow"), (62, (PROTECTED, 9), "refuse"), (62, (0, 9), "refuse"), (62, (2**32 - 1, 9), "refuse"),
        (62, (2**32 - 7, 9), "refuse"), (200, (7, 9), "allow"), (200, (PROTECTED, 9), "refuse"), (234, (7, 7, 9), "allow"),
        (234, (PROTECTED, 7, 9), "refuse"), (234, (7, PROTECTED, 9), "refuse"), (297, (PROTECTED, 7, 9), "refuse"),
        (129, (PROTECTED, 9), "refuse"), (129, (7, 9), "allow"), (424, (3, 9), "refuse"), (0, (PROTECTED, 9), "allow"),
    ],
)  # fmt: skip
def test_the_filter_of_a_test_protects_one_process(number, arguments, answer):
    assert _answer(protecting_filters()["x86_64"], number, *arguments, *(0,) * (6 - len(arguments))) == answer


def _nested(folder, name, depth):
    """Directories in each other, made by descriptors: their path is longer than a path may be."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


@pytest.mark.parametrize(("name", "depth"), [("d", 60), ("d", 1100), ("d", 5000), ("e" * 255, 300)])
def test_a_directory_of_any_depth_is_counted_and_removed(tmp_path, name, depth):
    folder = tmp_path / "scratch"
    folder.mkdir()
    _nested(folder, name, depth)
    (folder / "locked").mkdir(0o300)
    (folder / "locked" / "inner").mkdir(0o500)
    (folder / "to-elsewhere").symlink_to(tmp_path)
    (tmp_path / "elsewhere").write_text("kept")
    size, entries = scratch_size(folder), 4096 * (depth + 4)
    assert size > 1 << 50 if depth > DEEPEST else entries <= size <= entries + 2 * 4096  # a link may take a block
    remove(folder)
    remove(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.deep
def test_a_tree_that_does_not_work_is_ended_and_one_that_does_is_not(backend):
    limits = Limits(cpu_s=10, wall_s=60, idle_s=1.0)
    programs = {
        "import time; time.sleep(50)": ("over-budget", "idle"),
        "import os, time\nif os.fork() == 0: time.sleep(50)\nwhile True: time.sleep(0.5)": ("over-budget", "idle"),
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)": ("over-budget", "idle"),
        "import os, time\nif os.fork() == 0:\n    while time.process_time() < 2: pass\nelse:\n    os.wait()": (
            "ok",
            None,
        ),
        "import time\nfor _ in range(15): time.sleep(0.1); sum(range(2_000_000))": ("ok", None),
    }

    async def run():
        sandbox = select_sandbox(backend)
        try:
            return [await sandbox.run(program, limits=limits) for program in programs]
        finally:
            await sandbox.close()

    assert [(str(ended.verdict), ended.limit) for ended in asyncio.run(run())] == list(programs.values())


def test_multiprocessing_works_among_forked_processes(backend):
    program = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
def square(x):
    return x * x
def work(queue, total, lock, event, barrier):
    for _ in range(200):
        with lock: total.value += 1
    barrier.wait()
    event.wait()
    queue.put("x" * 100_000)
lock, total, event = multiprocessing.RLock(), multiprocessing.Value("i", 0), multiprocessing.Event()
queue, barrier = multiprocessing.Queue(), multiprocessing.Barrier(3)
processes = [multiprocessing.Process(target=work, args=(queue, total, lock, event, barrier)) for _ in range(3)]
for process in processes: process.start()
event.set()
sizes = [len(queue.get()) for _ in processes]
for process in processes: process.join()
with multiprocessing.Pool(2) as pool: squares = pool.map(square, range(10))
with ProcessPoolExecutor(2) as pool: more = list(pool.map(square, range(3)))
bounded = multiprocessing.BoundedSemaphore(2)
taken = [bounded.acquire(timeout=0.05) for _ in range(3)]
with multiprocessing.Lock() as held: pass
for _ in range(2): bounded.release()
try: bounded.release()
except ValueError: taken.append("full")
shared = shared_memory.SharedMemory(create=True, size=9)
child = multiprocessing.Process(target=shared.buf.__setitem__, args=(0, 7))
child.start()
child.join()
print(sizes, total.value, squares, more, taken, shared.buf[0])
shared.close()
shared.unlink()
"""

    async def run():
        sandbox = select_sandbox(backend)
        try:
            return await sandbox.run(program, limits=Limits(cpu_s=20, wall_s=60))
        finally:
            await sandbox.close()

    ended = asyncio.run(run())
    assert ended.stdout.decode() == (
        "[100000, 100000, 100000] 600 [0, 1, 4, 9, 16, 25, 36, 49, 64, 81] [0, 1, 4] [True, True, False, 'full'] 7\n"
    ), ended.stderr.decode()


@pytest.mark.deep
def test_programs_have_the_modules_that_are_named_and_what_these_need(backend):
    program = """
import mpmath, numpy, sympy
print(numpy.linalg.inv(numpy.eye(3)).sum(), sympy.sqrt(8), mpmath.__name__)
try: import yaml
except ImportError as error: print(error)
"""

    async def run():
        sandbox = select_sandbox(backend, ["numpy", "sympy", "json"])
        bare = select_sandbox(backend)
        try:
            limits = Limits(cpu_s=30, wall_s=90)
            return await sandbox.run(program, limits=limits), await bare.run("import numpy", limits=limits)
        finally:
            await sandbox.close()
            await bare.close()

    ended, without = asyncio.run(run())
    assert ended.stdout == b"3.0 2*sqrt(2) mpmath\nNo module named 'yaml'\n", ended.stderr.decode()
    assert b"No module named 'numpy'" in without.stderr


def test_modules_that_programs_cannot_have_are_refused():
    with pytest.raises(NoSandboxError, match="found the module 'no_such', expected one that is installed here"):
        select_sandbox(modules=["no_such"])
    with pytest.raises(NoSandboxError, match="has modules of its own"):
        select_sandbox("sandbox-fusion:http://localhost:1", ["numpy"])
