"""For all tests: which of the long ones run, how many run at once, what they cost, and where bytecode is kept."""

import contextlib
import gc
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

# A shell that starts pytest in the background has it ignore Ctrl-C, and so would all commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Torch, Ray and vLLM would be compiled anew in each process that tests start, which takes longer than the tests.
if sys.dont_write_bytecode and not os.environ.get("PYTHONPYCACHEPREFIX"):
    bytecode = Path(tempfile.gettempdir()) / f"tailrace-tests-bytecode-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        bytecode.mkdir(mode=0o700)
    if (
        bytecode.is_dir() and not bytecode.is_symlink() and bytecode.stat().st_uid == os.getuid()
    ):  # what lies there is run
        os.environ |= {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONDONTWRITEBYTECODE": ""}
        sys.pycache_prefix, sys.dont_write_bytecode = str(bytecode), False

# Threads of torch that wait for each other on busy cores take up to seven times as long on models as small as those of tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Under `uv run`, Ray would start each worker through uv too. Ray reads this at its import, so it is set before any test's.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

if find_spec("tailrace.rollout") is not None:  # some packages are tested without it
    from tailrace.rollout.vllm_process import correct_wheel_tag

    correct_wheel_tag()

# The contract suites are part of the packages; their assertions are to show what they compared, too.
pytest.register_assert_rewrite(*(f"tailrace.{path.name}.testing" for path in Path(__file__).parent.glob("packages/*")))

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("shared machine", deadline=None)  # a slow example says nothing about the code
    settings.load_profile("shared machine")

DEEP_PARTS = 48
"""Parts of the long tests, of which `.ci/run` runs one: the number of its commit, counted round."""

LEAST_EXAMPLES = 10
"""A property test that has fewer keeps them all without --deep."""

LEAST_SEEDS = 3
"""A test that is parametrised by fewer, as `seed`, keeps them all without --deep; of more, a quarter."""

PIECES = 3
"""Pieces of a class whose long tests are dealt to parts."""

DEAR = (
    "packages/environment/tests/test_harness.py::test_two_hundred_episodes_with_twenty_kills",
    "packages/paramserver/tests/bridges/test_verl.py::test_verls_manager_updates_two_workers_though_relays_are_killed_in_mid_transfer",
    "packages/pipeline/tests/test_nodes_on_ray.py::test_a_trainer_on_two_machines_loses_one_and_goes_on_with_a_third",
    "packages/pipeline/tests/test_standby_on_a_joined_cluster.py::test_a_trainer_takes_a_machine_of_replicas_of_a_cluster_that_was_joined",
    "packages/reward/tests/test_honest_programs.py::test_a_thousand_honest_programs_on_busy_cores",
    "tests/test_adapter_run.py::test_an_adapter_is_trained_beside_sglangs_own_server",
    "tests/test_end_to_end.py::test_controllers_are_replaced_while_members_live_on",
    "tests/test_environment_runs.py::test_ten_steps_on_a_taskset_that_verifiers_brings_with_it",
    "tests/test_environment_runs.py::test_ten_steps_on_openenvs_own_example[local]",
    "tests/test_environment_runs.py::test_ten_steps_on_openenvs_own_example[ray]",
    "tests/test_installing.py::test_the_quick_start_runs_from_the_wheels_alone",
    "tests/test_judge_beside_a_loan.py::test_the_judge_scores_through_every_loan_and_whoever_dies_nothing_is_lost",
    "tests/test_long_run.py::test_no_role_grows_with_trajectories",
    "tests/test_newcomers_path.py::test_a_first_run_ends_rightly_and_can_be_looked_at",
    "tests/test_newcomers_path.py::test_a_task_of_ones_own_is_trained_broken_gone_on_with_and_exported",
    "tests/test_real_model.py::test_lora_on_word_problems_is_trained_exported_and_loaded_again",
    "tests/test_resize.py::test_a_run_resizes_vllm_and_back",
    "tests/test_run_memory.py::test_a_runs_memory_is_within_ten_percent",
    "tests/test_standby_command.py::test_the_shipped_command_takes_a_standby_when_its_trainer_loses_a_machine",
    "tests/test_tool_sums_warm_start.py::test_a_plus_is_told_from_a_minus_within_180_steps",
)
"""The dearest long tests. Each has a part without others that are `long` or have a timeout of their own."""

WITH_VLLM = (
    "packages/paramserver/tests/bridges/test_vllm.py",
    "packages/rollout/tests/test_replica_on_real_engines.py",
    "packages/rollout/tests/test_vllm_engine.py",
    "packages/rollout/tests/test_vllm_weights.py",
)
"""Files that share a process without --deep: vLLM's import and its first engine take 10 processor seconds in each."""

COST, BEGAN_S = "processor_s", pytest.StashKey()
FILES_FOR_ONE_PROCESS = 3
"""A command line that names no folder and no more files than these is run without helper processes, which take seconds."""


def pytest_addoption(parser):
    parser.addoption("--deep", action="store_true", help="run the long tests, too")
    parser.addoption(
        "--deep-part",
        metavar="K[/N]",
        help=f"of the long tests, run the K-th of N parts only, such as 2/4; without N, of {DEEP_PARTS}, counted round",
    )
    parser.addoption(
        "--some",
        action="append",
        metavar="ID",
        help="of the tests that are collected, run those of a folder, file, class or function only",
    )
    parser.addoption(
        "--costs", type=int, metavar="N", help="show processor seconds by package and of the N dearest files"
    )


def pytest_xdist_auto_num_workers(config):
    """For `-n auto`, which pyproject.toml sets: four processes for two cores, since some tests wait for deadlines; with five
    the cores are never idle either, and each process imports all for 12 processor seconds. None for a few files."""
    if _names_few_files(config):
        return 0
    return min(8, 2 * (os.cpu_count() or 1))


def _names_few_files(config):
    named = [Path(argument.split("::")[0]) for argument in config.args]
    return all(path.suffix == ".py" for path in named) and len(named) <= FILES_FOR_ONE_PROCESS


def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "loadfile" or config.getoption("deep") or config.getoption("deep_part"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesAndVLLM(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return WITH_VLLM[0] if file in WITH_VLLM else file

    return FilesAndVLLM(config, log)


def pytest_report_header(config):
    part = config.getoption("deep_part")
    if part:
        return f"long tests: part {part}"
    return "long tests: " + ("all" if config.getoption("deep") else "left out, --deep runs them")


def pytest_itemcollected(item):
    """Make the tests deep that a class inherits and another class runs anyway."""
    said = list(item.iter_markers("inherited"))  # a base class's own before the class's
    if not said or item.originalname in vars(item.cls):
        return
    test = item.function.__name__
    if test in _names(said[-1], "deep") or ("keeps" in said[-1].kwargs and test not in _names(said[-1], "keeps")):
        item.add_marker(pytest.mark.deep)


def _names(marker, which):
    return {test.__name__ for test in marker.kwargs.get(which, ())}


def pytest_collection_modifyitems(config, items):
    _keep_some(config, items)
    chosen = _chosen(config)
    _set_seeds(items)
    _set_cases(items)
    _set_examples(items, chosen)
    _leave_out(
        config, items, [item for item in items if item.get_closest_marker("deep") is not None and not chosen(item)]
    )
    # A file's tests run in one process. No long file is to start when all others are done.
    long = {item.path for item in items if item.get_closest_marker("long") is not None}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection():
    gc.disable()  # nothing of what is imported and collected is garbage


def pytest_collection_finish():
    # What collection made stays to the end: each full collection of garbage would look at all of it, for a quarter of a second.
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[BEGAN_S] = _processor_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        report.user_properties.append((COST, _processor_s() - item.stash[BEGAN_S]))
    return report


def pytest_terminal_summary(terminalreporter, config):
    most = config.getoption("costs")
    if most is None:
        return
    files = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                files[report.nodeid.split("::")[0]] += dict(report.user_properties).get(COST, 0.0)
    packages = Counter()
    for file, cost in files.items():
        first, second, *_ = Path(file).parts
        packages[first if second.endswith(".py") else f"{first}/{second}"] += cost
    terminalreporter.section(f"{files.total():,.0f} processor seconds in tests and the processes that they ended")
    for name, cost in [*packages.most_common(), *files.most_common(most)]:
        terminalreporter.write_line(f"{cost:8.1f} s  {name}")


def _processor_s():
    """Processor seconds of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.fixture
def seeds():
    """Yield so many seeds, one after the other. The last one printed is that of a failure."""

    def each(count):
        for seed in range(count):
            print(f"seed {seed}")
            yield seed

    return each


@pytest.fixture
def deep(request):
    """Whether this test is to go deep: more seeds, more sizes."""
    return _chosen(request.config)(request.node)


@pytest.fixture(scope="module")
def one_verifier_process():
    """Let a module's checks of prompt files ask one process for our own verifiers; a start takes a quarter second."""
    from tailrace.pipeline.run.prompts import data_check
    from tailrace.reward import Scorer

    with Scorer() as kept, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            data_check, "Scorer", lambda own, **more: Scorer(own, **more) if own else contextlib.nullcontext(kept)
        )
        yield


@pytest.fixture(scope="module")
def one_probe_of_each_sandbox():
    """Let a module's choices of a sandbox probe each of them once; the program of a probe takes a quarter second."""
    from tailrace.reward.sandbox import select

    probed = cache(select.probe_sandbox)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "probe_sandbox", lambda name, modules=(): probed(name, tuple(modules)))
        yield


@pytest.fixture(scope="session")
def environment_with(tmp_path_factory):
    """Makes an environment of released packages that are not in the lock, by uv, and says where its interpreter is.

    `ours` names packages of this repository that are installed beside them, as they are here and without what they need.
    """

    def make(*requirements, ours=()):
        if shutil.which("uv") is None:
            pytest.skip("it needs uv, to install released packages")
        root = tmp_path_factory.mktemp("environment")
        python = root / "venv" / "bin" / "python"
        install = ["uv", "pip", "install", "-q", "--python", str(python)]
        for command in (
            ["uv", "venv", "-q", "--python", "3.11", str(root / "venv")],
            [*install, *requirements],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)  # noqa: S603
            if done.returncode:
                pytest.skip(f"no environment with {', '.join(requirements)}: {done.stderr.strip().splitlines()[-1]}")
        if ours:
            folders = [word for name in ours for word in ("-e", str(Path(__file__).parent / "packages" / name))]
            subprocess.run([*install, "--no-deps", *folders], check=True, timeout=300)  # noqa: S603
        return python

    return make


def _keep_some(config, items):
    """Keep the tests that ``--some`` names. The files of all others were imported, which shows what they lack."""
    names = config.getoption("some")
    if not names:
        return
    of = {name: [item for item in items if re.match(rf"{re.escape(name)}($|/|::|\[)", item.nodeid)] for name in names}
    for name, found in of.items():
        if not found:
            raise pytest.UsageError(
                f"--some: found no test of {name!r}, expected a path, or PATH::NAME, as tests are told"
            )
    kept = {item for found in of.values() for item in found}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _leave_out(config, items, long):
    """Deselect long tests. Where few files are named skip them, so that who asks for one reads why it does not run."""
    if _names_few_files(config):
        for item in long:
            item.add_marker(pytest.mark.skip(reason="a long test: --deep runs it"))
        return
    config.hook.pytest_deselected(items=long)
    left = set(long)
    items[:] = [item for item in items if item not in left]


def _set_seeds(items):
    """Make the tests deep that repeat one with another seed, but for a quarter of the seeds."""
    alike = defaultdict(list)
    for item in items:
        values = item.callspec.params if hasattr(item, "callspec") else {}
        if "seed" in values:
            others = tuple(sorted((name, repr(value)) for name, value in values.items() if name != "seed"))
            alike[item.parent.nodeid, item.originalname, others].append(item)
    for same in alike.values():
        for item in same[max(LEAST_SEEDS, len(same) // 4) :]:
            item.add_marker(pytest.mark.deep)


def _set_cases(items):
    """Keep some cases of each table that is marked so, spread over it, and make the others deep."""
    tables = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cases") is not None:
            tables[item.parent.nodeid, item.originalname].append(item)
    for table in tables.values():
        [most] = table[0].get_closest_marker("cases").args
        for number, item in enumerate(table):
            if number and number * most // len(table) == (number - 1) * most // len(table):
                item.add_marker(pytest.mark.deep)


def _set_examples(items, chosen):
    """A sixth of the examples of property tests, each time others, and four times as many of those that go deep."""
    deep = {item.function for item in items if chosen(item)}
    for test in {item.function for item in items}:
        if not hasattr(test, "hypothesis"):
            continue
        own = test._hypothesis_internal_use_settings
        most = own.max_examples
        examples = 4 * most if test in deep else max(min(most, LEAST_EXAMPLES), most // 6)
        test._hypothesis_internal_use_settings = settings(own, max_examples=examples)


def _chosen(config):
    part = config.getoption("deep_part")
    if not part:
        # One that --some names by itself runs, whether it is long or not.
        named = [re.compile(rf"{re.escape(name)}($|\[)") for name in config.getoption("some") or () if "::" in name]
        return lambda item: config.getoption("deep") or any(name.match(item.nodeid) for name in named)
    number, cut, parts = part.partition("/")
    if not (number.isdecimal() and (not cut or (parts.isdecimal() and 1 <= int(number) <= int(parts)))):
        raise pytest.UsageError(f"--deep-part: found {part!r}, expected a number K, or K/N with K from 1 to N")
    parts = int(parts or DEEP_PARTS)
    return lambda item: _number(item) % parts == int(number) % parts


def _number(item):
    """A number that says in which part a test is: the same whatever else is collected.

    Tests of a class share what takes long to make, so a class is cut into few pieces. Cases of a function are dealt one by one.
    """
    if item.nodeid in DEAR:
        return DEAR.index(item.nodeid)
    name = item.nodeid
    if item.cls is not None:
        name = f"{item.parent.nodeid} {zlib.crc32(item.originalname.encode()) % PIECES}"
    number = zlib.crc32(name.encode())
    if any(item.get_closest_marker(name) for name in ("long", "timeout")):
        return len(DEAR) + number % (DEEP_PARTS - len(DEAR))
    return number
