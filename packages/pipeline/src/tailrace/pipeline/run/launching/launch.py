"""A run from end to end (prepare, train, measure the controls), and its resumption after its driver died."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.evaluations import EvaluationResult
from tailrace.faulttol import Fault
from tailrace.paramserver import new_token
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError, RunDirectoryError, RunWriteError
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.run.build import build_deployment, build_spec, check, holding, tracker_names, tracker_of
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.engine import selected_engine
from tailrace.pipeline.run.engine_abilities import applies_adapters
from tailrace.pipeline.run.eventlog import EventLog, Instant, read_log
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.pipeline.run.figures.folding import Audience, follow
from tailrace.pipeline.run.figures.log import log_figures
from tailrace.pipeline.run.figures.metrics import MetricsObserver
from tailrace.pipeline.run.figures.status import RunStatus, StatusObserver
from tailrace.pipeline.run.figures.summary import prompt_characters, summarise
from tailrace.pipeline.run.launching.attaching import check_resumed, join, make_cluster, shown_s, take_over, to_go_on
from tailrace.pipeline.run.launching.early_processes import keep_bytecode, start_ahead
from tailrace.pipeline.run.launching.free_devices import check_devices_there, check_free_devices
from tailrace.pipeline.run.launching.garbage_collection import GarbageCollection
from tailrace.pipeline.run.machines import check_interfaces, check_machines
from tailrace.pipeline.run.pools import check_labels, relay_count
from tailrace.pipeline.run.prepare import Prepared, cache_directory, prepare
from tailrace.pipeline.run.prompts.stop_tokens import stops_in_words
from tailrace.pipeline.run.ranker_setup import ranker_chosen
from tailrace.pipeline.run.replay import controller_of, replay, replayed
from tailrace.pipeline.run.scripted_faults import build_faults, further_faults
from tailrace.pipeline.trackers import TrackedRun, Trackers
from tailrace.runtime.errors import SupersededError
from tailrace.runtime.executor.deployment import DATA
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.roster import Roster
from tailrace.runtime.hosts.local import LocalHost
from tailrace.runtime.hosts.ray import RayHost
from tailrace.runtime.hosts.ray_cluster import Claim, RayCluster
from tailrace.runtime.hosts.real_time import RealTime
from tailrace.trainer import checkpoints
from tailrace.trainer.network_interfaces import interfaces
from tailrace.trainer.weights_file import weights_sha256

_log = logging.getLogger(__name__)
Listener = Callable[[RunStatus], None]
Report = Callable[[RunDirectory], object]
"""Writes what people look at."""
HURRY_S = 3.0
"""Deadline in seconds for members to close after a failed run: they may hang, and a resumed run does not need them."""


def launch(
    config: RunConfig, directory: RunDirectory, listener: Listener | None = None, *, report: Report | None = None
) -> dict[str, Any]:
    """Run to the end, from the event log if the directory has one. Returns the content of ``summary.json``.

    Args:
        config: the configuration.
        directory: the locked run directory.
        listener: called with the status after each change.
        report: called once the run is complete and its summary is written.
    """
    return _Launch(config, directory, listener, report).run()


def resume(
    directory: RunDirectory,
    listener: Listener | None = None,
    *,
    report: Report | None = None,
    config: RunConfig | None = None,
    changed: Mapping[str, Sequence[Any]] | None = None,
    faults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run whose driver died, or a finished one with more steps; see `launch`.

    Args:
        directory: the run directory.
        listener, report: see `launch`.
        config, changed: what `with_changes` returned, if the configuration is to change.
        faults: see `to_go_on`.

    Raises:
        RunDirectoryError: the run is complete, simulated, damaged, or running.
    """
    directory.lock()
    before, changed = directory.configuration(), changed or {}
    check_resumed(directory, changed)
    if config is not None and changed:  # before the summary goes: there may be no room for it
        directory.change(config.model_dump(mode="json"), changed)
    directory.summary.unlink(missing_ok=True)
    return launch(to_go_on(config or before, directory, faults), directory, listener, report=report)


