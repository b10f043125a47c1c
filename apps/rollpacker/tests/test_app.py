"""The app is a recipe: its defaults, its quick start and the configurations beside it are valid, and are what they say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.contracts import plugins
from tailrace.controller.spec import AXES
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec
from tailrace.repack import AdaptiveTP, ScaleDown
from tailrace.rollpacker import APP
from tailrace.rollpacker.paper.points import rlhfuse

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "configs" / "rollpacker"
CONFIGS = sorted(FOLDER.glob("*.toml"))
ALONE = ROOT / "docs" / "rollpacker.md"


def spec_of(name):
    return build_spec(configuration(str(FOLDER / f"{name}.toml")))


def policies(name):
    spec = spec_of(name)
    return {axis: type(getattr(spec, axis)).__name__ for axis in ("batching", "training", "provisioning", "admission")}


def whole():
    spec = build_spec(configuration("rollpacker"))
    return {axis: type(getattr(spec, axis)).__name__ for axis in ("batching", "training", "provisioning", "admission")}


def test_it_comes_through_the_door_for_plugins():
    assert plugins.load("tailrace.app", "rollpacker") is APP


def test_the_defaults_name_a_policy_on_every_axis():
    assert set(APP.defaults()["pipeline"]) == {*AXES, "sampler"}


def test_the_quick_start_is_on_policy_and_waits_for_all_replicas():
    config = validate([("defaults", APP.defaults()), ("quick start", APP.quickstart())])
    spec = build_spec(config)
    assert type(spec.admission).__name__ == "OnPolicy"
    assert type(spec.sync).__name__ == "Barrier"
    assert type(spec.batching).__name__ == "TailBatching"
    assert type(spec.relocation).__name__ == "NoRelocation"
    assert type(spec.recovery).__name__ == "Isolate"
    assert spec.batching.shares == config.task.shares == (2.0, 1.0)  # type: ignore[attr-defined]
    launched = spec.batching.rounds().open(lambda count: range(count))  # type: ignore[attr-defined]
    assert len(launched.prompts) * launched.samples <= config.rollout.replicas * spec.replica_batch, (
        "all of a round race"
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_beside_it_are_valid_and_say_what_they_are(path):
    assert path.read_text().startswith("# ")
    assert build_spec(configuration(str(path))).steps > 0


def test_baselines_and_ablations_swap_what_they_say():
    full = whole()
    assert policies("synchronous") == {
        **full,
        "batching": "Plain",
        "training": "FullBatch",
        "provisioning": "Static",
    }
    assert policies("plus-1-tail-batching") == {**full, "training": "FullBatch", "provisioning": "Static"}
    assert policies("plus-2-reward-scheduler") == policies("plus-1-tail-batching")
    assert policies("plus-3-parallelism-planner") == {
        **policies("plus-2-reward-scheduler"),
        "provisioning": "AdaptiveTP",
    }
    assert policies("adaptive-tp") == policies("plus-3-parallelism-planner") == policies("without-stream-trainer")
    assert spec_of("without-stream-trainer") == spec_of("plus-3-parallelism-planner")
    assert policies("without-reward-scheduler") == policies("adaptive-tp-scale-down") == full
    assert policies("without-parallelism-planner") == {**full, "provisioning": "ScaleDown"}
    assert policies("without-scale-down") == {**full, "provisioning": "AdaptiveTP"}
    assert policies("one-off") == {**full, "admission": "OneStep", "provisioning": "Static"}


def test_the_whole_system_has_all_four_mechanisms():
    for spec in (build_spec(configuration("rollpacker")), spec_of("plus-4-stream-trainer")):
        assert spec == build_spec(configuration("rollpacker"))
        assert type(spec.batching).__name__ == "TailBatching"
        assert type(spec.training).__name__ == "Streamed"
        assert isinstance(spec.provisioning, AdaptiveTP), "the parallelism planner"
        assert spec.provisioning.lends_devices(), "the stream trainer's devices"
    code = configuration("rollpacker").reward.code
    assert code.min_timeout_s < code.max_timeout_s, "the reward scheduler's timeouts"
    assert policies("adaptive-tp-scale-down") == whole()


def test_rlhfuse_is_the_same_system_in_both_worlds():
    simulated = rlhfuse("14B", quick=True).config()
    for path, adaptive in (("rlhfuse", False), ("rlhfuse-adaptive-timeouts", True)):
        spec, code = spec_of(path), configuration(str(FOLDER / f"{path}.toml")).reward.code
        for other in (build_spec(simulated), build_spec(configuration("rollpacker"))):
            same = ("training", "admission", "routing", "sync", "relocation")
            assert [type(getattr(spec, axis)) for axis in same] == [type(getattr(other, axis)) for axis in same]
        assert type(spec.provisioning) is type(build_spec(simulated).provisioning) is ScaleDown
        for rounds in (spec.batching, build_spec(simulated).batching):
            assert (rounds.prompt_factor, rounds.sample_factor) == (1.0, 1.0)
        assert (code.min_timeout_s < code.max_timeout_s) is adaptive
    rule = build_fleet(simulated).scoring["code"].timeout
    assert rule.t_min_s == rule.t_max_s, "fixed, as in rlhfuse.toml"
    rule = build_fleet(rlhfuse("14B", quick=True, adaptive=True).config()).scoring["code"].timeout
    assert rule.t_min_s < rule.t_max_s


@pytest.mark.parametrize("name", ["synchronous", "plus-1-tail-batching", "without-reward-scheduler", "rlhfuse"])
def test_a_fixed_timeout_is_one(name):
    code = configuration(str(FOLDER / f"{name}.toml")).reward.code
    assert code.min_timeout_s == code.max_timeout_s


def test_an_adaptive_timeout_is_that_of_the_quick_start():
    for name in ("rlhfuse-adaptive-timeouts", "plus-2-reward-scheduler", "without-stream-trainer"):
        assert configuration(str(FOLDER / f"{name}.toml")).reward.code == configuration("rollpacker").reward.code


def test_rounds_in_a_loop_of_ones_own(tmp_path):
    code = re.search(r"```python\n(.*?)```", ALONE.read_text(), re.DOTALL).group(1)
    assert len(code.splitlines()) < 40
    imports = re.findall(r"^(?:from|import) (\S+)", code, re.MULTILINE)
    assert imports == ["asyncio", "itertools", "random", "tailrace.rollout"]
    told = "\nimport json; print(json.dumps(sorted(trained)))"
    command = [sys.executable, "-W", "error", "-c", code + told]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *printed, trained = done.stdout.splitlines()
    assert json.loads(trained) == list(range(40)), "each prompt of the epoch once"
    shown = re.search(r"\nIt prints\n\n(.*?)\n\n", ALONE.read_text(), re.DOTALL).group(1)
    assert printed == [line.strip() for line in shown.splitlines()]
