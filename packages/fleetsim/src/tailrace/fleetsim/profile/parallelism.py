"""Measures replicas of several sizes on this machine: the offline phase of RollPacker's planner (sections 4.1 and 4.2).

prompts, model ──► for each size a process with an engine: tokens of its KV cache; seconds of prefill and of a decoding step
                   by sequences and their tokens; seconds until it was ready and until it was gone
a batch of real responses ──► lengths ──► the size that generates a round of each kind soonest ──► FILE
"""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.fleet.quantities import launched, needed
from tailrace.fleetsim.profile.fit import processor
from tailrace.fleetsim.profile.fit_costs import costs
from tailrace.fleetsim.profile.machine import toml_value
from tailrace.fleetsim.profile.run import Others, Progress, cores_here
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.parallelism import FORMAT, MeasuredSize, ParallelismProfile, Timing
from tailrace.pipeline.roles.prompts import Prompts
from tailrace.pipeline.run.build import CPU_ENVIRONMENT, build_deployment, build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.engine import abilities_of, selected_engine
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.figures.stages import at_equal_distances
from tailrace.pipeline.run.prepare import Prepared, prepare
from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError
from tailrace.processes.child import last_line
from tailrace.repack import FitError, NothingFitsError, ThroughputModel, round_sizes
from tailrace.rollout.options import CacheShape, splits_over
from tailrace.runtime.executor.deployment import DATA, REPLICA

STEPS = 8
"""Decoding steps that are timed of each batch."""
SHARES = (0.25, 0.5, 1.0)
"""Lengths that are timed, as shares of the longest."""
GROWS = 4
"""Each batch that is timed has so many times the sequences of the one before."""
MOST = 256
"""Most responses that are generated for their lengths."""
TIMING_S = 300.0
"""Deadline of one timing. The paper's take 4 s at most (section 4.1)."""
_PROGRAM = "tailrace.fleetsim.profile.sized_engine"
_LINE_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Args:
        engine: the engine's name.
        model: the model's directory.
        options: its options, but for the devices that it spans.
        prompts: tokens of prompts, one for each response that is generated for its length.
        sampling: how responses are drawn.
        longest: most tokens of a sequence.
        batch: most sequences that a replica decodes at once.
        start_s: deadline of a start.
        generate_s: deadline of the generation of all responses.
    """

    engine: str
    model: str
    options: Mapping[str, Any]
    prompts: Sequence[tuple[int, ...]]
    sampling: c.Sampling
    longest: int
    batch: int
    start_s: float
    generate_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What one size did.

    Args:
        size: its row; None if the engine cannot have it.
        lengths: response tokens; empty if none were asked for.
        why: why there is no row.
    """

    size: MeasuredSize | None
    lengths: tuple[int, ...] = ()
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SizesMeasured:
    """What was measured, and how far to believe it.

    Args:
        profile: what goes into the file.
        left_out: a line for each size that could not be measured.
        others_cores: cores that other programs used meanwhile; above about 0.1, measure again.
    """

    profile: ParallelismProfile
    left_out: Sequence[str] = ()
    others_cores: float = 0.0


def profile_parallelism(config: RunConfig, root: Path, *, progress: Progress) -> SizesMeasured:
    """Measure replicas of every size that this machine allows, and choose those that rounds begin with.

    Args:
        config: the run's configuration.
        root: a new run directory, for prompts and the model.
        progress: called with the current phase and its progress.

    Raises:
        ProfileError: no size holds the model and a whole response.
        TailraceError: the configuration is wrong.
    """
    directory = RunDirectory.create(root, config.model_dump(mode="json"))
    try:
        prepared = prepare(config, directory, lambda row: progress(str(row["phase"]), None))
        subject = subject_of(config, prepared, directory)
        rows: list[MeasuredSize] = []
        lengths: tuple[int, ...] = ()
        left_out: list[str] = []
        sizes = possible_sizes(config, prepared.model)
        others = Others(os.getpid())
        for at, tp in enumerate(sizes):
            progress(f"replica of {tp} device{'s' * (tp > 1)}", at / len(sizes))
            found = measure_size(subject, tp, generates=not lengths, look=others.look)
            if found.size is None:
                left_out.append(f"{tp} devices: {found.why}")
                continue
            rows.append(found.size)
            lengths = lengths or found.lengths
    finally:
        directory.unlock()
    return SizesMeasured(chosen(config, subject, rows, lengths, left_out), left_out, others.cores)


