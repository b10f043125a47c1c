"""The search behind `tailrace plan`: splits first, then mixes of policies at the best of them, then splits around the best.

Every candidate is simulated. Short simulations sort most of them out, and the best few are simulated for longer with several
seeds: successive halving. What a short simulation gets wrong is not found again, so the rungs keep a wide margin.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tailrace.contracts import AdmissionGate, TailraceError
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import Goal, fleet_config
from tailrace.fleetsim.hardware import find_device
from tailrace.fleetsim.hardware.devices import price_per_hour
from tailrace.fleetsim.plan.space import Mix, PoolSplits, Split, devices_of, mixes, over_pools, splits
from tailrace.fleetsim.results.result import Result
from tailrace.fleetsim.run import simulate_many
from tailrace.pipeline.config.loading import merge, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.report.reason_words import duration

Objective = Literal["throughput", "cost"]
KEEP_SPLITS, KEEP_MIXES, KEEP_LAST = 3, 8, 3
CHANGES = {
    "sync": ("on-idle", "when-useful", "interrupting"),
    "routing": ("least-loaded", "marginal-throughput", "skew-aware"),
    "relocation": ("none", "best-fit", "migration"),
    "training": ("mini-batch", "dynamic-batch"),
}
ROUNDS = 2  # of changing one axis of the best found so far
OWN = "the configuration's own"
SHORT, LONGER = (5, 2), (9, 4)  # batches, and those of the warm-up
SEEDS = 3  # of the last rung
UNBOUNDED = 4  # where admission has no bound
SPLITS, OWN_POLICIES, MIXES, AROUND = "splits", "own policies", "mixes", "splits around the best"
OWN_AGAIN, CHANGED, THE_BEST = "own policies again", "one axis changed", "the best"
SEVERAL = (SPLITS, OWN_POLICIES, CHANGED)  # parts of more than one rung


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate and what simulations of it found, the median over seeds.

    Args:
        policies: its policies on the axes that differ, in words.
        settings: the layer that makes the configuration this candidate.
        staleness_max: the most that any seed saw.
        devices: number of devices by name.
        price_per_hour, cost_per_mtoken: price of all devices for an hour, and of a million trained tokens, in the user's
            currency; None without prices.
        finish_s: seconds for the goal of the search; None if nothing was trained on.
        seeds: simulations of the last rung that it reached.
    """

    split: Split
    policies: str
    settings: dict[str, Any]
    tokens_per_s: float
    staleness_mean: float
    staleness_max: int
    utilisation: dict[str, float]
    devices: dict[str, int]
    price_per_hour: float | None
    cost_per_mtoken: float | None
    finish_s: float | None
    seeds: int
    own: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Args:
        options: the options of the last rung, the best first.
        own: the configuration's own policies at their best split, if they keep the bound; in `options` too.
        simulations: how many were run.
        refused: candidates that broke the bound or could not be, with the reason, in the order they were met.
        bound: the bound on staleness that was kept.
        goal: the training of every option's `finish_s`, in words.
        expected: about how many simulations the whole search takes, as far as that is known.
        complete: whether it came to its end; one that was interrupted has the best that it had met.
    """

    options: list[Option]
    own: Option | None
    simulations: int
    refused: list[tuple[str, str]]
    bound: int
    goal: str
    expected: int = 0
    complete: bool = True


class _Ahead:
    """How much work there still is, as far as it is known: simulations of each part of the search, and their batches."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts: dict[str, tuple[int, int]] = {}
        self.done = self._batches_done = 0

    def expect(self, name: str, simulations: int, size: tuple[int, int]) -> None:
        """A later part of the search. One that is expected again is known better now."""
        self._parts[name] = (simulations, simulations * size[0])

    def begins(self, name: str, simulations: int, size: tuple[int, int], *, last: bool) -> None:
        """Note that this many simulations of a part begin, its last ones or not. All parts before it are over."""
        for before in list(self._parts)[: list(self._parts).index(name)]:
            del self._parts[before]
        self.expect(name, simulations if last else max(simulations, self._parts[name][0]), size)

    def simulated(self, name: str, size: tuple[int, int]) -> None:
        """One more is done."""
        self.done, self._batches_done = self.done + 1, self._batches_done + size[0]
        self.expect(name, self._parts[name][0] - 1, size)

    @property
    def total(self) -> int:
        """All simulations, those that are done included."""
        return self.done + sum(simulations for simulations, _ in self._parts.values())

    @property
    def left_s(self) -> float:
        """Seconds that the rest takes, at the speed so far."""
        batches = sum(batches for _, batches in self._parts.values())
        return (time.monotonic() - self._began) * batches / max(1, self._batches_done)


