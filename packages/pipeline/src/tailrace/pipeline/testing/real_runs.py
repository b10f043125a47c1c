"""Real runs on a host under test: begun, checked, struck at an event, and gone on with after their driver died."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.view import RunView
from tailrace.faulttol import FaultKind, RoleAware, parse_fault
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.replay import replay
from tailrace.pipeline.testing.small_run import LOG, check_run, events_of, make_deployment, make_files, make_spec
from tailrace.runtime.executor.deployment import RANKER, TRAINER, Deployment
from tailrace.runtime.executor.executor import Executor, Observer
from tailrace.runtime.executor.roster import Roster
from tailrace.runtime.executor.seam import Host


def notices_soon(spec: PipelineSpec) -> PipelineSpec:
    """A pipeline that takes a silent member for down after 6 s."""
    return replace(spec, detection=RoleAware(silent_s=6.0))


class RealRuns:
    """What contract suites of hosts share: a subclass provides `make_host`."""

    def make_host(self, started_s: float) -> Host:
        """A host of the type under test.

        Args:
            started_s: time now on its clock, in seconds.
        """
        raise AssertionError(f"a subclass provides the host whose clock shows {started_s} s")

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The model and task files that all tests share."""
        return make_files(tmp_path_factory.mktemp("files"))

    def run(
        self,
        root: Path,
        model: Path,
        *,
        faults: Sequence[str] = (),
        relays: int = 1,
        ranks: int = 1,
        spec: PipelineSpec | None = None,
        observer: Observer | None = None,
        changed: Callable[[Deployment], Deployment] = lambda deployment: deployment,
    ) -> RunView:
        """Do one run and check it.

        Args:
            changed: changes how roles are started.
        """
        spec = spec or make_spec()
        if any(text.startswith("hang") for text in faults):
            spec = notices_soon(spec)
        controller = Controller(spec, relays=relays)
        deployment = make_deployment(
            root, model, mixed_versions=controller.view.mixes_versions, ranks=ranks, cells=spec.cells
        )
        executor = self._executor(0.0, changed(deployment), observer)
        try:
            with EventLog(root / LOG) as log:
                executor.run(controller, log, faults=[parse_fault(text) for text in faults])
            check_run(controller, executor, root)
        finally:
            executor.close()
        return controller.view

    def downs(self, root: Path) -> list[tuple[str, str]]:
        """The members that went down, in order."""
        return [(event.role, str(event.cause)) for event in events_of(root, c.Down)]

    # ---- drivers that die ---------------------------------------------------------------------------------------------

    def dies(self, spec: PipelineSpec, deployment: Deployment, root: Path, observer: Observer) -> Controller:
        """Begin a run, or go on with it, until an observer raises `Dies`. Returns the controller as the driver left it."""
        controller, last_s = self.rebuilt(spec, root)
        executor = self._executor(last_s, deployment, observer)
        with EventLog(root / LOG) as log, pytest.raises(Dies):
            executor.run(controller, log, first=self._resumed(controller, root))
        executor.host.close()
        return controller

    def rebuilt(self, spec: PipelineSpec, root: Path) -> tuple[Controller, float]:
        """The controller that the log gives, and the time on its clock; both new if there is no log."""
        controller = Controller(spec)
        return controller, replay(controller, root / LOG) or 0.0

    def goes_on(self, spec: PipelineSpec, deployment: Deployment, root: Path) -> Controller:
        """Go on with a run to its end and check it."""
        controller, last_s = self.rebuilt(spec, root)
        assert not controller.over or controller.view.failure is not None
        executor = self._executor(last_s, deployment, None)
        try:
            with EventLog(root / LOG) as log:
                executor.run(controller, log, first=self._resumed(controller, root))
            check_run(controller, executor, root)
        finally:
            executor.close()
        return controller

    def is_replaced(
        self, spec: PipelineSpec, deployment: Deployment, root: Path, deaths: Sequence[Observer]
    ) -> Controller:
        """Do one run and check it; at each death another controller attaches to the members, which live on."""
        host, controller, roster, first = self.make_host(0.0), Controller(spec), None, None
        executor = Executor(host, deployment)
        try:
            for observer in (*deaths, None):
                executor = Executor(host, deployment, observers=[] if observer is None else [observer])
                try:
                    with EventLog(root / LOG) as log:
                        executor.run(controller, log, first=first, attached=roster)
                except Dies:
                    host.epoch += 1
                    controller, roster, first = Controller(spec), Roster(), c.Attached(host.epoch)
                    replay(controller, root / LOG, roster)
            check_run(controller, executor, root)
        finally:
            executor.close()
        return controller

    def _executor(self, started_s: float, deployment: Deployment, observer: Observer | None) -> Executor:
        executor = Executor(self.make_host(started_s), deployment, observers=[observer] if observer else [])
        if isinstance(observer, Striking):
            observer.executor = executor
        return executor

    def _resumed(self, controller: Controller, root: Path) -> c.Resumed | None:
        from tailrace.trainer import checkpoints

        return c.Resumed(tuple(checkpoints(root / "checkpoints", full=True))) if controller.started else None


