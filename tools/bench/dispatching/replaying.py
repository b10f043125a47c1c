"""Two real replicas, each an engine in a process of its own, that replay recorded lengths: no token ends a response early.

Fleet.run(feed) ──positions──► process: engine ──steps──► positions that ended, when, after how many steps
        ▲                                                        │
        └── whoever has a place free takes the next ◄────────────┘
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from dispatching.feeding import Feed, next_placements

_START_S, _STILL_S, _END_S = 900.0, 120.0, 10.0


@dataclass(frozen=True, slots=True)
class Replay:
    """One batch on the fleet.

    Args:
        makespan_s: seconds until the last trajectory ended.
        steps: of the engine that made most: what the machine's other work does not change.
    """

    makespan_s: float
    steps: int


class Fleet:
    """Replicas that are started once and run many batches.

    Args:
        model: directory of the policy.
        replicas: number of them.
        places: most trajectories that one runs.
        engine: plugin of ``tailrace.engine``.
        options: of the engine.

    Raises:
        RuntimeError: a replica does not start.
    """

    def __init__(self, model: str, replicas: int, places: int, engine: str, options: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._places = places
        self._ends: list[Connection] = []
        self._processes = []
        for _ in range(replicas):
            ours, theirs = context.Pipe()
            given = (theirs, model, engine, {**options, "max_num_seqs": places})
            process = context.Process(target=_replica, args=given, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            _heard(end, _START_S)

    def run(self, feed: Feed, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> Replay:
        """Generate a batch: as many tokens for each trajectory as it has in `lengths`."""
        held, left = [0] * len(self._ends), len(lengths)
        last, steps = [0.0] * len(held), [0] * len(held)
        began = time.monotonic()
        self._place(feed, held, prompts, lengths)
        while left:
            ready = wait(self._ends, _STILL_S)
            if not ready:
                raise TimeoutError(f"found no trajectory that ended for {_STILL_S:.0f} s with {left} left")
            for end in ready:
                at = self._ends.index(end)  # type: ignore[arg-type]
                ended, last[at], steps[at] = _heard(self._ends[at], _STILL_S)
                held[at] -= ended
                left -= ended
            self._place(feed, held, prompts, lengths)
        for end in self._ends:
            end.send(None)  # count steps anew
        return Replay(max(last) - began, max(steps))

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(_END_S)
            if process.is_alive():
                process.kill()

    def _place(self, feed: Feed, held: list[int], prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> None:
        placed = next_placements(feed, held, self._places)
        for at, end in enumerate(self._ends):
            works = [(position, prompts[position], lengths[position]) for replica, position in placed if replica == at]
            if works:
                end.send(works)
                held[at] += len(works)


def _heard(end: Connection, timeout_s: float) -> Any:
    if not end.poll(timeout_s):
        raise TimeoutError(f"found no answer of a replica within {timeout_s:.0f} s")
    try:
        return end.recv()
    except EOFError:
        raise RuntimeError("found a replica that ended, expected it to answer; its error is above") from None


def _replica(end: Connection, model: str, engine_name: str, options: Mapping[str, Any]) -> None:
    """The process of a replica: ends when the other end is closed."""
    from tailrace.contracts import Request, Sampling
    from tailrace.rollout import build_engine

    running, steps = 0, 0
    with closing(build_engine(engine_name, model, options)) as engine:
        end.send("ready")
        while True:
            while not running or end.poll():
                try:
                    works = end.recv()
                except EOFError:
                    return
                if works is None:
                    steps = 0
                    continue
                for position, prompt, tokens in works:
                    engine.submit([Request(str(position), prompt, Sampling(1.0, tokens))])
                    running += 1
            ended = sum(delta.finish is not None for delta in engine.step())
            steps += 1
            if ended:
                running -= ended
                end.send((ended, time.monotonic(), steps))
