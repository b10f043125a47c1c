"""What a run knows of itself before it starts: the same record on every host. A policy takes what it asks for.

configuration, model, devices ──► Facts ──options_from──► options of a policy, below those that the configuration gives it
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of a decoding step, as `tailrace fit-cost` finds them: k1 x tokens + max(k2, k3 x trajectories) + k4 seconds.

    Args:
        k1: seconds for each token in the KV cache.
        k2: seconds to read the weights.
        k3: seconds of computing for each running trajectory.
        k4: seconds of fixed overhead.
    """

    k1: float
    k2: float
    k3: float
    k4: float


@dataclass(frozen=True, slots=True)
class StageCosts:
    """What is known of both stages of an iteration before the first: generation and training.

    Args:
        devices: devices of all replicas.
        replica_costs: a row for each size that a replica can have: its devices, tokens that its KV cache holds (0: no limit),
            and its k1 to k4.
        train_s: seconds of training on a batch.
        lengths: response tokens of trajectories of a batch, ascending.
    """

    devices: int
    replica_costs: tuple[tuple[int, int, float, float, float, float], ...]
    train_s: float
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One of several pools of replicas that are alike.

    Args:
        name: its name.
        count: replicas at the start.
        tp: devices of each.
        slots: trajectories that each generates at once at most.
    """

    name: str
    count: int
    tp: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCosts:
    """What a profile of replicas of several sizes found (RollPacker, section 4.1).

    Args:
        short, long: devices of a replica with which a round of each kind is generated soonest.
        smallest: fewest devices that hold the weights and a whole response.
        resize_s: seconds that a change of a replica's devices takes.
        longest: most tokens, prompt and response, of a sequence that was measured.
        lengths: response tokens for which `short` and `long` were chosen, ascending.
        replica_costs: a row for each size: see `StageCosts`.
    """

    short: int
    long: int
    smallest: int
    resize_s: float
    longest: int
    lengths: tuple[int, ...]
    replica_costs: tuple[tuple[int, int, float, float, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a run knows of itself.

    A configuration has the same facts in `tailrace run` and in `tailrace simulate`, but for those of devices and model where
    its table ``[fleet]`` describes others than those that it runs on.

    Args:
        prompts: groups of a batch, which a step trains on.
        samples: trajectories of a group that count.
        replicas: replicas at the start.
        slots: trajectories that a replica generates at once at most.
        max_tokens: most tokens of a response.
        tp: devices that each replica spans at the start.
        trainer_devices: devices of the trainer; None: not known.
        shares: the share of each source of prompts.
        shuffle_seed: the seed with which the sources are mixed; None: they are not.
        silent_s: seconds of silence after which a member counts as down, by the configuration.
        surplus_groups: groups that batching generates for each batch beyond what it needs. Known once batching is built.
        heads: what the devices of a replica divide: the model's attention heads, or its key-value heads where these are no
            power of two; None: not known.
        devices_per_machine: most devices of a replica: those of a machine, since links between machines are slow, and 1 with an
            engine that spans no more; None: not known.
        smallest_tp: fewest devices that hold the weights and a whole response; None: not known.
        best_tp: devices of a replica that generate a batch soonest, as a profile finds them; None: not known.
        sizes: what a profile of replicas of several sizes found; None: none was made.
        costs: of a decoding step of any replica, or of the first pool's; None: not known, and then the run fits them.
        pools: the pools of replicas, in the configuration's order; empty where all are alike.
        pool_costs: of each pool of replicas that has its own, by name.
        stages: what is known of generation and training; None: nothing.
    """

    prompts: int
    samples: int
    replicas: int
    slots: int
    max_tokens: int
    tp: int = 1
    trainer_devices: int | None = None
    shares: tuple[float, ...] = (1.0,)
    shuffle_seed: int | None = None
    silent_s: float = 60.0
    surplus_groups: int = 0
    heads: int | None = None
    devices_per_machine: int | None = None
    smallest_tp: int | None = None
    best_tp: int | None = None
    sizes: SizeCosts | None = None
    costs: StepCosts | None = None
    pools: tuple[PoolFacts, ...] = ()
    pool_costs: tuple[tuple[str, StepCosts], ...] = ()
    stages: StageCosts | None = None

    @property
    def trajectories(self) -> int:
        """Trajectories of a batch."""
        return self.prompts * self.samples
