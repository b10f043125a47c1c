"""How the ranker of a run is started, from table ``[ranker]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.contracts import StepPlanner, expected_one_of
from tailrace.pipeline.config.models import RankerConfig, RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.ranker import RankerSettings, saved_rankers
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.ranker_memory import fine_tuning_memory
from tailrace.ranker import DamagedRankerError, Method, Sft, configured, read_note

SFT = "sft"
"""The method that fine-tunes a language model."""


def check_ranker(config: RunConfig) -> None:
    """Check that the ranker's method is installed, that its directory holds a ranker, and that policies that need one have one.

    Raises:
        ConfigError: it is not, does not, or they have none.
    """
    if config.ranker is None:
        for axis in ("routing", "relocation"):
            chosen = getattr(config.pipeline, axis)
            policy: StepPlanner = build_policy(axis, chosen, facts_of(config))
            if policy.needs_predictions():
                raise ConfigError(
                    f"key 'pipeline.{axis}': found {chosen.name!r}, which plans with predicted lengths, in a run without a "
                    "ranker, expected a table [ranker] with it: nothing would be predicted"
                )
        return
    from tailrace.ranker import RankerError, check_saved, method_names

    table, names = config.ranker, ("auto", *method_names())
    if table.method not in names:
        raise ConfigError(f"key 'ranker.method': found {table.method!r}, {expected_one_of(table.method, names)}")
    _check_model(table)
    try:
        method = ranker_method(table)
    except RankerError as error:
        raise ConfigError(f"key 'ranker.options': {error}") from error
    if table.init is not None:
        tuned = method if isinstance(method, Sft) else Sft()
        try:
            tuned.check(table.init)
        except RankerError as error:
            raise ConfigError(f"key 'ranker.init': {error}") from error
        _check_memory(config, table.init, tuned)
    if table.path is not None:
        try:
            check_saved(table.path, init=table.init)
        except RankerError as error:
            raise ConfigError(f"key 'ranker.path': {error}") from error


def _check_model(table: RankerConfig) -> None:
    for key, given in (("init", table.init is not None), ("objective", table.objective != "auto")):
        if given and table.method not in ("auto", SFT):
            raise ConfigError(
                f"key 'ranker.{key}': found one beside the method {table.method!r}, expected {SFT!r}, or none"
            )
    if table.init is None and table.objective not in ("auto", "write"):
        raise ConfigError(
            f"key 'ranker.objective': found {table.objective!r} without a model, expected the key 'ranker.init' with it: from "
            "scratch it learns to write"
        )
    if "objective" in table.options:
        raise ConfigError("key 'ranker.options': found 'objective', expected the key 'ranker.objective'")
    if table.method == "auto" and (table.options or table.objective != "auto"):
        key = "options" if table.options else "objective"
        raise ConfigError(f"key 'ranker.{key}': found one beside the method 'auto', expected the method whose it is")


def _check_memory(config: RunConfig, init: Path, method: Sft) -> None:
    """Refuse a ranker whose fine-tuning takes more than its share of a GPU."""
    gpus = config.executor.ranker_gpus
    if not gpus:
        return
    needed = fine_tuning_memory(init, method, gpu=True)
    limit = config.executor.gpu_memory_gb * min(gpus, 1.0) * 1e9
    if needed is not None and needed.peak > limit:
        raise ConfigError(
            f"keys 'ranker.init' and 'executor.ranker_gpus': found {needed}, expected at most the {limit / 1e9:.0f} GB of its "
            "part of a GPU: one objective, lora_rank above 0, activation_checkpointing = 'on', or fewer batch_tokens"
        )


def ranker_method(table: RankerConfig) -> Method | str:
    """The method with its options; the word ``"auto"`` for itself.

    Raises:
        RankerOptionError: it has no such option, or a value is outside its range.
    """
    if table.method == "auto":
        return table.method
    chosen = {"objective": table.objective} if table.method == SFT else {}
    return configured(table.method, {**chosen, **table.options})


def ranker_chosen(directory: Path) -> dict[str, Any]:
    """What the ranker of a run is in the end, as fields of a summary.

    Args:
        directory: of what it learned; the newest that was saved whole counts.
    """
    for number in saved_rankers(directory):
        try:
            found = read_note(directory / str(number))
        except DamagedRankerError:  # it was killed while it saved
            continue
        return {"ranker_method": found.method, "ranker_objective": found.objective}
    return {"ranker_method": None, "ranker_objective": None}


def ranker_settings(config: RunConfig, model: Path, saved: Path) -> RankerSettings:
    """The settings of the ranker.

    Args:
        model: directory of the model that the run begins with.
        saved: directory of what the ranker learns in the run.
    """
    assert config.ranker is not None
    table = config.ranker
    return RankerSettings(
        saved=saved,
        path=None if table.path is None else table.path.absolute(),
        method=ranker_method(table),
        init=None if table.init is None else table.init.absolute(),
        prompts=table.prompts,
        samples=config.pipeline.samples_per_prompt,
        look_s=table.look_s,
        budget_s=table.budget_s,
        policy=model.absolute(),
        seed=config.seed,
    )