def possible_sizes(config: RunConfig, model: Path) -> list[int]:
    """Devices of a replica to measure: powers of two over which heads can be split, as far as replicas and machine have them.

    An engine that spans one device is measured with one.
    """
    facts = facts_of(config)
    if not abilities_of(config, selected_engine(config)).resizes:
        return [1]
    most = min(facts.replicas * facts.tp, devices_here(config))
    shape = CacheShape.read(str(model))
    powers = [2**power for power in range(most.bit_length())]
    return [size for size in powers if size <= most and splits_over(size, shape.heads, shape.kv_heads)]


def devices_here(config: RunConfig) -> int:
    """Devices of this machine on which an engine may stand: GPUs, or without any the cores that this process may use."""
    if config.executor.device != "cpu":
        import torch

        if torch.cuda.is_available():
            return int(torch.cuda.device_count())
    return cores_here()


def subject_of(config: RunConfig, prepared: Prepared, directory: RunDirectory) -> Subject:
    """What is measured of a configuration: the engine, model and prompts of its replicas."""
    deployment = build_deployment(config, prepared, directory, token="")
    replica = deployment.roles[REPLICA].settings
    facts = facts_of(config)
    count = min(facts.slots, facts.trajectories, MOST)
    prompts = Prompts(deployment.roles[DATA].settings.prompts)
    groups = -(-count // facts.samples)
    encoded = [prompts.encode(c.TrajectoryRef("", group, 0, prompt=group)) for group in range(groups)]
    spread = [tokens for tokens in encoded for _ in range(facts.samples)][:count]
    shape = CacheShape.read(str(replica.model))
    room = min(replica.options.get("max_model_len") or shape.max_len, shape.max_len)
    longest = min(room, max(map(len, encoded)) + config.rollout.max_tokens)
    sampling = replica.sampling(c.TrajectoryRef("", 0, 0))
    limit = replica.options.get("max_num_seqs") or facts.slots
    return Subject(
        engine=replica.engine,
        model=str(replica.model),
        options={name: value for name, value in replica.options.items() if name != "tensor_parallel_size"},
        prompts=spread,
        sampling=dataclasses.replace(sampling, seed=None, turns=False),
        longest=longest,
        batch=min(facts.slots, limit),
        start_s=config.deadlines.start_s,
        generate_s=config.deadlines.step_s,
    )


def measure_size(subject: Subject, tp: int, *, generates: bool, look: Callable[[], None] = lambda: None) -> Found:
    """Start an engine of one size in a process, time it, and end it.

    Args:
        subject: what is measured.
        tp: its devices.
        generates: whether it also generates the responses whose lengths count.
        look: called before its process ends, whose processor time nobody can read afterwards.
    """
    began = time.monotonic()
    options = {**subject.options, **({"tensor_parallel_size": tp} if tp > 1 else {})}
    try:
        with _process() as engine:
            opened = engine.ask("open", subject.start_s, engine=subject.engine, model=subject.model, options=options)
            start_s = time.monotonic() - began
            kv_tokens = int(opened["kv_tokens"])
            if kv_tokens and kv_tokens < subject.longest:
                return Found(
                    None, why=f"its KV cache holds {kv_tokens:,} tokens, a sequence has up to {subject.longest:,}"
                )
            lengths: tuple[int, ...] = ()
            if generates:
                drawn = dataclasses.asdict(subject.sampling)
                answer = engine.ask("generate", subject.generate_s, prompts=subject.prompts, sampling=drawn)
                lengths = tuple(sorted(max(1, length) for length in answer["lengths"]))
            timings = tuple(_timed(subject, engine, kv_tokens))
            if not timings:
                return Found(
                    None, why=f"no batch of sequences fits its KV cache of {kv_tokens:,} tokens, or none runs at once"
                )
            look()
            ending = time.monotonic()
            engine.ask("close", subject.start_s)
        end_s = time.monotonic() - ending
    except (_RefusedError, ChildEndedError, ChildTimeoutError, LineError) as error:
        return Found(None, why=str(error))
    return Found(fitted(tp, kv_tokens, timings, start_s, end_s), lengths)


def fitted(tp: int, kv_tokens: int, timings: Sequence[Timing], start_s: float, end_s: float) -> MeasuredSize:
    """The row of a size, with costs fitted to what was timed.

    Args:
        timings: sequences, tokens of each, seconds of prefill and of a decoding step.
    """
    steps = [(float(batch * length), batch, step_s) for batch, length, _, step_s in timings]
    try:
        model = ThroughputModel.fit(steps)
    except FitError:  # noise: the nearest model whose coefficients are not below 0, without a turning point
        k1, k3, k4 = costs([(kv, float(batch), 1.0) for kv, batch, _ in steps], [step_s for *_, step_s in steps])
        model = ThroughputModel(k1, 0.0, k3, k4)
    errors = sorted(abs(model.step_latency_s(kv, batch) - step_s) / step_s for kv, batch, step_s in steps)
    token_s, sequence_s = costs(
        [(float(batch * length), float(batch)) for batch, length, *_ in timings], [one[2] for one in timings]
    )
    return MeasuredSize(
        tp=tp, kv_tokens=kv_tokens, k1=model.k1, k2=model.k2, k3=model.k3, k4=model.k4,
        error=errors[len(errors) // 2] if errors else 0.0, prefill_token_s=token_s, prefill_sequence_s=sequence_s,
        start_s=start_s, end_s=end_s, timings=tuple(timings),
    )  # fmt: skip


def chosen(
    config: RunConfig,
    subject: Subject,
    rows: Sequence[MeasuredSize],
    lengths: Sequence[int],
    left_out: Sequence[str] = (),
) -> ParallelismProfile:
    """The profile of what was measured: the sizes that rounds begin with, and the seconds of a change.

    Raises:
        ProfileError: nothing was measured.
    """
    if not rows:
        raise ProfileError(f"found no size of a replica that works ({'; '.join(left_out)}), expected one")
    facts, spec = facts_of(config), build_spec(config)
    profile = ParallelismProfile(
        measured=_measured(config), engine=subject.engine, short=rows[0].tp, long=rows[0].tp,
        smallest=min(one.tp for one in rows),
        resize_s=math.fsum(one.end_s + one.start_s for one in rows) / len(rows), longest=subject.longest,
        lengths=at_equal_distances(sorted(lengths)), sizes=tuple(rows),
    )  # fmt: skip
    try:
        short, long = round_sizes(
            facts.replicas * facts.tp,
            profile.lengths,
            profile.replica_costs,
            kept=facts.prompts * needed(spec),
            launched=launched(spec),
            slots=facts.slots,
        )
    except NothingFitsError as error:
        raise ProfileError(str(error)) from error
    return profile.model_copy(update={"short": short, "long": long})


def parallelism_toml(profile: ParallelismProfile) -> str:
    """The profile as a file that `read_parallelism` reads."""
    found = profile.model_dump()
    sizes, measured = found.pop("sizes"), found.pop("measured")
    lines = [f"# {measured}", f"format = {FORMAT}", f"measured = {toml_value(measured)}"]
    lines += [f"{name} = {toml_value(value)}" for name, value in found.items() if name != "format"]
    for size in sizes:
        lines += ["", "[[sizes]]", *(f"{name} = {toml_value(value)}" for name, value in size.items())]
    return "\n".join(lines) + "\n"


def _timed(subject: Subject, engine: _Process, kv_tokens: int) -> Iterator[Timing]:
    """Time batches of several sizes and lengths, as far as the KV cache holds them."""
    tokens = list(chain.from_iterable(subject.prompts))
    batches = [GROWS**power for power in range(12) if GROWS**power < subject.batch] + [subject.batch]
    room = subject.longest - STEPS - 4  # they grow while they are timed
    lengths = sorted({max(1, int(share * room)) for share in SHARES})
    for batch in batches:
        for length in lengths:
            if kv_tokens and batch > 1 and batch * (length + 128) > kv_tokens:
                continue  # in blocks of up to 128
            asked = {"batch": batch, "length": length, "steps": STEPS, "tokens": tokens, "seed": batch * length}
            took = engine.ask("time", TIMING_S, **asked)
            if took:
                yield batch, length, took["prefill_s"], took["step_s"]


def _measured(config: RunConfig) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{config.app}, {day}, on {cores_here()} cores of {processor()}"


class _RefusedError(Exception):
    """The engine refused a request."""


class _Process:
    """The process of an engine."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def ask(self, what: str, timeout_s: float, **asked: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            ChildEndedError, ChildTimeoutError: it ended, or gave none in time.
            _RefusedError: it cannot.
        """
        self._child.send({"do": what, **asked}, timeout_s)
        answer = self._child.receive(timeout_s, _LINE_BYTES)
        if "error" in answer:
            raise _RefusedError(str(answer["error"]))
        return answer


@contextmanager
def _process() -> Iterator[_Process]:
    """A process without an engine yet. It ends with all that it started."""
    environment = {**os.environ, **CPU_ENVIRONMENT}  # a replica's
    with tempfile.TemporaryFile() as said:
        child = Child(
            [sys.executable, "-m", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, group=True,
            environment=environment,
        )  # fmt: skip
        try:
            yield _Process(child)
        except ChildEndedError as error:
            raise ChildEndedError(last_line(said) or str(error)) from error
        finally:
            child.kill()
