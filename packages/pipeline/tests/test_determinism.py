"""The switch `pipeline.deterministic`: what it sets, what gives way to it, and what it refuses."""

import pytest

from tailrace.pipeline.config.determinism import _KEYS
from tailrace.pipeline.config.loading import parse_setting, validate
from tailrace.pipeline.config.target import configuration, target_layers
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run import build

ON = {"pipeline": {"deterministic": True}}


def with_settings(*settings):
    return validate([*target_layers("laminar"), *((f"--set {text}", parse_setting(text)) for text in settings)])


def test_it_sets_what_equal_bits_take_over_the_apps_own_choice():
    plain, config = with_settings(), with_settings("pipeline.deterministic=true")
    assert plain.pipeline.admission.name == "inherent"
    pipeline = config.pipeline
    names = ("admission", "routing", "sync", "relocation", "training", "provisioning", "sampler", "batching")
    assert [getattr(pipeline, name).name for name in names] == [
        "on-policy", "round-robin", "when-drained", "none", "full-batch", "hybrid", "in-order", "plain",
    ]  # fmt: skip
    assert (pipeline.mode, config.publish.fence, config.trainer.colocated, pipeline.buffer_prompts) == (
        "sync", True, True, None,
    )  # fmt: skip
    assert pipeline.batching.options["seeded"] is True
    assert config.trainer.options["threads"] == config.rollout.options["threads"] == 1
    assert pipeline.prompts_per_replica * config.rollout.replicas >= pipeline.prompts_per_step
    assert config.rollout.options["max_num_seqs"] == pipeline.prompts_per_replica * pipeline.samples_per_prompt
    assert build.build_spec(config).deterministic
    assert not build.build_spec(config, controls=True).deterministic
    assert validate([("config.json", config.model_dump(mode="json"))]) == config, "a run that is resumed has it too"


def test_off_it_changes_nothing():
    assert with_settings("pipeline.deterministic=true", "pipeline.deterministic=false") == with_settings()


@pytest.mark.parametrize("path", sorted(path for path, value in _KEYS.items() if value is not None))
def test_each_key_that_says_otherwise_beside_or_above_is_refused_by_name(path):
    value = _KEYS[path]
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = 7
    else:
        other = "other"
    for part in reversed(path):
        other = {part: other}
    key = ".".join(path)
    together = {**other, "pipeline": {**other.get("pipeline", {}), "deterministic": True}}
    for layers in ([("my.toml", together)], [("my.toml", ON), ("--set it", other)]):
        with pytest.raises(ConfigError, match=f"keys 'pipeline.deterministic' and '{key}': found true and") as raised:
            validate([*target_layers("laminar"), *layers])
        assert "\n" not in str(raised.value)
        assert str(raised.value).startswith(layers[-1][0])
    found = (
        validate([*target_layers("laminar"), ("my.toml", {**other}), ("--set it", ON)])
        if path[0] != "pipeline"
        else None
    )
    assert found is None or found.pipeline.deterministic, "what lies below gives way"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["pipeline.batching.seeded=false"], "'pipeline.batching': found true and {'seeded': False}, expected"),
        (["pipeline.batching.filter_equal_rewards=true"], "'pipeline.batching'"),
        (["pipeline.prompts_per_replica=3"], "'pipeline.prompts_per_replica': found true and 3, expected 16 at least"),
        (
            ["rollout.options.max_num_seqs=100"],
            "'rollout.options.max_num_seqs': found true and 100, expected 128 at least",
        ),
        (["pipeline.buffer_prompts=64"], "'pipeline.buffer_prompts': found true and 64, expected nothing"),
    ],
)
def test_noise_and_shares_that_are_too_small_are_refused(settings, says):
    with pytest.raises(ConfigError) as raised:
        with_settings("pipeline.deterministic=true", *settings)
    assert says in str(raised.value)


def test_larger_shares_stay():
    config = with_settings(
        "pipeline.deterministic=true", "pipeline.prompts_per_replica=20", "rollout.options.max_num_seqs=300"
    )
    assert (config.pipeline.prompts_per_replica, config.rollout.options["max_num_seqs"]) == (20, 300)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["faults=['replica@step2']"], "found true and replica@step2, expected no fault of a replica"),
        (["mtbf_s=30.0"], "found true and mtbf_s = 30"),
        (["pipeline.prompts_per_step=2048"], "a batch of 16384 responses, expected at most 8192"),
        (["reward.judge.model=somewhere"], "found true and a judge, expected none"),
    ],
)
def test_what_breaks_it_elsewhere_is_refused_before_the_start(settings, says):
    with pytest.raises(ConfigError) as raised:
        build._check_deterministic(with_settings("pipeline.deterministic=true", *settings))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_engine_whose_responses_depend_on_time_is_refused():
    config = with_settings("pipeline.deterministic=true", "rollout.engine=transformers")
    with pytest.raises(
        ConfigError, match=r"'transformers', which lacks .*equal bits, asked for by pipeline.deterministic = true"
    ):
        build._abilities(config)


def test_a_task_with_an_environment_is_refused():
    config = configuration("robustrl", settings=["pipeline.deterministic=true", "faults=[]"], executor="local")
    with pytest.raises(ConfigError, match="found true and a task with an environment, expected one without"):
        build._check_deterministic(config)
