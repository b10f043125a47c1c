"""How the ranker of a run is started, from table ``[ranker]``, and the memory that fine-tuning it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import StepPlanner, expected_one_of
from tailrace.pipeline.config.models import RankerConfig, RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.calls import MOST
from tailrace.pipeline.roles.ranker import RankerSettings, saved_rankers
from tailrace.pipeline.run.facts import facts_of
from tailrace.ranker import DamagedRankerError, Method, Sft, configured, read_note
from tailrace.ranker.features import COUNT
from tailrace.ranker.learned.options import LARGE_PARAMETERS
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.memory import DTYPE_BYTES, DenseModel, MixtureModel, read_shape, trainer_memory

SFT = "sft"
"""The method that fine-tunes a language model."""


def check_ranker(config: RunConfig) -> None:
    """Check that the ranker's method is installed, that its directory holds a ranker, and that policies that need one have one.

    Raises:
        ConfigError: it is not, does not, or they have none.
    """
    if config.ranker is None:
        for axis in ("routing", "relocation"):
            chosen = getattr(config.pipeline, axis)
            policy: StepPlanner = build_policy(axis, chosen, facts_of(config))
            if policy.needs_predictions():
                raise ConfigError(
                    f"key 'pipeline.{axis}': found {chosen.name!r}, which plans with predicted lengths, in a run without a "
                    "ranker, expected a table [ranker] with it: nothing would be predicted"
                )
        return
    from tailrace.ranker import RankerError, check_saved, method_names

    table, names = config.ranker, ("auto", *method_names())
    if table.method not in names:
        raise ConfigError(f"key 'ranker.method': found {table.method!r}, {expected_one_of(table.method, names)}")
    most = MOST // config.pipeline.samples_per_prompt
    if table.prompts > most:
        raise ConfigError(
            f"key 'ranker.prompts': found {table.prompts}, expected at most {most}: lengths of the last {MOST} responses are "
            f"kept, of which {config.pipeline.samples_per_prompt} belong to a prompt"
        )
    _check_model(table)
    try:
        method = ranker_method(table)
    except RankerError as error:
        raise ConfigError(f"key 'ranker.options': {error}") from error
    if table.init is not None:
        tuned = method if isinstance(method, Sft) else Sft()
        try:
            tuned.check(table.init)
        except RankerError as error:
            raise ConfigError(f"key 'ranker.init': {error}") from error
        _check_memory(config, table.init, tuned)
    if table.path is not None:
        try:
            check_saved(table.path, init=table.init)
        except RankerError as error:
            raise ConfigError(f"key 'ranker.path': {error}") from error


def _check_model(table: RankerConfig) -> None:
    for key, given in (("init", table.init is not None), ("objective", table.objective != "auto")):
        if given and table.method not in ("auto", SFT):
            raise ConfigError(
                f"key 'ranker.{key}': found one beside the method {table.method!r}, expected {SFT!r}, or none"
            )
    if table.init is None and table.objective not in ("auto", "write"):
        raise ConfigError(
            f"key 'ranker.objective': found {table.objective!r} without a model, expected the key 'ranker.init' with it: from "
            "scratch it learns to write"
        )
    if "objective" in table.options:
        raise ConfigError("key 'ranker.options': found 'objective', expected the key 'ranker.objective'")
    if table.method == "auto" and (table.options or table.objective != "auto"):
        key = "options" if table.options else "objective"
        raise ConfigError(f"key 'ranker.{key}': found one beside the method 'auto', expected the method whose it is")


def _check_memory(config: RunConfig, init: Path, method: Sft) -> None:
    """Refuse a ranker whose fine-tuning takes more than its share of a GPU."""
    gpus = config.executor.ranker_gpus
    if not gpus:
        return
    needed = fine_tuning_memory(init, method, gpu=True)
    limit = config.executor.gpu_memory_gb * min(gpus, 1.0) * 1e9
    if needed is not None and needed.peak > limit:
        raise ConfigError(
            f"keys 'ranker.init' and 'executor.ranker_gpus': found {needed}, expected at most the {limit / 1e9:.0f} GB of its "
            "part of a GPU: one objective, lora_rank above 0, activation_checkpointing = 'on', or fewer batch_tokens"
        )


def ranker_method(table: RankerConfig) -> Method | str:
    """The method with its options; the word ``"auto"`` for itself.

    Raises:
        RankerOptionError: it has no such option, or a value is outside its range.
    """
    if table.method == "auto":
        return table.method
    chosen = {"objective": table.objective} if table.method == SFT else {}
    return configured(table.method, {**chosen, **table.options})


def ranker_chosen(directory: Path) -> dict[str, Any]:
    """What the ranker of a run is in the end, as fields of a summary.

    Args:
        directory: of what it learned; the newest that was saved whole counts.
    """
    for number in saved_rankers(directory):
        try:
            found = read_note(directory / str(number))
        except DamagedRankerError:  # it was killed while it saved
            continue
        return {"ranker_method": found.method, "ranker_objective": found.objective}
    return {"ranker_method": None, "ranker_objective": None}


def ranker_settings(config: RunConfig, model: Path, saved: Path) -> RankerSettings:
    """The settings of the ranker.

    Args:
        model: directory of the model that the run begins with.
        saved: directory of what the ranker learns in the run.
    """
    assert config.ranker is not None
    table = config.ranker
    return RankerSettings(
        saved=saved,
        path=None if table.path is None else table.path.absolute(),
        method=ranker_method(table),
        init=None if table.init is None else table.init.absolute(),
        prompts=table.prompts,
        samples=config.pipeline.samples_per_prompt,
        look_s=table.look_s,
        budget_s=table.budget_s,
        policy=model.absolute(),
        seed=config.seed,
    )


# How much memory fine-tuning a language model as a ranker takes, by arithmetic on its shape, before anything is loaded.
#
# weights       what is frozen beside adapters, in the dtype in which it computes
# learning      of each weight that learns, float32: itself, its gradient, two moments, the best so far, the copy that predicts
#               meanwhile
# activations   what layers keep of one part of a batch, by `tailrace.trainer.memory`
#
# `auto` learns several objectives one after another, each with a model of its own, and keeps them until it chooses.

_WEIGHT_BYTES, _LEARNING_BYTES = 4, 4 * 6


@dataclass(frozen=True, slots=True)
class FineTuningMemory:
    """Bytes.

    Args:
        weights, learning, activations: see above.
        learns: how many weights learn, with all objectives that are tried.
    """

    weights: int
    learning: int
    activations: int
    learns: int

    @property
    def peak(self) -> int:
        """All of it."""
        return self.weights + self.learning + self.activations

    def __str__(self) -> str:
        parts = ((self.weights, "weights"), (self.learning, "what learns"), (self.activations, "activations"))
        shown = ", ".join(f"{size / 1e9:.2f} GB of {name}" for size, name in parts)
        return (
            f"about {self.peak / 1e9:.2f} GB to fine-tune in ({shown}; {self.learns / 1e6:.1f} million weights learn)"
        )


def fine_tuning_memory(directory: Path, method: Sft, *, gpu: bool) -> FineTuningMemory | None:
    """Predict it; None for an architecture whose shape is not counted.

    Args:
        directory: of the model.
        method: with its options.
        gpu: whether it computes on a GPU.

    Raises:
        ModelError: its configuration is missing or damaged.
    """
    shape = read_shape(directory)
    if shape is None:
        return None
    dtype = ("bfloat16" if gpu else "float32") if method.dtype == "auto" else method.dtype
    large = shape.parameters > LARGE_PARAMETERS
    again = method.activation_checkpointing == "on" or (method.activation_checkpointing == "auto" and large)
    settings = TrainerConfig(
        dtype=dtype,
        micro_batch_tokens=min(method.batch_tokens, method.batch * method.most_tokens),
        activation_checkpointing="on" if again else "off",
    )
    activations = trainer_memory(shape, settings, ranks=1, longest=method.most_tokens, gpu=gpu).activations
    learns, frozen = shape.parameters, 0
    if method.lora_rank:
        size = DTYPE_BYTES[dtype]
        learns, frozen = adapter_parameters(shape, method.lora_rank), shape.parameters * size
        # Beside what the model keeps, each adapter keeps its input, and what A makes of it.
        inputs = 3 * shape.hidden + shape.queries + 4 * method.lora_rank
        if not isinstance(shape, MixtureModel):
            inputs += 2 * shape.hidden + shape.mlp + 3 * method.lora_rank
        activations += settings.micro_batch_tokens * inputs * size * (1 if again else shape.layers)
    width = 2 * shape.hidden
    head = width * (width + COUNT + 9) + 6
    each = [learns + (0 if objective == "write" else head) for objective in method.objectives]
    learning = max(each) * _LEARNING_BYTES + (sum(each) - max(each)) * _WEIGHT_BYTES
    return FineTuningMemory(frozen * len(each), learning, activations, sum(each))


def adapter_parameters(shape: DenseModel, rank: int) -> int:
    """Weights of LoRA in all linear layers of a model: those of attention, and the MLP unless it is a mixture of experts."""
    ends = 2 * (shape.hidden + shape.queries) + 2 * (shape.hidden + shape.keys)
    if not isinstance(shape, MixtureModel):
        ends += 3 * (shape.hidden + shape.mlp)
    return rank * shape.layers * ends