@dataclass(frozen=True, slots=True)
class _Candidate:
    split: Split
    policies: str
    settings: Mapping[str, Any]

    @property
    def own(self) -> bool:
        return self.policies == OWN


class _Planner:
    def __init__(
        self,
        config: RunConfig,
        gpus: int | None,
        bound: int | None,
        objective: Objective,
        processes: int | None,
        said: Callable[[str], None],
    ) -> None:
        self.content = config.model_dump(exclude_unset=False)
        self.config, self.bound, self.objective, self.processes, self.said = config, bound, objective, processes, said
        self.ahead = _Ahead()
        self.met: dict[tuple[int, int], list[Option]] = {}
        self.refused: dict[str, str] = {}
        table = fleet_config(config.fleet)
        self.goal = table.goal or Goal(steps=config.pipeline.steps)
        self.parts = max(2, config.pipeline.training.options.get("parts", 16))
        kinds = {kind.name: kind for kind in map(find_device, devices_of(table))}
        if price_per_hour(dict.fromkeys(kinds, 1), table.prices, kinds) is None and objective == "cost":
            raise FleetError(
                f"found no price of {' and '.join(kinds)}, expected one to search by cost: such as "
                f"--price {next(iter(kinds))}=2.1, or a table fleet.prices"
            )

        def worth(seconds: float, devices: Mapping[str, int]) -> float:
            price = price_per_hour(devices, table.prices, kinds) if objective == "cost" else None
            return seconds if price is None else seconds * price

        self.pools = PoolSplits(config, gpus, worth) if over_pools(table) else None
        if self.pools is None and gpus is None:
            raise FleetError(
                "found neither a number of devices nor pools of them, expected --gpus N, or tables [[fleet.rollout]]"
            )
        found = [] if self.pools is not None or gpus is None else splits(table, gpus)
        self.divided = [split for split in found if not split.colocated]
        self.together = [split for split in found if split.colocated]
        at_first = len(self.pools.best) if self.pools is not None else _most_simulated(self.divided)
        for name, count, size in (
            (SPLITS, at_first, SHORT),
            (OWN_POLICIES, at_first, SHORT),
            (MIXES, KEEP_SPLITS * sum(1 for _ in mixes(bound or 0)), SHORT),
            (AROUND, 3 * KEEP_MIXES, LONGER),
            (OWN_AGAIN, KEEP_SPLITS, LONGER),
            (CHANGED, 2 * ROUNDS * (len(CHANGES) + 2), LONGER),
            (THE_BEST, SEEDS * (KEEP_LAST + 1), LONGER),
        ):
            self.ahead.expect(name, count, size)

    def near(self, split: Split) -> Sequence[Split]:
        """A split and its neighbours."""
        if self.pools is not None:
            return self.pools.near(split)
        return _near(split, self.together if split.colocated else self.divided)

    def explore(self, name: str, mix: Mix | None) -> list[Option]:
        """One mix over the splits, or over those of pools that the stages alone find best; the best first."""
        if self.pools is None:
            return self._over_splits(name, self.divided, mix)
        return self.rung(name, [self.candidate(split, mix) for split in self.pools.best], SHORT, 1)

    def candidate(self, split: Split, mix: Mix | None) -> _Candidate:
        """A mix, or the configuration's own policies, at a split."""
        replicas, groups = split.replicas, self.config.pipeline.prompts_per_step
        if mix is None:
            even = {"pipeline": {"prompts_per_replica": max(1, round(groups / replicas))}}
            return _Candidate(split, OWN, merge(split.settings(), even))
        layer = mix.settings(groups, replicas, self.parts, collective=not split.pools)
        return _Candidate(split, str(mix), merge(split.settings(), layer))

    def changed(self, best: Option) -> list[_Candidate]:
        """What has been found with another policy on one axis, or another batch of a replica."""
        pipeline = best.settings.get("pipeline", {})
        has = {axis: pipeline.get(axis, {"name": getattr(self.config.pipeline, axis).name})["name"] for axis in CHANGES}
        changes: list[tuple[str, dict[str, Any]]] = [
            (f"{axis} {name}", {axis: {"name": name, **({"parts": self.parts} if axis == "training" else {})}})
            for axis, names in CHANGES.items()
            for name in names
            if name != has[axis] and (name != "skew-aware" or self.config.ranker is not None)
        ]
        prompts = pipeline["prompts_per_replica"]
        changes += [
            (f"{share:g} x work for a replica", {"prompts_per_replica": max(1, round(share * prompts))})
            for share in (0.5, 2)
        ]
        return [
            _Candidate(best.split, f"{best.policies}, but {what}", merge(best.settings, {"pipeline": change}))
            for what, change in changes
        ]

    def _over_splits(self, name: str, divided: Sequence[Split], mix: Mix | None) -> list[Option]:
        """One mix over the splits: a few of each tensor parallelism first, then all of the best one; the best first."""
        few = [split for split in divided if split in _few(divided, split.tensor_parallel)]
        found = self.rung(name, [self.candidate(split, mix) for split in few], SHORT, 1)
        if not found:
            return found
        same = [split for split in divided if split.tensor_parallel == found[0].split.tensor_parallel]
        rest = [self.candidate(split, mix) for split in same if split not in few]
        return sorted([*found, *self.rung(name, rest, SHORT, 1)], key=self.worth)

    def rung(self, name: str, candidates: Sequence[_Candidate], size: tuple[int, int], seeds: int) -> list[Option]:
        """Simulate candidates; those that keep the bound, the best first. They are among the `met` as soon as they are."""
        jobs, owners = [], []
        for candidate in candidates:
            config = self._configured(candidate, size)
            if config is not None:
                jobs += [(config, seed) for seed in range(seeds)]
                owners += [candidate] * seeds
        found: dict[int, list[Result]] = {}
        options: list[Option] = []
        self.ahead.begins(name, len(jobs), size, last=name not in SEVERAL)
        for done, (place, result) in enumerate(simulate_many(jobs, processes=self.processes), start=1):
            self.ahead.simulated(name, size)
            if isinstance(result, TailraceError) or result.failure is not None:
                self.refused[_name(owners[place])] = str(
                    result if isinstance(result, TailraceError) else result.failure
                )
            else:
                results = found.setdefault(id(owners[place]), [])
                results.append(result)
                if len(results) == seeds:
                    options += self._kept(owners[place], results, size)
            self.said(f"{name}: {done} of {len(jobs)}; {self._standing()}")
        order = {(candidate.split, candidate.policies): place for place, candidate in enumerate(candidates)}
        options.sort(key=lambda option: order[option.split, option.policies])  # not by which was simulated sooner
        return sorted(options, key=self.worth)

    def _kept(self, candidate: _Candidate, results: list[Result], size: tuple[int, int]) -> list[Option]:
        """What a candidate came to, if it keeps the bound."""
        option = _option(candidate, results, self.goal)
        if self.bound is not None and option.staleness_max > self.bound:
            self.refused[_name(candidate)] = f"staleness {option.staleness_max}, over the bound of {self.bound}"
            return []
        self.met.setdefault(size, []).append(option)
        return [option]

    def _standing(self) -> str:
        """How far the whole search is."""
        ahead, best = self.ahead, next(iter(self.best_met()), None)
        found = (
            "" if best is None else f"; best so far {best.tokens_per_s:,.0f} tokens/s: {best.split}, {best.policies}"
        )
        return f"{ahead.done} of about {ahead.total} in all, about {duration(ahead.left_s)} left{found}"

    def best_met(self) -> list[Option]:
        """Candidates that kept the bound, the best first: of the longest simulations, and of those the most seeds."""
        if not self.met:
            return []
        longest = self.met[max(self.met)]
        return sorted(longest, key=lambda option: (-option.seeds, self.worth(option)))

    def _configured(self, candidate: _Candidate, size: tuple[int, int]) -> RunConfig | None:
        steps, warm_up = size
        shorter = {"pipeline": {"steps": steps}, "fleet": {"warm_up": warm_up}}
        try:
            return layered(self.config, merge(dict(candidate.settings), shorter))
        except TailraceError as error:
            self.refused[_name(candidate)] = str(error)
            return None

    def result(self, options: list[Option], limit: int, *, complete: bool = True) -> Search:
        """The search, which ends with these options."""
        return Search(
            options=options,
            own=next((option for option in options if option.own), None),
            simulations=self.ahead.done,
            refused=list(self.refused.items()),
            bound=limit,
            goal=str(self.goal),
            expected=self.ahead.done if complete else self.ahead.total,
            complete=complete,
        )

    def worth(self, option: Option) -> float:
        if self.objective == "cost" and option.cost_per_mtoken is not None:
            return option.cost_per_mtoken
        return -option.tokens_per_s


