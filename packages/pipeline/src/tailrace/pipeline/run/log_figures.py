"""The figures of a run's summary that its log gives, in one pass over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.faulttol import Fault
from tailrace.pipeline.run.attach_figures import AttachFigures
from tailrace.pipeline.run.detection_figures import DetectionFold
from tailrace.pipeline.run.effective_time import EffectiveTime, RoleDevices
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.fault_figures import FaultFold
from tailrace.pipeline.run.folding import Audience, follow
from tailrace.pipeline.run.replica_figures import ReplicaFigures
from tailrace.pipeline.run.round_figures import RoundFigures
from tailrace.pipeline.run.score_figures import ScoreFigures
from tailrace.pipeline.run.stream_figures import StreamFigures
from tailrace.pipeline.spec import PipelineSpec


def log_figures(
    log: Iterable[Instant], spec: PipelineSpec, *, trainer_devices: int, faults: Iterable[Fault]
) -> dict[str, Any]:
    """Fields of a summary.

    Args:
        log: the whole log.
        trainer_devices: devices of the trainer.
        faults: those that were scripted.
    """
    plain = ScoreFigures(), RoundFigures(spec), StreamFigures(), ReplicaFigures(), AttachFigures()
    struck, detection, effective = (
        FaultFold(),
        DetectionFold(spec.detection),
        EffectiveTime(RoleDevices.of(spec, trainer_devices)),
    )
    follow(log, *plain, Audience(struck, detection, effective))
    found: dict[str, Any] = {}
    for figures in (*plain, struck.figures(faults), effective.figures()):
        found |= figures.plain()
    return found | {"false_detections": detection.figures().false_detections}