def rarely(value: object) -> Any:
    """A value of a contract's parameter that runs with ``--deep`` only: another one stands for it."""
    return pytest.param(value, marks=pytest.mark.deep)


# Observers that strike a run at an event: the contract suites of hosts use them.


class Dies(Exception):  # noqa: N818 - it stands for the driver's death
    """Raised to end the driver, as if it died."""


class Striking(Observer):
    """An observer that may strike members of the run: whoever runs it sets `executor`."""

    executor: Executor | None = None

    def strike(self, role: str, name: str) -> None:
        """Kill a member."""
        assert self.executor is not None
        self.executor.members[role, name].member.strike(FaultKind.KILL)

    def tick(self, now: float, executor: Executor) -> None:
        """Does nothing."""


class Watching(Striking):
    """An observer that acts once, at the first event of a kind; if `version` is not None, at an event of that version."""

    def __init__(self, kind: type, version: int | None) -> None:
        self._kind, self._version = kind, version
        self._done = False

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, commands, run
        versions = [getattr(event, "version", None) for event in events if type(event) is self._kind]
        if not self._done and (self._version in versions if self._version is not None else versions):
            self._done = True
            self.act()

    def act(self) -> None:
        """End the driver."""
        raise Dies


class Damages(Watching):
    """Damages the newest checkpoint once it is durable, and kills the trainer."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(c.Durable, int(checkpoint.name))
        self.checkpoint = checkpoint

    def act(self) -> None:
        largest = max((file for file in self.checkpoint.rglob("*") if file.is_file()), key=lambda f: f.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 0xFF
        largest.write_bytes(content)
        self.strike(TRAINER, "0")


class Kills(Striking):
    """Kills a rank of the trainer while a batch is streamed: some of its gradients were added, and its `Step` was not given.

    Groups that are complete together go out together, with their `Step`. Therefore the first batch after `version` of which
    one group came late is used: `killed` is its version, None until then.
    """

    def __init__(self, rank: str, version: int) -> None:
        self._rank, self._version = rank, version
        self._steps: set[int] = set()
        self.killed: int | None = None

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, run
        self._steps.update(command.version for command in commands if isinstance(command, c.Step))
        added = {event.version for event in events if isinstance(event, c.Accumulated)} - self._steps
        if self.killed is None and added and min(added) >= self._version:
            self.killed = min(added)
            self.strike(TRAINER, self._rank)


class KillsTheRanker(Striking):
    """Kills the ranker as soon as it says that it has learned, once; `killed` says whether it did."""

    killed = False

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, commands, run
        if not self.killed and any(isinstance(event, c.Activity) and event.role == RANKER for event in events):
            self.killed = True
            self.strike(RANKER, "0")
