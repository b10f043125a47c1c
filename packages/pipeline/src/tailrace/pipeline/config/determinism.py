"""`pipeline.deterministic`: two runs of a seed end on the same bits. It sets what that takes, and refuses what breaks it.

    noise      batching plain, seeded: it follows from the seed, the prompt's place in the stream and the sample
    order      sampler in-order, training full-batch: a batch is trained on whole, in the order of its launch
    placement  mode sync, routing round-robin, relocation none: groups start together, each on the replica of its turn
    versions   publish.fence: none is served that the trainer could lose
    threads    trainer.options.threads and rollout.options.threads = 1: sums of floating-point numbers keep their order
    shares     prompts_per_replica and max_num_seqs: a replica takes its share of a batch at once

It sets them where it stands among the layers of a configuration: what lies below, such as the app's own choice, gives way; a
key beside it or above that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailrace.pipeline.config.models import PipelineConfig, RolloutConfig
from tailrace.pipeline.errors import config_error

Layer = tuple[str, Mapping[str, Any]]

_KEYS: Mapping[tuple[str, ...], Any] = {
    ("pipeline", "mode"): "sync",
    ("pipeline", "admission"): "on-policy",
    ("pipeline", "batching"): {"name": "plain", "seeded": True, "filter_equal_rewards": False},
    ("pipeline", "routing"): "round-robin",
    ("pipeline", "sync"): "when-drained",
    ("pipeline", "relocation"): "none",
    ("pipeline", "training"): "full-batch",
    ("pipeline", "provisioning"): {"name": "hybrid", "yields_at": 1.0},
    ("pipeline", "sampler"): "in-order",
    ("pipeline", "eviction"): None,
    ("pipeline", "buffer_prompts"): None,
    ("trainer", "colocated"): True,
    ("trainer", "options", "threads"): 1,
    ("rollout", "options", "threads"): 1,
    ("publish", "fence"): True,
    ("checkpoint", "every"): 1,
    ("checkpoint", "full_every"): 1,
}
_SWITCH = ("pipeline", "deterministic")
_SHARE, _RUNNING = ("pipeline", "prompts_per_replica"), ("rollout", "options", "max_num_seqs")


def with_determinism(
    layers: Sequence[Layer], merge: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
) -> Sequence[Layer]:
    """The layers with one more that sets the keys, right above the one that has the switch on. Without it, the layers.

    Args:
        layers: (source, content) of each; later ones override earlier ones.
        merge: lays one content over another.

    Raises:
        ConfigError: a key says otherwise beside the switch or above it; a line for each.
    """
    said = [index for index, (_, content) in enumerate(layers) if found(content, _SWITCH) is not None]
    if not said or found(layers[said[-1]][1], _SWITCH) is not True:
        return layers
    place = next(
        index for index in said if all(found(layers[later][1], _SWITCH) is True for later in said if later >= index)
    )
    merged: dict[str, Any] = {}
    for _, content in layers:
        merged = merge(merged, content)
    keys = {**_KEYS, **_shares(merged)}
    faults = []
    for source, content in layers[place:]:
        for path, value in keys.items():
            given = found(content, path)
            if given is not None and not _agrees(path, given, value):
                faults.append(
                    f"{source}: keys 'pipeline.deterministic' and '{'.'.join(path)}': found true and {_shown(given)}, expected "
                    f"{_shown(value)}{' at least' if path in (_SHARE, _RUNNING) else ''}, which the first sets by itself"
                )
    if faults:
        raise config_error(faults)
    own: dict[str, Any] = {}
    for path, value in keys.items():
        for part in reversed(path):
            value = {part: value}
        own = merge(own, value)
    return [*layers[: place + 1], ("pipeline.deterministic", own), *layers[place + 1 :]]


def found(content: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value of a key in nested tables; None where there is none."""
    value: Any = content
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _shares(merged: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    """The least with which a replica takes its share of a batch at once; nothing where a number is wrong, which others say."""
    pipeline, rollout = PipelineConfig.model_fields, RolloutConfig.model_fields
    numbers = [
        found(merged, path) or default
        for path, default in (
            (("pipeline", "prompts_per_step"), pipeline["prompts_per_step"].default),
            (("pipeline", "samples_per_prompt"), pipeline["samples_per_prompt"].default),
            (("rollout", "replicas"), rollout["replicas"].default),
        )
    ]
    if any(type(number) is not int or number < 1 for number in numbers):
        return {}
    prompts, samples, replicas = numbers
    share = -(-prompts // replicas)
    return {_SHARE: share, _RUNNING: share * samples}


def _agrees(path: tuple[str, ...], given: Any, value: Any) -> bool:
    if path in (_SHARE, _RUNNING):
        return type(given) is not int or given >= value  # another type is refused by its own check
    if isinstance(value, Mapping):
        options = {"name": given} if isinstance(given, str) else given
        return not isinstance(options, Mapping) or all(options.get(name, each) == each for name, each in value.items())
    if isinstance(given, Mapping):
        given = given.get("name", value)
    return bool(given == value)


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
