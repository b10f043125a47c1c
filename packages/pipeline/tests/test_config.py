"""Sparse TOML in, strict models inside, one line for what is wrong."""

import pytest

from tailrace.pipeline.config.loading import merge, parse_setting, read_toml, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_faults, build_spec


def test_later_layers_win_and_the_rest_stays():
    config = validate([("a", {"pipeline": {"steps": 5, "sync": "barrier"}}), ("b", {"pipeline": {"steps": 7}})])
    assert (config.pipeline.steps, config.pipeline.sync.name) == (7, "barrier")


def test_options_of_a_policy_are_laid_over_the_same_policy_only():
    base = {"relocation": {"name": "best-fit", "period_s": 5.0}}
    assert merge(base, {"relocation": {"name": "best-fit", "headroom": 0.1}})["relocation"]["period_s"] == 5.0
    assert merge(base, {"relocation": {"name": "none"}})["relocation"] == {"name": "none"}
    assert merge(base, {"relocation": {"headroom": 0.1}})["relocation"] == {**base["relocation"], "headroom": 0.1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"pipelin": {}}, r"unknown key 'pipelin'.*did you mean 'pipeline'"),
        ({"pipeline": {"stepz": 3}}, r"unknown key 'pipeline.stepz'.*did you mean 'steps'"),
        ({"pipeline": {"steps": "many"}}, r"key 'pipeline.steps': found 'many', expected: a valid integer"),
        ({"pipeline": {"steps": 0}}, r"key 'pipeline.steps': found 0, expected: greater than 0"),
        ({"deadlines": {"step_s": -1.0}}, r"key 'deadlines.step_s': found -1.0"),
        ({"executor": {"name": "slurm"}}, r"key 'executor.name': found 'slurm', expected: 'ray' or 'local'"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_key_found_and_expected(content, says):
    with pytest.raises(ConfigError, match=says) as error:
        validate([("my.toml", content)])
    assert str(error.value).startswith("my.toml: ")
    assert "\n" not in str(error.value)


def test_a_missing_file_and_broken_toml_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml: not TOML"):
        read_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.b=3", 3), ("a.b=1e-6", 1e-6), ("a.b=true", True), ("a.b=barrier", "barrier"), ('a.b=["x"]', ["x"])],
)
def test_settings_are_toml_values_or_bare_words(text, expected):
    assert parse_setting(text) == {"a": {"b": expected}}


@pytest.mark.parametrize("text", ["steps", "=3", "a..b=1"])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pipeline": {"sync": "on-idel"}}, "on-idel.*did you mean 'on-idle'"),
        ({"pipeline": {"relocation": {"name": "best-fit", "period": 3}}}, "best-fit.*period"),
        ({"pipeline": {"relocation": {"name": "best-fit", "kv_threshold": 7.0}}}, r"kv_threshold=7\.0"),
    ],
)
def test_a_wrong_policy_is_named_with_its_key(changes, says):
    with pytest.raises(ConfigError, match=says) as error:
        build_spec(validate([("my.toml", changes)]))
    assert "key 'pipeline." in str(error.value)


def test_a_wrong_fault_is_named():
    with pytest.raises(ConfigError, match="key 'faults'"):
        build_faults(RunConfig(faults=("replica at noon",)))


def test_the_resolved_configuration_reads_back():
    config = validate(
        [("a", {"pipeline": {"relocation": {"name": "best-fit", "period_s": 2.0}}, "faults": ["replica@5s"]})]
    )
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
