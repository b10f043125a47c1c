"""What a run asks of an engine that lacks it is refused in one line before anything starts."""

from dataclasses import replace

import pytest

from tailrace.contracts import EngineAbilities, EnginePlugin
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run import engine_abilities

ALL = EngineAbilities(seeds=True, adapters=2, sleeps=(1, 2), resizes=True)
LENDS = {"name": "scale-down"}


class Plugin(EnginePlugin):
    def __init__(self, able):
        self.abilities = able

    def __call__(self, model_path, options):
        raise AssertionError("nobody builds it")


@pytest.fixture
def engines(monkeypatch):
    """The engines that are registered, by name."""
    found = {"able": Plugin(ALL), "plain": Plugin(EngineAbilities())}
    monkeypatch.setattr("tailrace.rollout.engine_selection.names", lambda _: list(found))
    monkeypatch.setattr("tailrace.rollout.engine_selection.load", lambda _, name: found[name])
    return found


def config(*, pipeline=None, rollout=None, rank=0):
    return RunConfig.model_validate(
        {
            "app": "laminar",
            "task": {"name": "chain-sum"},
            "pipeline": pipeline or {},
            "rollout": rollout or {},
            "trainer": {"adapter": {"rank": rank}},
        }
    )


def many():
    """A configuration that asks for everything."""
    return config(
        pipeline={"batching": {"name": "tail-batching"}, "provisioning": LENDS},
        rollout={"adapter": "applied", "sleep_level": 2, "options": {"tensor_parallel_size": 2}},
        rank=4,
    )


def test_all_that_an_engine_lacks_stands_in_one_line(engines):
    assert engine_abilities.check_abilities(many(), "able") is None
    with pytest.raises(ConfigError) as refused:
        engine_abilities.check_abilities(many(), "plain")
    (line,) = str(refused.value).splitlines()
    assert line == (
        "key 'rollout.engine': found 'plain', which lacks seeds, asked for by pipeline.batching = 'tail-batching', which draws "
        "the same noise twice; several devices, asked for by rollout.options.tensor_parallel_size = 2; adapters, asked for by "
        "rollout.adapter = 'applied'; sleep 2, asked for by rollout.sleep_level = 2; expected an engine that has all of them, "
        "such as 'able'"
    )


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (replace(ALL, seeds=False), "lacks seeds, asked for by pipeline.batching"),
        (replace(ALL, adapters=0), "lacks adapters, asked for by rollout.adapter"),
        (replace(ALL, sleeps=(1,)), "lacks sleep 2, asked for by rollout.sleep_level"),
        (replace(ALL, resizes=False), "lacks several devices, asked for by rollout.options"),
    ],
)
def test_each_ability_is_asked_for_alone(engines, lacks, says):
    engines["plain"].abilities = lacks
    with pytest.raises(ConfigError, match=says) as refused:
        engine_abilities.check_abilities(many(), "plain")
    assert "; expected" in str(refused.value)
    assert str(refused.value).count("asked for by") == 1
    engines["able"].abilities = lacks
    with pytest.raises(ConfigError, match=r"expected another engine or other settings$"):
        engine_abilities.check_abilities(many(), "plain")


def test_what_is_not_asked_for_is_not_needed(engines):
    assert engine_abilities.needs_of(config()) == []
    assert engine_abilities.check_abilities(config(rank=4), "plain") is None  # its replicas merge


def test_a_policy_that_resizes_needs_an_engine_that_does(engines):
    resizes = config(pipeline={"provisioning": {"name": "adaptive-tp"}})
    with pytest.raises(ConfigError, match=r"lacks several devices, asked for by pipeline.provisioning = 'adaptive-tp'"):
        engine_abilities.check_abilities(resizes, "plain")
    assert engine_abilities.check_abilities(resizes, "able") is None


@pytest.mark.parametrize("policy", ["adaptive-tp", "adaptive-tp-scale-down"])
def test_an_engine_of_one_device_leaves_the_planner_off_and_that_is_told_in_a_line(engines, policy):
    plain = config(pipeline={"provisioning": {"name": policy}}, rollout={"engine": "plain"})
    assert engine_abilities.needs_of(plain) == []
    assert engine_abilities.check_abilities(plain, "plain") is None
    (line,) = engine_abilities.start_notes(plain)
    assert line == (
        f"pipeline.provisioning = '{policy}': no replica is resized, since the engine 'plain' spans one device; vllm spans "
        "several"
    )
    assert (
        engine_abilities.start_notes(config(pipeline={"provisioning": {"name": policy}}, rollout={"engine": "able"}))
        == []
    )
    assert engine_abilities.start_notes(config(rollout={"engine": "plain"})) == []
    wide = config(pipeline={"provisioning": {"name": policy, "short": 2}}, rollout={"engine": "plain"})
    with pytest.raises(ConfigError, match="found short=2, expected one of 1: a replica spans at most 1 devices"):
        engine_abilities.needs_of(wide)