def attach(
    directory: RunDirectory,
    listener: Listener | None = None,
    *,
    report: Report | None = None,
    faults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Take the place of a run's controller that died, while its members live on; see `launch`.

    Args:
        directory: the run directory.
        listener, report: see `launch`.
        faults: those that it had been given, see `to_go_on`; what has not struck yet still does.

    Raises:
        RunDirectoryError: the run is complete or simulated, its controller works, or none of its members lives.
    """
    cluster = take_over(directory)
    config = to_go_on(directory.configuration(), directory, faults)
    return _Launch(config, directory, listener, report, cluster).run()


class _Launch:
    """One controller of a run.

    Args:
        cluster: where the members live that another controller left; None: there are none.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        listener: Listener | None,
        report: Report | None,
        cluster: RayCluster | None = None,
    ) -> None:
        self.config, self.directory, self._report, self._cluster = config, directory, report, cluster
        self._claim: Claim | None = None
        self.status = StatusObserver(
            directory.status,
            app=config.app,
            run_dir=directory.root,
            listener=listener,
            workers=config.environment.workers,
        )
        self.marks: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        try:
            return self._run()
        except SupersededError:
            raise  # the status is another's
        except KeyboardInterrupt:
            self._ends("interrupted")
            raise
        except BaseException as error:
            self._ends("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            if self._claim is not None:
                self._claim.close()

    def _ends(self, phase: str, detail: str = "") -> None:
        """Set a phase of a run that ends early: a full disk neither hides why it does nor keeps its members from ending."""
        with suppress(RunWriteError):
            self.status.phase(phase, detail)

    def _run(self) -> dict[str, Any]:
        config, directory = self.config, self.directory
        attaches = self._cluster is not None
        if not attaches:
            check(config)
        if config.executor.name == "ray":  # from now on: one that replays a long log, or waits for Ray, is not silent
            self._claim = Claim(directory.root)
        began = directory.began_with()
        controller, faults, roster = controller_of(directory), build_faults(config), Roster()
        with ExitStack() as undone:  # if it cannot begin
            metrics = MetricsObserver(directory.metrics)
            undone.callback(metrics.close)
            # an unusable log is reported before minutes of preparation
            past = replay(controller, directory.events, roster, version=directory.version, observe=metrics.replay)
            if past is None:  # nothing was decided yet, so everything may be as it is now
                controller = Controller(build_spec(config), relays=relay_count(config))
            elif not controller.finished or config.pipeline.steps > controller.view.steps:
                self._check_checkpoints(controller)
            attaches = attaches and not controller.over  # its last steps, such as controls, are taken anew
            keep_bytecode(cache_directory())
            host = self._host(attaches=attaches)
            undone.callback(host.close)
            if isinstance(host, RayHost) and not attaches:
                if config.executor.ray_address is not None:  # one machine may stand for several sites, a cluster not
                    check_labels(config, host.sites())
                check_machines(config, host.machines)
                if config.trainer.interface and config.executor.ray_address is not None:
                    check_interfaces(config, host.on_machines(interfaces))
                check_devices_there(config, host.gpus, host.most_gpus)
                check_free_devices(config, host.gpus)
                start_ahead(host, config)
            prepared = prepare(config, directory, self._preparing)
            token = new_token() if self._cluster is None else self._cluster.token
            deployment = build_deployment(config, prepared, directory, token=token)
            for line in stops_in_words(config, prepared.model)[1:]:
                self._preparing({"phase": line})
            if not attaches:
                self.status.phase("starting roles")
            trackers, untracked = self._trackers()
            undone.callback(trackers.close, HURRY_S, finished=False)
            metrics.begin(trackers)
            host.time = RealTime(shown_s(self._cluster, past or 0.0) if attaches else past or 0.0)
            if self._cluster is not None and not attaches:
                dataclasses.replace(self._cluster, began_at=time.time() - host.time.now()).write(directory.root)
            claims = () if self._claim is None else (self._claim,)
            executor = Executor(host, deployment, observers=[metrics, self.status, GarbageCollection(), *claims])
            undone.pop_all()
        try:
            if attaches:
                self._goes_on(controller, executor, roster, past or 0.0, faults)
            else:
                first = None if past is None else self._resumed(controller, began)
                if not controller.finished or (first is not None and first.steps is not None):
                    self.status.phase("training")
                    further = further_faults(config, past or 0.0)
                    with EventLog(directory.events) as log, self._looping():
                        executor.run(controller, log, first=first, faults=faults, further=further)
            training_s = training_seconds(read_log(self.directory.events))
            self.status.settle(controller.view)
            metrics.follows = False
            controls = self._controls(prepared, controller, executor, training_s)
            self.status.phase("writing the summary")
            scripted = build_faults(began)  # a driver that goes on may be given those that had not struck
            scripted += (Counter(faults) - Counter(scripted)).elements()
            summary = self._summary(controller, controls, executor, training_s, prepared, scripted)
            summary["warnings"] = [*summary["warnings"], *untracked, *trackers.close(finished=True)]
            summary["trackers"] = trackers.places
        except BaseException as error:
            if isinstance(error, SupersededError) and isinstance(host, RayHost):
                host.leave()
                trackers.leave()
                raise
            if isinstance(error, KeyboardInterrupt):
                self._ends("stopping")
            try:
                executor.close(patience_s=HURRY_S)
            except Exception as closing:
                error.add_note(f"while closing: {closing}")
            raise
        finally:
            metrics.close()
            trackers.close(HURRY_S, finished=False)
        executor.close()
        write_json(directory.summary, summary)
        self.status.status.trained_tokens_per_s = summary["tokens_per_s"]
        if self._report is not None:
            self.status.phase("writing the report")
            self._report(directory)
        self.status.phase("done")
        return summary

    def _trackers(self) -> tuple[Trackers, list[str]]:
        """The trackers, and a line for each that cannot be used here, though it could where the run began."""
        chosen, untracked = {}, []
        for name in tracker_names(self.config):
            try:
                chosen[name] = tracker_of(self.config, name)
            except ConfigError as error:
                untracked.append(f"tracker {name} gets nothing: {error}")
                _log.warning("%s", untracked[-1])
        about = TrackedRun(self.directory.root, self.config.model_dump(mode="json"))
        return Trackers(chosen, about, self.config.tracking.patience_s), untracked

    def _host(self, *, attaches: bool) -> LocalHost | RayHost:
        """The host: with members that outlive this controller, or those that one before it left; on Ray."""
        if self.config.executor.name != "ray":
            return LocalHost()
        left = None
        if not attaches or self._cluster is None:
            self.status.phase("starting Ray")
            left = RayCluster.read(self.directory.root)
            self._cluster = make_cluster(self.config, self.directory)
        return join(self._cluster, self.directory, left)

    def _goes_on(
        self, controller: Controller, executor: Executor, roster: Roster, past: float, faults: Sequence[Fault]
    ) -> None:
        """Take the place of a controller that died, and strike members with the faults that it had not come to."""
        self.status.phase("training")
        struck = FaultFold()
        follow(read_log(self.directory.events), Audience(struck))
        left = struck.left(faults)
        first = c.Attached(executor.host.epoch, max(0.0, executor.now() - past))
        further = further_faults(self.config, executor.now())
        with EventLog(self.directory.events) as log, self._looping():
            executor.run(controller, log, first=first, faults=left, further=further, attached=roster)

    def _looping(self) -> AbstractContextManager[None]:
        """The time in which the executor runs: a controller whose loop stands still claims the run no longer."""
        return nullcontext() if self._claim is None else self._claim.looping()

    def _check_checkpoints(self, controller: Controller) -> None:
        """Check that the trainer can go on, before members are started for minutes.

        Raises:
            RunDirectoryError: no checkpoint is there that it could go on from.
        """
        root = self.directory.checkpoints
        there = checkpoints(root, full=True)
        if not controller.trainer.usable(tuple(there)):
            half = ", ".join(sorted(path.name for path in root.glob(".*.partial")))
            weights = ", ".join(map(str, sorted(checkpoints(root).keys() - there.keys())))
            found = f"only half-written ones ({half})" if half and not there else ", ".join(map(str, there)) or "none"
            if weights:
                found += f" with full state, and weights alone of {weights}"
            wanted = " or ".join(map(str, controller.trainer.fallbacks))
            raise RunDirectoryError(
                f"{root}: found {found}, expected the checkpoint of version {wanted} to go on from; start a new run"
            )

    def _resumed(self, controller: Controller, began: RunConfig) -> c.Resumed:
        """The first event of a resumed run, with what the controller does not know of the configuration yet."""
        steps, replicas = self.config.pipeline.steps, self.config.rollout.replicas
        return c.Resumed(
            tuple(checkpoints(self.directory.checkpoints, full=True)),
            steps=None if steps == controller.view.steps else steps,
            replicas=None if replicas == (controller.provisioning.wanted or began.rollout.replicas) else replicas,
        )

    def _preparing(self, row: Mapping[str, Any]) -> None:
        detail = str(row.get("detail", ""))
        if "step" in row:
            of = f" of {row['steps']}" if "steps" in row else ""
            detail = f"step {row['step']}{of}, loss {row['loss']:.3f}"
        done = row["step"] / row["steps"] if "steps" in row else None
        self.status.phase(str(row["phase"]), detail, left_s=row.get("seconds_left"), progress=done)

    def _controls(
        self, prepared: Prepared, controller: Controller, executor: Executor, training_s: float
    ) -> Sequence[EvaluationResult]:
        """Continue fine-tuning from the warm start for as long as RL took, and evaluate the model in the same way.

        If a run is resumed here, it starts the roles and begins the controls again.
        """
        if prepared.demonstrations is None or not self.config.evaluation.controls:
            return ()
        self.status.phase("control: fine-tuning continued", left_s=training_s)
        directory = self.directory.root / "controls" / "sft"
        work = in_thread(lambda: self._continue_sft(prepared, directory, training_s))
        executor.keep_up(work, training_s + 600.0)
        work.result()
        self.status.phase("control: evaluation")
        executor.deployment = holding(executor.deployment, directory)
        control = Controller(
            build_spec(self.config, controls=True),
            relays=relay_count(self.config),
            first_version=controller.view.last_version + 1,
        )
        self.directory.control_events.unlink(missing_ok=True)
        with EventLog(self.directory.control_events) as log, self._looping():
            executor.run(control, log)
        return control.view.evaluations

    def _continue_sft(self, prepared: Prepared, directory: Path, seconds: float) -> None:
        from tailrace.trainer.warmstart import WarmStartConfig, continue_sft

        assert prepared.demonstrations is not None
        warm = self.config.warm_start
        pairs = [(prompt, response) for prompt, response in json.loads(prepared.demonstrations.read_text())]
        continue_sft(
            prepared.model,
            directory,
            examples=pairs,
            seconds=seconds,
            lr=warm.lr * warm.continued_lr_share,
            config=WarmStartConfig(
                steps=warm.steps, batch=warm.batch, processes=warm.processes, seed=self.config.seed + 1, **warm.options
            ),
            progress=lambda row: self._preparing({"phase": "control: fine-tuning continued", **row}),
        )

    def _summary(
        self,
        controller: Controller,
        controls: Sequence[EvaluationResult],
        executor: Executor,
        training_s: float,
        prepared: Prepared,
        faults: Sequence[Fault],
    ) -> dict[str, Any]:
        if not executor.members:  # the run had ended before this driver started
            executor.membership.start(c.Start(0, DATA, "0"))
        # all that was trained on since the oldest checkpoint may have to be written
        data = DATA_DOOR.open(executor.host.caller(DATA), self.config.deadlines.save_s)
        data.export(self.directory.trained)
        again = controller_of(self.directory)
        return summarise(
            self.config,
            controller.view,
            controls,
            audit=data.audit(),
            lengths=data.trained_lengths(),
            wall_s=self.status.status.wall_s,
            training_s=training_s,
            prompt_characters=prompt_characters(controller.view, data.prompt_texts),
            extra={
                "changes": self.directory.changes(),
                "weights_sha256": weights_sha256(self.directory.checkpoints / str(controller.view.version)),
                "warm_start_s": prepared.warm_start_s,
                "warm_start_cached": prepared.warm_start_cached,
                "prompt_rows": prepared.counts,
                **log_figures(
                    replayed(again, self.directory.events),
                    again.view,
                    trainer_devices=self.config.trainer.processes,
                    faults=faults,
                ),
                "task_restarts": controller.view.task_restarts,
                "lent_machines": controller.view.lent_machines,
                **ranker_chosen(self.directory.root / "ranker"),
                **self._adapter(),
            },
        )

    def _adapter(self) -> dict[str, Any]:
        """How replicas served the adapter, if the run trained one."""
        if not self.config.trainer.adapter.rank:
            return {}
        return {"adapter": "applied" if applies_adapters(self.config, selected_engine(self.config)) else "merged"}


def in_thread(work: Callable[[], None]) -> Future[None]:
    """Do work in a thread. Returns what comes of it."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="control", daemon=True).start()
    return future


def training_seconds(log: Iterable[Instant]) -> float:
    """Seconds from the first version that replicas could pull to the last step; 0 if there was none."""
    first = last = None
    for instant in log:
        for event in instant.events:
            if isinstance(event, c.Published) and first is None:
                first = instant.now
            elif isinstance(event, c.Stepped):
                last = instant.now
    return last - first if first is not None and last is not None else 0.0
