"""A point of an evaluation: a system's table with what varies laid over it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.facts import facts_of


class Toml(str):
    """A setting's value as TOML, taken as it stands."""

    __slots__ = ()


Setting = tuple[str, bool | int | float | str | tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation.

    Args:
        package: the paper's, whose folder ``systems`` holds the tables.
        system: the name of a table.
        settings: dotted keys with their values.
        probe: what is measured beside the usual (see `probes`).
    """

    package: str
    system: str
    settings: tuple[Setting, ...] = ()
    probe: str = "usual"

    def config(self) -> RunConfig:
        """What it simulates.

        Raises:
            ConfigError: a setting cannot be.
        """
        texts = [f"{key}={value if isinstance(value, Toml) else json.dumps(value)}" for key, value in self.settings]
        return configuration(str(table(self.package, self.system)), settings=texts)

    def over(self, probe: str | None = None, **settings: Any) -> Point:
        """The point with more settings; a double underscore is a dot."""
        more = tuple((key.replace("__", "."), value) for key, value in settings.items())
        return replace(self, settings=(*self.settings, *more), probe=self.probe if probe is None else probe)

    @property
    def weight(self) -> float:
        """How long it takes, roughly: batches times replicas."""
        known = dict(self.settings)
        steps, gpus, parallel = (
            known.get(key, usual)
            for key, usual in (("pipeline.steps", 12), ("fleet.rollout.gpus", 64), ("fleet.rollout.tensor_parallel", 4))
        )
        assert isinstance(steps, int)
        assert isinstance(gpus, int)
        assert isinstance(parallel, int)
        config = self.config()  # without its fleet, from which other policies may have their cost model
        sync = build_policy("sync", config.pipeline.sync, facts_of(config))
        return steps * (1_000 + gpus / parallel) * (2 if sync.mixes_versions else 1)

    def __str__(self) -> str:
        known = dict(self.settings)
        parts = [str(known[key]) for key in ("fleet.model", "fleet.trainer.gpus", "fleet.rollout.gpus") if key in known]
        return f"{self.system} ({', '.join(parts)})" if parts else self.system


def table(package: str, system: str) -> Path:
    """The file of a system's table."""
    return Path(str(resources.files(package).joinpath("systems", f"{system}.toml")))


def systems(package: str) -> list[str]:
    """Names of a paper's tables."""
    return sorted(path.stem for path in table(package, "any").parent.glob("*.toml"))