@pytest.mark.parametrize(
    ("rank", "asked", "able", "applied"),
    [
        (4, "auto", "able", True),
        (4, "auto", "plain", False),
        (4, "applied", "able", True),
        (4, "merged", "able", False),
        (0, "auto", "able", False),
    ],
)
def test_the_record_says_who_applies_an_adapter(engines, rank, asked, able, applied):
    assert engine_abilities.applies_adapters(config(rank=rank, rollout={"adapter": asked}), able) is applied


def test_an_adapter_of_layers_that_the_engine_applies_none_to_is_merged_and_said(engines):
    pytest.importorskip("peft")
    engines["some"] = Plugin(replace(ALL, adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj", "up_proj")))
    engines["all"] = Plugin(
        replace(ALL, adapter_targets=(*engines["some"].abilities.adapter_targets, "gate_proj", "down_proj"))
    )
    for engine, lacking in (("some", ["gate_proj", "down_proj"]), ("all", []), ("able", [])):
        asked = config(rank=4, rollout={"engine": engine})
        assert sorted(engine_abilities.unapplied_layers(asked, engine)) == sorted(lacking)
        assert engine_abilities.applies_adapters(asked, engine) is not bool(lacking)
        assert len(engine_abilities.start_notes(asked)) == bool(lacking)
    (note,) = engine_abilities.start_notes(config(rank=4, rollout={"engine": "some"}))
    assert "replicas merge each version of the adapter, since the engine 'some' applies none to" in note
    assert engine_abilities.start_notes(config(rank=4, rollout={"engine": "some", "adapter": "merged"})) == []


MIXES = {"sync": {"name": "interrupting"}}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pipeline": MIXES}, r"rollout.adapter'.*: found 2, 0 and 'auto', expected the rank of an adapter"),
        ({"pipeline": MIXES, "rank": 4, "rollout": {"adapter": "merged"}}, "found 2, 4 and 'merged'"),
        ({"rank": 4}, "found 2 and 'on-idle', with which nothing is in flight when a replica pulls"),
        (
            {"pipeline": MIXES, "rank": 4, "rollout": {"adapter_versions": 3}},
            "lacks 3 adapters at once, asked for by rollout.ad",
        ),
    ],
)
def test_several_versions_at_once_need_work_in_flight_and_an_engine_that_has_them(engines, settings, says):
    settings = {**settings, "rollout": {"adapter_versions": 2, **settings.get("rollout", {})}}
    with pytest.raises(ConfigError, match=says):
        engine_abilities.check_abilities(config(**settings), "able")
    assert (
        engine_abilities.check_abilities(config(pipeline=MIXES, rank=4, rollout={"adapter_versions": 2}), "able")
        is None
    )


def test_an_adapter_that_is_applied_must_be_there(engines):
    with pytest.raises(ConfigError, match=r"^keys 'rollout.adapter' and 'trainer.adapter.rank': found 'applied' and 0"):
        engine_abilities.needs_of(config(rollout={"adapter": "applied"}))


def test_replicas_sleep_where_their_devices_are_lent_and_the_engine_can(engines):
    lends = {"provisioning": LENDS}
    assert engine_abilities.sleep_level(config(), "able") == 0
    assert engine_abilities.sleep_level(config(pipeline=lends), "able") == 1
    assert engine_abilities.sleep_level(config(pipeline=lends), "plain") == 0
    assert engine_abilities.sleep_level(config(pipeline=lends, rollout={"sleep_level": 2}), "able") == 2
    with pytest.raises(ConfigError, match=r"found 2 and 'static', which lends no devices"):
        engine_abilities.needs_of(config(rollout={"sleep_level": 2}))


def test_an_engine_of_the_old_form_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr("tailrace.rollout.engine_selection.load", lambda *_: lambda model, options: None)
    with pytest.raises(
        ConfigError, match=r"^key 'rollout.engine': found a function as plugin .*EnginePlugin whose [^\n]*$"
    ):
        engine_abilities.check_abilities(config(), "transformers")
