"""The models of a configuration file. Strict: an unknown key or a wrong type is an error that names the key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tailrace.pipeline.config.fields import STRICT, FilePath, Positive, Seconds, Seed, as_tuple
from tailrace.pipeline.config.pools import CostModelConfig, PoolConfig
from tailrace.pipeline.config.task import TaskConfig


class EnvironmentTable(BaseModel):
    """The environment that answers the turns of a response, for tasks that have one."""

    model_config = STRICT
    name: str | None = None
    """a plugin of tailrace.environment, module:Class or file.py:Class; none: the generated task's own, if it has one"""
    members: Positive = 1
    """members of the role, each with workers and sessions of its own"""
    workers: Positive = 2
    """worker processes of each member; each has many sessions"""
    sessions: Positive = 64
    """sessions that each member has at work; further trajectories wait"""
    call_s: Seconds = 60.0
    """deadline of one call: a session that misses it is over, and its group fails"""
    start_s: Seconds = 60.0
    """deadline of a worker's start, with all that its environment imports and starts"""
    max_turns: Positive = 16
    """most turns that the environment answers in a response; the answer to the last of them ends it"""
    python: FilePath | None = None
    """the interpreter of the workers, for an environment whose packages cannot be installed beside ours; none: this one"""
    options: dict[str, Any] = {}
    """options of the environment"""


class _Strict(BaseModel):
    model_config = STRICT


