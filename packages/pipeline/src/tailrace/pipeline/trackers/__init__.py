"""Where a run's metrics go besides ``metrics.jsonl``: experiment trackers, behind the entry-point group ``tailrace.tracker``.

    MetricsObserver ── rows ──► Trackers ── a queue and a thread for each ──► TensorBoard, in this process
                                                                         └──► wandb, Trackio, MLflow, Prometheus, apart

A tracker that fails, stands still or is slower than the run loses its own rows alone: the run neither waits for it nor ends
with it, and one line says so. What one does is in a file of its name.
"""

from tailrace.pipeline.trackers.delivery import Trackers
from tailrace.pipeline.trackers.tracker import GROUP, TrackedRun, Tracker, TrackerPlugin

__all__ = ["GROUP", "TrackedRun", "Tracker", "TrackerPlugin", "Trackers"]
