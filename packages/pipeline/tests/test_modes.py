"""Modes are presets of keys: what they set, what they leave free, and what contradicts them."""

import pytest

from tailrace.pipeline.config.loading import validate, with_mode
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.pools import check_pools

QUIET = {"recovery": "isolate", "relocation": "none", "sync": "when-drained"}


def resolved(mode, pipeline=(), **tables):
    content = {"app": "laminar", "pipeline": {"mode": mode, **QUIET, **dict(pipeline)}, **tables}
    return validate([("a test", content)])


@pytest.mark.parametrize(
    ("mode", "admission", "provisioning", "colocated"),
    [
        ("sync", "on-policy", ("hybrid", {"yields_at": 1.0}), True),
        ("semi-sync", "one-step", ("hybrid", {"yields_at": 0.5}), True),
        ("async", "one-step", ("static", {}), False),
    ],
)
def test_a_mode_sets_its_keys_and_its_result_reads_back(mode, admission, provisioning, colocated):
    config = resolved(mode)
    found = config.pipeline.provisioning
    assert (config.pipeline.admission.name, (found.name, found.options)) == (admission, provisioning)
    assert config.trainer.colocated == colocated
    check_pools(config)
    assert build_spec(config).colocated == colocated
    assert validate([("config.json", config.model_dump(mode="json"))]) == config


def test_semi_sync_halves_the_replicas_and_options_are_free():
    config = resolved("semi-sync", {"provisioning": {"name": "hybrid", "yields_at": 0.75}}, rollout={"replicas": 5})
    assert [(pool.name, pool.count, pool.hybrid) for pool in config.rollout.pools] == [
        ("hybrid", 2, True),
        ("standalone", 3, False),
    ]
    assert build_spec(config).provisioning.yields_at == 0.75


@pytest.mark.parametrize(
    ("mode", "content", "says"),
    [
        ("sync", {"pipeline": {"admission": "one-step"}}, "found 'sync' and 'one-step', expected 'on-policy'"),
        (
            "async",
            {"pipeline": {"provisioning": {"name": "hybrid"}}},
            "'pipeline.provisioning': found 'async' and 'hybrid'",
        ),
        (
            "semi-sync",
            {"trainer": {"colocated": False}},
            "'trainer.colocated': found 'semi-sync' and false, expected true",
        ),
        ("async", {"trainer": {"colocated": True}}, "'trainer.colocated': found 'async' and true, expected false"),
        ("semi-sync", {"rollout": {"replicas": 1}}, "'rollout.replicas': found 'semi-sync' and 1, expected at least 2"),
        (
            "semi-sync",
            {"rollout": {"pools": [{"name": "a", "hybrid": True}]}},
            "1 of 1 pools with hybrid = true, expected",
        ),
        ("sync", {"rollout": {"pools": [{"name": "a"}]}}, "0 of 1 are hybrid, expected all"),
        ("async", {"rollout": {"pools": [{"name": "a", "hybrid": True}]}}, "1 of 1 are hybrid, expected none"),
    ],
)
def test_what_contradicts_a_mode_is_one_line(mode, content, says):
    pipeline = {"mode": mode, **content.get("pipeline", {})}
    with pytest.raises(ConfigError) as refused:
        with_mode({**content, "pipeline": pipeline})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content", [{}, {"pipeline": 3}, {"pipeline": {"mode": "no such"}}, {"pipeline": {"mode": "sync"}, "trainer": 1}]
)
def test_what_else_is_wrong_is_left_to_others(content):
    assert with_mode(content) == content


def hybrid_pools(*hybrid, **tables):
    pools = [{"name": f"p{place}", "hybrid": marked} for place, marked in enumerate(hybrid)]
    return resolved(None, {"admission": "one-step", **tables.pop("pipeline", {})}, rollout={"pools": pools}, **tables)


def test_pools_and_devices_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="found true and no pool with hybrid = true"):
        check_pools(hybrid_pools(False, False, trainer={"colocated": True}))
    with pytest.raises(ConfigError, match="found false and hybrid = true of 'p0'"):
        check_pools(hybrid_pools(True, False))
    with pytest.raises(ConfigError, match="expected 'on-policy', or provisioning 'hybrid'"):
        build_spec(hybrid_pools(True, False, trainer={"colocated": True}))
    with pytest.raises(ConfigError, match="whose hybrids yield their devices to the trainer, and false, expected true"):
        build_spec(hybrid_pools(False, False, pipeline={"provisioning": "hybrid"}))
    with pytest.raises(ConfigError, match="found 1 on the trainer's devices and 2"):
        build_spec(
            hybrid_pools(True, False, pipeline={"provisioning": "hybrid"}, trainer={"colocated": True, "cells": 2})
        )
    spec = build_spec(hybrid_pools(True, False, pipeline={"provisioning": "hybrid"}, trainer={"colocated": True}))
    assert [spec.stands_on_trainer(pool.name) for pool in spec.pools] == [True, False]
