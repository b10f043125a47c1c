"""How the ranker of a run is started, from table ``[ranker]``."""

from __future__ import annotations

from pathlib import Path

from tailrace.contracts import StepPlanner, expected_one_of
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.ranker import RankerSettings
from tailrace.pipeline.run.facts import facts_of


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
    from tailrace.ranker import LengthRanker, RankerError, method_names

    names = ("auto", *method_names())
    if config.ranker.method not in names:
        raise ConfigError(
            f"key 'ranker.method': found {config.ranker.method!r}, {expected_one_of(config.ranker.method, names)}"
        )
    if config.ranker.path is not None:
        try:
            LengthRanker.load(config.ranker.path)
        except RankerError as error:
            raise ConfigError(f"key 'ranker.path': {error}") from error


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
        method=table.method,
        prompts=table.prompts,
        samples=config.pipeline.samples_per_prompt,
        look_s=table.look_s,
        budget_s=table.budget_s,
        policy=model.absolute(),
        seed=config.seed,
    )