def plan(
    config: RunConfig,
    *,
    gpus: int | None = None,
    bound: int | None = None,
    objective: Objective = "throughput",
    processes: int | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> Search:
    """Search splits of the devices and mixes of policies.

    Args:
        config: a configuration with a table ``[fleet]`` (model, devices, workload); its own policies are a candidate too.
        gpus: devices in all; where the configuration has pools or sites, at most so many, and None for all of them.
        bound: no trajectory may be trained on at a staleness above it; None for the configuration's own admission bound,
            or 4 if that has none (the most that Laminar observed).
        objective: the most trained tokens per second, or the least cost for each.
        processes: simulations at once.
        said: hears how far the search is: its part, simulations and time left of the whole, and the best so far.

    Returns:
        What was found. Ctrl-C ends the search, and what it had met by then is returned.

    Raises:
        FleetError: nothing is possible with these devices, or nothing keeps the bound.
        KeyboardInterrupt: the search was interrupted before it had met anything.
    """
    limit = own_bound(config) if bound is None else bound
    planner = _Planner(config, gpus, limit, objective, processes, said)
    try:
        final = _search(planner, limit)
    except KeyboardInterrupt:
        options = _several(planner.best_met(), KEEP_LAST + 1)
        if not options:
            raise
        return planner.result(options, limit, complete=False)
    if not final:
        raise FleetError(
            f"nothing works on {gpus or 'these'} GPUs with a staleness of at most {limit}: {_reasons(planner.refused)}"
        )
    return planner.result(final, limit)


def own_bound(config: RunConfig) -> int:
    """The bound on staleness of a configuration: what its admission guarantees, or else caps; 4 if that is nothing."""
    pipeline = config.pipeline
    gate: AdmissionGate = build_policy("admission", pipeline.admission).gate(pipeline.prompts_per_step)
    bounds = (gate.bound, pipeline.admission.options.get("bound"))
    return next((bound for bound in bounds if bound is not None), UNBOUNDED)


def _search(planner: _Planner, limit: int) -> list[Option]:
    """The rungs of the search; the options of the last one, the best first."""
    known = {str(mix): mix for mix in mixes(limit)}
    reference = next(mix for mix in known.values() if mix.sync == "on-idle" and mix.relocation == "best-fit")
    first = planner.explore(SPLITS, reference)
    own = planner.explore(OWN_POLICIES, None)
    best = [option.split for option in first[:KEEP_SPLITS]]
    candidates = [
        planner.candidate(split, mix)
        for mix in known.values()
        for split in (planner.together if mix.guaranteed == 0 and planner.together else best)
    ]
    mixed = planner.rung(MIXES, candidates, SHORT, 1)
    kept = _several(mixed, KEEP_MIXES)
    around = [
        planner.candidate(split, known[option.policies]) for option in kept for split in planner.near(option.split)
    ]
    refined = planner.rung(AROUND, around, LONGER, 1)
    own = planner.rung(OWN_AGAIN, [planner.candidate(option.split, None) for option in own[:3]], LONGER, 1)
    found = sorted([*refined, *own], key=planner.worth)
    for _ in range(ROUNDS):
        changed = [each for start in _several(found, 2) for each in planner.changed(start)]
        found = sorted([*found, *planner.rung(CHANGED, changed, LONGER, 1)], key=planner.worth)
    last = [_Candidate(each.split, each.policies, each.settings) for each in [*_several(found, KEEP_LAST), *own[:1]]]
    return planner.rung(THE_BEST, list({(each.split, each.policies): each for each in last}.values()), LONGER, SEEDS)


def layered(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """A configuration with a layer of settings over it.

    Raises:
        ConfigError: what comes of it is wrong.
    """
    content = {**config.model_dump(mode="python", exclude_defaults=True), "app": config.app}
    for axis, choice in list(content.get("pipeline", {}).items()):
        if hasattr(getattr(config.pipeline, axis), "options"):
            own = getattr(config.pipeline, axis)
            content["pipeline"][axis] = {"name": own.name, **own.options}
        else:
            content["pipeline"][axis] = choice
    content["fleet"] = dict(config.fleet)
    return validate([("plan", merge(content, settings))])


def _option(candidate: _Candidate, results: Sequence[Result], goal: Goal) -> Option:
    typical = sorted(results, key=lambda result: result.tokens_per_s)[len(results) // 2]
    costs = [result.cost_per_mtoken for result in results if result.cost_per_mtoken is not None]
    return Option(
        split=candidate.split,
        policies=candidate.policies,
        settings=dict(candidate.settings),
        tokens_per_s=typical.tokens_per_s,
        staleness_mean=statistics.median(result.staleness_mean for result in results),
        staleness_max=max(result.staleness_max for result in results),
        utilisation=typical.utilisation,
        devices=dict(typical.devices),
        price_per_hour=typical.price_per_hour,
        cost_per_mtoken=statistics.median(costs) if costs else None,
        finish_s=goal.seconds(typical.step_s, typical.tokens_per_s),
        seeds=len(results),
        own=candidate.own,
    )


def _several(options: Iterable[Option], count: int) -> list[Option]:
    """The best of each mix, so that one mix at many splits does not push the others out."""
    kept: dict[str, Option] = {}
    for option in options:
        kept.setdefault(option.policies, option)
    return list(kept.values())[:count]


def _few(known: Sequence[Split], parallel: int) -> list[Split]:
    """Splits of a tensor parallelism with about a quarter, half and three quarters of the devices for the trainer."""
    same = sorted((split for split in known if split.tensor_parallel == parallel), key=lambda each: each.trainer)
    last = len(same) - 1
    return [same[round(share * last)] for share in (0.25, 0.5, 0.75)]


def _most_simulated(known: Sequence[Split]) -> int:
    """Most splits that one mix is simulated at, see `_over_splits`."""
    parallels = {split.tensor_parallel for split in known}
    few = {parallel: set(_few(known, parallel)) for parallel in parallels}
    rest = [sum(split.tensor_parallel == parallel for split in known) - len(few[parallel]) for parallel in parallels]
    return sum(map(len, few.values())) + max(rest, default=0)


def _near(split: Split, known: Sequence[Split]) -> list[Split]:
    same = sorted(
        (other for other in known if other.tensor_parallel == split.tensor_parallel), key=lambda each: each.trainer
    )
    place = same.index(split)
    return same[max(0, place - 1) : place + 2]


def _name(candidate: _Candidate) -> str:
    return f"{candidate.split}; {candidate.policies}"


def _reasons(refused: Mapping[str, str]) -> str:
    return "; ".join(dict.fromkeys(refused.values())) or "no candidate is left"
