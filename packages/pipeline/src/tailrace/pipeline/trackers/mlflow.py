"""Tracker ``mlflow``: a server of MLflow, or whatever its tracking address names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tailrace.contracts import need_extra
from tailrace.pipeline.trackers.tracker import TrackedRun

_ADDRESS = "MLFLOW_TRACKING_URI"
_ID_TAG = "tailrace.run"
_PARAMETERS_AT_ONCE, _PARAMETER_LENGTH = 100, 500  # limits of its interface


@dataclass(frozen=True)
class MLflow:
    """A run of MLflow. A run that is resumed goes on: it is found by its tag ``tailrace.run``.

    Args:
        address: MLflow's tracking URI; none: that of the variable ``MLFLOW_TRACKING_URI``.
        experiment: its experiment, which is made if it is not there.
    """

    address: str | None = None
    experiment: str = "tailrace"
    apart: ClassVar[bool] = True

    def check(self) -> None:
        """See `TrackerPlugin`.

        Raises:
            ValueError: it has no address.
        """
        need_extra("tailrace-pipeline", "mlflow", "mlflow")
        if not (self.address or os.environ.get(_ADDRESS)):
            raise ValueError(f"found no address of MLflow, expected the option 'address' or the variable {_ADDRESS}")

    def open(self, run: TrackedRun) -> _Run:
        """See `TrackerPlugin`."""
        return _Run(self, run)


class _Run:
    def __init__(self, options: MLflow, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own 7 take minutes
        from mlflow import MlflowClient
        from mlflow.entities import Param

        address = options.address or os.environ[_ADDRESS]
        self._client: Any = MlflowClient(address)
        known = self._client.get_experiment_by_name(options.experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(options.experiment)
        there = self._client.search_runs([experiment], f"tags.`{_ID_TAG}` = '{run.id}'", max_results=1)
        if there:
            self._id = there[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            made = self._client.create_run(experiment, tags={_ID_TAG: run.id}, run_name=run.name)
            self._id = made.info.run_id
            settings = [Param(name, text[:_PARAMETER_LENGTH]) for name, text in _flat("", run.config)]
            for start in range(0, len(settings), _PARAMETERS_AT_ONCE):
                self._client.log_batch(self._id, params=settings[start : start + _PARAMETERS_AT_ONCE])
        self.place = f"{address.rstrip('/')}/#/experiments/{experiment}/runs/{self._id}"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in figures.items()])

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "FAILED")


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """A configuration as one text for each of its keys, ``trainer.options.lr``."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), part)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)