def _as_choice(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Choice(BaseModel):
    """A policy by name, with its options: ``"on-idle"`` or ``{ name = "best-fit", period_s = 5.0 }``."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)
    name: str
    """the plugin's name in its entry-point group"""

    @property
    def options(self) -> dict[str, Any]:
        """All fields except the name."""
        return dict(self.model_extra or {})


Policy = Annotated[Choice, BeforeValidator(_as_choice)]
DEFAULT_LOSS = "dapo"


def _as_loss(value: Any) -> Any:
    """A loss; options without a name are the default's."""
    return {"name": DEFAULT_LOSS, **value} if isinstance(value, dict) else _as_choice(value)


class SmallModelConfig(_Strict):
    """A small Qwen3 built from a configuration, for machines without a download."""

    hidden: Positive = 64
    """width of the residual stream"""
    layers: Positive = 3
    """decoder layers"""
    heads: Positive = 4
    """query heads"""
    kv_heads: Positive = 2
    """key and value heads"""
    head_dim: Annotated[int, Field(gt=0, multiple_of=2)] = 32
    """width of a head, an even number: rotary positions turn pairs"""
    mlp: Positive = 192
    """width of the feed-forward layers"""
    embedding_std: float = Field(default=0.02, gt=0)
    """standard deviation of the embeddings' first values; larger ones keep apart tokens that stand in the same places"""


class ModelConfig(_Strict):
    """The model that training starts from: a Hugging Face directory, or a small one with a warm start."""

    path: FilePath | None = None
    """a Hugging Face model directory to start from"""
    small: SmallModelConfig | None = None
    """the shape of a small Qwen3 that is built and warm-started if there is no `path`"""
    tokenizer: dict[str, Any] = {}
    """options of the small model's tokenizer, see `tailrace.trainer.warmstart.TokenizerShape`"""


class WarmStartTable(_Strict):
    """Supervised fine-tuning of the small model on generated demonstrations; cached."""

    task: str | None = None
    """the generated task whose demonstrations the small model learns from, where prompts come from files"""
    steps: Positive = 600
    """optimizer steps"""
    batch: Positive = 32
    """demonstrations in a step"""
    lr: float = Field(default=4e-3, gt=0)
    """peak learning rate"""
    processes: Positive = 1
    """data-parallel processes"""
    demonstrations: Positive = 20_000
    """generated demonstrations"""
    flawless_steps: int = Field(default=0, ge=0)
    """first steps, on demonstrations without the mistakes of the others"""
    continued_lr_share: float = Field(default=0.1, gt=0)
    """learning rate of the control that continues fine-tuning, as a share of `lr`"""
    options: dict[str, Any] = {}
    """further options, see `tailrace.trainer.warmstart.WarmStartConfig`"""


class PipelineConfig(_Strict):
    """One policy per axis, and the quantities that they use."""

    mode: Literal["sync", "semi-sync", "async"] | None = None
    """sync, semi-sync or async (RobustRL): who generates while the trainer computes; sets admission, provisioning and
    trainer.colocated, and for semi-sync the pools; none: each by itself"""
    deterministic: bool = False
    """whether two runs of a seed end on the same bits: sets noise, order, placement, threads and shares, and refuses
    what breaks it (docs/fault-tolerance.md)"""
    admission: Policy = Choice(name="inherent")
    """may a group start at a version, and when is a batch trainable"""
    batching: Policy = Choice(name="plain")
    """which prompts are launched, with how many samples, and which groups are filtered"""
    routing: Policy = Choice(name="least-loaded")
    """which replica runs a trajectory"""
    sync: Policy = Choice(name="on-idle")
    """when a replica pulls weights"""
    relocation: Policy = Choice(name="best-fit")
    """which running trajectories move"""
    training: Policy = Choice(name="full-batch")
    """which ready parts are trained on, and when weights change"""
    provisioning: Policy = Choice(name="static")
    """who gets which devices"""
    recovery: Policy = Choice(name="isolate")
    """what restarts when a member fails"""
    detection: Policy = Choice(name="role-aware")
    """who counts as down although its process was not seen to end"""
    sampler: Policy = Choice(name="fifo")
    """which complete groups a batch takes, where admission leaves a choice"""
    steps: Positive = 60
    """batches that the run trains on; each makes a weight version"""
    prompts_per_step: Positive = 32
    """prompts (groups) in a batch"""
    samples_per_prompt: Annotated[int, Field(gt=1)] = 8
    """responses to each prompt"""
    prompts_per_replica: Positive = 16
    """groups that a replica generates at once"""
    eviction: Policy | None = None
    """oldest, stalest or another plugin: which complete groups leave a full buffer untrained; none: it holds replicas back"""
    buffer_prompts: Positive | None = None
    """most groups open at once (waiting, generating or complete); with eviction: most complete groups; none: no such limit"""
    open_batches: Positive = 4
    """most batches of groups open at once if neither admission nor buffer_prompts limits them; more means staler"""
    cycle_s: float = Field(default=0.0, ge=0)
    """least seconds between two decisions for changes of load alone"""


class RolloutConfig(_Strict):
    """Replicas and their engine.

    `nice` (0 to 19) lowers the replicas' CPU priority if they share processor cores with the trainer.
    """

    engine: str = "auto"
    """vllm, sglang, transformers or another plugin of tailrace.engine; auto takes vLLM where it is installed"""
    replicas: Positive = 2
    """replicas at the start; with `pools` it may be left out: as many as those have"""
    pools: Annotated[tuple[PoolConfig, ...], BeforeValidator(as_tuple)] = ()
    """unequal replicas, as tables [[rollout.pools]] with `name`, `count` and what is their own; none: all replicas are alike"""
    nice: Annotated[int, Field(ge=0, le=19)] = 0
    """niceness of replicas, 0 to 19: lowers their CPU priority if they share cores with the trainer"""
    temperature: float = Field(default=1.0, gt=0)
    """sampling temperature in training"""
    max_tokens: Positive = 192
    """most tokens of a response; with turns, what the environment answers is counted too, since it fills the context"""
    stop_tokens: Annotated[tuple[int | str, ...] | None, BeforeValidator(as_tuple)] = None
    """tokens that end a response, by id or text; none: eos_token_id of the model's generation_config.json or config.json"""
    flush_s: Seconds = 0.5
    """seconds between two appends of the tokens of responses under way: what a replica that dies loses at most"""
    digest_bytes: Annotated[int, Field(ge=0)] | None = None
    """bytes of each weight matrix, at seeded places, that are compared after each pull with what the engine has; none: 65536,
    where the engine can tell; 0: nothing"""
    cost_model: CostModelConfig | None = None
    """decoding time for the policies that plan with it; none: the run fits it to its own steps (summary.json)"""
    parallelism: FilePath | None = None
    """file that `tailrace profile --parallelism` wrote: what replicas of each size do here, and what a change of their size
    takes, for provisioning `adaptive-tp` and `balanced`; none: not known"""
    adapter: Literal["auto", "applied", "merged"] = "auto"
    """how replicas serve a LoRA adapter (trainer.adapter): applied by the engine beside its weights, or merged into them, which
    costs more a pull and less a token; auto: applied, where the engine can for all its layers"""
    adapter_versions: Annotated[int, Field(ge=1)] = 1
    """most versions of an adapter that a replica generates with at once: with 2, a pull lets responses in flight end under the
    version that they began with, beside new ones; with 1 it interrupts them"""
    sleep_level: Annotated[int, Field(ge=0, le=2)] | None = None
    """what a replica frees while its devices are lent to the trainer: 1 its KV cache, 2 its weights too, 0 nothing; none: 1, if
    the engine can sleep"""
    options: dict[str, Any] = {}
    """options of the engine, see `tailrace.rollout.EngineOptions`"""

    @model_validator(mode="before")
    @classmethod
    def _count_pools(cls, table: Any) -> Any:
        """The replicas of all pools, where their number is left out. What is no pool is left to the fields' own checks."""
        pools = table.get("pools") if isinstance(table, dict) else None
        if not isinstance(pools, list | tuple) or not pools or "replicas" in table:
            return table
        counts = [pool.get("count", 1) if isinstance(pool, dict) else None for pool in pools]
        known = [count for count in counts if type(count) is int and count > 0]
        return {**table, "replicas": sum(known)} if len(known) == len(counts) else table


class AdapterTable(_Strict):
    """A LoRA adapter, which is trained, saved and published in place of the model's own weights."""

    rank: Annotated[int, Field(ge=0)] = 0
    """rank of its matrices, such as 8; 0: no adapter, the weights themselves are trained"""
    alpha: float = Field(default=16.0, gt=0)
    """what the adapter adds is scaled by alpha / rank"""
    targets: Annotated[str | tuple[str, ...], BeforeValidator(as_tuple)] = "all-linear"
    """names of the linear layers that get one, such as q_proj; all-linear: all but the output layer"""


class CriticTable(_Strict):
    """The critic, of advantages that need one (gae, as the loss ppo has them). It is trained and saved, and never published."""

    init: FilePath | None = None
    """directory of a model of the policy's type, vocabulary and tokenizer with a value head (score.weight of one row); none:
    the policy's model with a fresh head"""
    lr: float | None = Field(default=None, ge=0)
    """its learning rate; none: the policy's"""
    value_clip: float = Field(default=0.2, ge=0)
    """how far a value moves from what it was before the batch until its loss is clipped; 0: not clipped"""
    epochs: Positive = 1
    """passes over each batch"""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """its optimizer steps before the policy begins to move; until then batches train it alone"""
    grad_clip_norm: float = Field(default=1.0, ge=0)
    """largest 2-norm of its gradient; 0: not clipped"""


class TrainerConfigModel(_Strict):
    """The trainer. Its options are those of `tailrace.trainer.TrainerConfig`."""

    backend: str = "fsdp2"
    """a plugin of tailrace.backend"""
    processes: Positive = 1
    """data-parallel ranks of the trainer"""
    interface: str = ""
    """network interface on which its ranks speak, such as eth0, or a network in which it has an address, such as 10.1.0.0/16;
    none: loopback while all are on one machine, else the one that leads to the first rank's"""
    cells: Positive = 1
    """groups of ranks, of equal size, that can each add gradients without the others (training `streamed`, `dynamic-batch`)"""
    colocated: bool = False
    """whether the cells stand on the replicas' devices, or those of `hybrid` pools; a cell then computes alone only on devices
    that are lent to it"""
    offloads: bool = True
    """whether cells move parameters, gradients and optimizer into host memory while replicas use their devices, with
    `colocated` and backend fsdp2; otherwise they only give back what they do not use"""
    adapter: AdapterTable = AdapterTable()
    critic: CriticTable = CriticTable()
    loss: Annotated[Choice, BeforeValidator(_as_loss)] = Choice(name=DEFAULT_LOSS)
    """the policy's loss, a plugin of tailrace.loss: grpo, dapo, dr-grpo, rloo, reinforce++, ppo, gspo, cispo, decoupled-ppo,
    tis or icepop"""
    advantages: Policy | None = None
    """how rewards become advantages, a plugin of tailrace.advantages: group, batch, leave-one-out, centred, gae; none: as the
    loss's paper has it"""
    options: dict[str, Any] = {}
    """options of the gradients and the optimizer, see `tailrace.trainer.TrainerConfig`"""


class EvaluationConfig(_Strict):
    """What is measured on held-out prompts, and the controls without RL to compare it with."""

    every: Annotated[int, Field(ge=0)] = 10
    """steps between two evaluations; 0: only the first and the last"""
    controls: bool = True
    """also evaluate controls that RL did not train, for comparison"""


class TrackingConfig(_Strict):
    """Experiment trackers, which get the same figures as metrics.jsonl. One that fails or is slow costs the run nothing."""

    to: Annotated[tuple[str, ...] | None, BeforeValidator(as_tuple)] = None
    """plugins of tailrace.tracker: tensorboard, wandb, trackio, mlflow, prometheus; none: tensorboard where it is installed"""
    options: dict[str, dict[str, Any]] = {}
    """options of each by its name: { wandb = { project = "long-tails" } }"""
    patience_s: Seconds = 30.0
    """seconds that a tracker has for a row, and for its last rows when the run ends; then it is given up"""


class CheckpointConfig(_Strict):
    """Checkpoints of the trainer."""

    every: Positive = 1
    """steps between two checkpoints"""
    full_every: Positive = 1
    """checkpoints from one with the optimizer's state to the next; those between have weights alone, in trainer.options.dtype:
    a trainer that is restarted goes on from the last with full state, and repeats the steps since"""
    keep: Annotated[int, Field(gt=1)] = 2
    """newest checkpoints with full state that are kept, to which the trainer can fall back, with the weights saved since the
    oldest of them"""
    keep_gb: Annotated[float, Field(ge=0)] = 0
    """gigabytes of checkpoints that are kept; the oldest weights go first, and the newest two with full state stay; what is
    being written comes beside; 0: any"""
    domains: Annotated[tuple[Literal["disk", "peer"], ...], BeforeValidator(as_tuple)] = ("disk",)
    """failure domains that hold a checkpoint before it counts as durable: disk, and peer for the memory of another machine, on
    which a relay stands"""
    newer_weights: bool = False
    """whether a trainer that restarts takes published weights from replicas (`relay.mode` = peer) or relays, where they are
    newer than its newest checkpoint with full state: it repeats no step, and loses the optimizer's state of the steps since"""


class PublishConfig(_Strict):
    """When a weight version may be seen."""

    fence: bool = False
    """whether replicas see a version only once its checkpoint is durable, so that none is newer than what the trainer can come
    back to; it travels to the relays meanwhile"""


class RelayConfig(_Strict):
    """The relays that hold weight versions, and how weights travel between trainer, relays and replicas."""

    mode: Literal["relay", "peer"] = "relay"
    """where replicas pull from: relay (the relays alone), or peer: from replicas that serve the version too, one from each at a
    time; each replica then holds two versions in its machine's shared memory"""
    count: Positive = 1
    """relays at the trainer's site; one for each machine of a cluster, more on one machine to try the chain"""
    sites: dict[str, Positive] = {}
    """relays at each other site, by its name: { west = 2 }; one of them receives each version over the link, for all there"""
    versions: Annotated[int, Field(ge=2, le=16)] | None = None
    """weight versions that each relay keeps in shared memory, in which one more copy stands while a version is published; none:
    2, and with `sites` 3, so that the base of the next delta outlasts a link that is slow"""
    host: str = "127.0.0.1"
    """the address that relays listen on; node: each machine's own in the Ray cluster"""
    transport: str = "shm"
    """how weights travel: shm (shared memory within a machine, a connection between machines), tcp, ucx or nixl"""
    codec: Literal["auto", "none", "delta", "bf16", "fp8"] = "auto"
    """auto (exact deltas where a link's measured speed calls for them), delta, none, or bf16 or fp8, which lose precision"""


class ExecutorConfig(_Strict):
    """Where the roles run."""

    name: Literal["ray", "local"] = "ray"
    """the host of the roles: Ray actors, or threads of one process"""
    ray_address: str | None = None
    """a Ray cluster to join: auto or HOST:PORT; none: one on this machine"""
    replica_gpus: float = Field(default=0.0, ge=0)
    """GPUs of a replica; with device = "cpu" cores, to which it is pinned"""
    trainer_gpus: float = Field(default=0.0, ge=0)
    """GPUs of a rank of the trainer; with device = "cpu" cores, to which it is pinned"""
    gpu_memory_gb: float = Field(default=80.0, gt=0)
    """memory of each GPU in 10^9 bytes; a run whose trainer or replicas would take more is refused"""
    scorer_gpus: float = Field(default=0.0, ge=0)
    """GPUs of the scorer, for a judge; a share, with replicas that also take a share, places it beside a replica, and with
    ranks that do too beside both, on a cell that is then not lent within a round"""
    ranker_gpus: float = Field(default=0.0, ge=0)
    """GPUs of the ranker, for a language model; a share, as the scorer's"""
    placement: Literal["pack", "spread", "strict-pack", "strict-spread"] = "pack"
    """how a trainer's ranks stand on a cluster's machines: on as few as it takes, on as many as there are, or, strictly, all on
    one, or each on its own"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """the device of engine and trainer; auto takes CUDA if available"""
    # Each takes a second or more to start, and all have three minutes.
    machines: Annotated[int, Field(gt=0, le=100)] = 1
    """machines of the run's own cluster: with several, that many Ray nodes on this host, each with a directory of its own, over
    which trainer, replicas, relays and environments are placed, and which faults may kill"""
    machine_checks: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """plugins of tailrace.machine_check that a machine must pass before a member starts on it in place of one that failed:
    arithmetic, disk, gpu-memory, loopback, memory"""
    machine_check_s: Seconds = 60.0
    """deadline for each check of a machine"""


class FunctionPoolConfig(_Strict):
    """Scores by verifier functions; `deadlines.verify_s` limits each."""

    workers: Positive = 1
    """processes in which verifiers run"""
    queue: Positive = 256
    """responses that wait at most; others stay in the trajectory store"""


class CodePoolConfig(_Strict):
    """Scores of programs by hidden tests in a sandbox. A test may take min(max(min_timeout_s, factor x anchor), max_timeout_s)
    CPU seconds, where the anchor is the slowest test of a right program of the same prompt so far, else the row's
    reference_time_s."""

    sandbox: str = "auto"
    """a plugin of tailrace.sandbox, such as sandbox-fusion:URL; auto takes the first that works; there is no way without one"""
    modules: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """installed modules that programs may import besides the standard library, such as numpy"""
    workers: Positive = 2
    """programs that run at once"""
    queue: Positive = 256
    """responses that wait at most; others stay in the trajectory store"""
    min_timeout_s: Seconds = 2.0
    """least timeout of a test"""
    max_timeout_s: Seconds = 30.0
    """largest timeout of a test, which it has while there is no anchor; equal to min_timeout_s: a fixed timeout"""
    timeout_factor: float = Field(default=1.5, gt=0)
    """how much longer than the anchor a test may take"""
    recheck_share: float = Field(default=0.05, ge=0, le=1)
    """time for trying a sample of timed-out programs again with the largest timeout, as a share of the time of all scores"""
    memory_mib: Annotated[int, Field(ge=16)] | None = None
    """most MiB of memory of a program whose row gives no limit; none: as its tests need, and 256 at least"""
    output_kib: Positive | None = None
    """most KiB that a test gives whose row gives no limit; none: four times what its row's tests expect, and 64 at least"""
    tolerance: float = Field(default=1e-9, ge=0, lt=1)
    """relative error of numbers that are no integers, in rows that give none; where 0 is expected, the absolute error"""


class JudgePoolConfig(_Strict):
    """Scores by a language model, in a process of its own beside the scorer."""

    model: FilePath | None = None
    """directory of the judge's Hugging Face causal language model; none: no judge"""
    template: str = ""
    """the text that the judge reads, with {prompt}, {response}, {answer} and {rubric}, or a file with it"""
    memory_mib: Positive | None = None
    """most MiB of device memory; layers beyond it stay in host memory and are streamed; none: the whole model on the device"""
    workers: Positive = 16
    """responses that are judged at once"""
    queue: Positive = 256
    """responses that wait at most; others stay in the trajectory store"""
    timeout_s: Seconds = 120.0
    """deadline of one score"""
    options: dict[str, Any] = {}
    """further options of the judge, see `tailrace.reward.judge.JudgeConfig`"""


class RewardConfig(_Strict):
    """How responses are scored: a pool for each kind of verifier."""

    math: FunctionPoolConfig = FunctionPoolConfig()
    """verifiers that are functions: all but `code` and `judge`"""
    code: CodePoolConfig = CodePoolConfig()
    """the verifier `code`"""
    judge: JudgePoolConfig = JudgePoolConfig()
    """the verifier `judge`"""


class RankerConfig(_Strict):
    """The ranker, which predicts the lengths of responses for policies that use them; without this table there is none."""

    method: str = "auto"
    """what is trained: auto (the best of several), or a plugin of tailrace.predictor"""
    init: FilePath | None = None
    """directory of a language model that the method sft fine-tunes, such as one of 0.5B; none: it begins from scratch"""
    objective: Literal["auto", "write", "quantiles", "pairwise", "listmle"] = "auto"
    """what sft learns of the model in init: to write the length, to regress its quantiles, or the order of prompts; auto: the
    best on prompts held back"""
    options: dict[str, Any] = {}
    """options of the method, such as lora_rank, dtype, activation_checkpointing, batch_tokens and steps of sft"""
    path: FilePath | None = None
    """a ranker that `tailrace rank` saved, to begin with; none: one is trained on the run's own finished responses"""
    prompts: Annotated[int, Field(ge=5)] = 64
    """prompts with all samples finished after which it is trained, and then each time asks whether it must learn anew"""
    look_s: Annotated[float, Field(gt=0)] = 2.0
    """seconds between two looks for finished responses"""
    budget_s: Seconds = 60.0
    """seconds that one training or update may take"""
    threads: Positive = 1
    """threads with which it computes on the CPU"""


class DeadlineConfig(_Strict):
    """Deadlines of everything that a run waits for, in seconds."""

    start_s: Seconds = 600.0
    """deadline for a member to come up"""
    step_s: Seconds = 1800.0
    """deadline for a training step"""
    publish_s: Seconds = 600.0
    """deadline for a version to be published"""
    save_s: Seconds = 600.0
    """deadline until more bytes of a checkpoint are written, or it is durable; and at the end, until what was trained on is"""
    pull_s: Seconds = 600.0
    """deadline for a replica to pull a version"""
    hand_over_s: Seconds = 300.0
    """deadline for a replica to sleep or to wake, and for a cell of the trainer to leave devices that they share"""
    score_s: Seconds = 300.0
    """deadline from one outcome of the scorer to the next"""
    predict_s: Seconds = 120.0
    """deadline from one answer of the ranker to the next"""
    call_s: Seconds = 300.0
    """deadline from one answer of an environment to the next; of one call, see `environment.call_s`"""
    suspect_s: Seconds = 10.0
    """silence after which a member is reported as silent"""
    silent_s: Seconds = 60.0
    """silence after which a member counts as down, where `pipeline.detection` sets no other window"""
    verify_s: Seconds = 10.0
    """deadline for verifying one response"""
    data_s: Seconds = 180.0
    """time in which the data role must go on with a call, such as the fetch of a batch, or come back if it is gone"""
    unclaimed_s: Seconds = 120.0
    """time without a controller after which the members of a run on Ray save and stop"""


class RunConfig(_Strict):
    """A whole run."""

    app: str = "laminar"
    """laminar, staleflow or another plugin of tailrace.app"""
    seed: Seed = 0
    """seed of prompts, sampling and the small model"""
    private: bool = True
    """no other user may read a new run's directory, which holds prompts and responses; false: your umask says who may"""
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    warm_start: WarmStartTable = WarmStartTable()
    pipeline: PipelineConfig = PipelineConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfigModel = TrainerConfigModel()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    publish: PublishConfig = PublishConfig()
    relay: RelayConfig = RelayConfig()
    reward: RewardConfig = RewardConfig()
    environment: EnvironmentTable = EnvironmentTable()
    ranker: RankerConfig | None = None
    """predicted lengths of responses"""
    executor: ExecutorConfig = ExecutorConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    faults: tuple[str, ...] = ()
    """scripted faults: [hang:|stall:|raise:]ROLE[:ID]@WHEN[:PHASE], such as replica@60s, trainer@step9:backward, data@every9"""
    mtbf_s: Seconds | None = None
    """mean seconds between kills and hangs at random, over all roles but the controller; none: no faults at random"""
    fault_seed: int = 0
    """seed of what faults draw: the steps of those with everyN, and those of mtbf_s"""
    fleet: dict[str, Any] = {}
    """the modelled fleet, which only the simulator reads, see docs/simulator.md"""

    @property
    def shuffle_seed(self) -> int | None:
        """The seed of the order of training prompts; None: the order of their files."""
        return self.seed if self.task.shuffle else None
