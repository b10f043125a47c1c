"""Causal language models from a directory or a configuration, by transformers, as they are to learn: LoRA by PEFT, bfloat16.

No code of a model's own is run.

               all its weights, float32 ──► they learn; they are saved
directory ──►
               frozen, in its dtype ──► adapters, float32, learn; they alone are saved, with a mark of the directory's model
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tailrace.contracts import extra, need_extra
from tailrace.ranker.errors import RankerModelError, RankerOptionError
from tailrace.ranker.learned.fitting import LossOf, Plan, first_step_s
from tailrace.ranker.learned.options import LARGE_BYTES, LARGE_PARAMETERS, SftOptions
from tailrace.ranker.methods import Setting

_NO_TARGETS = ("embed", "wte", "wpe", "lm_head")
_MARKED_BYTES = 1 << 20  # at the end of each file: a model all of whose weights were trained further differs there


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a given model learns.

    Args:
        options: of the method.
        directory: the model's; None where it is not needed: all weights are elsewhere.
        seed: of the adapters.
    """

    options: SftOptions
    directory: Path | None
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which it computes."""
        if self.options.dtype != "auto":
            return torch.bfloat16 if self.options.dtype == "bfloat16" else torch.float32
        fast = device_of_pretrained().type == "cuda" or (self._large and _multiplies_bfloat16())
        return torch.bfloat16 if fast else torch.float32

    @property
    def _large(self) -> bool:
        if self.directory is None or not self.options.lora_rank:  # all weights are float32
            return False
        return sum(file.stat().st_size for file in self.directory.glob("*.safetensors")) > LARGE_BYTES

    def backbone(self) -> Any:
        """The model without its output layer.

        Raises:
            RankerModelError: the directory holds none, or it has no linear layer for adapters.
            MissingExtraError: PEFT is not installed, and there are to be adapters.
        """
        from transformers import AutoModel

        return self._prepared(AutoModel)

    def causal_lm(self) -> Any:
        """The model; raises as `backbone` does."""
        from transformers import AutoModelForCausalLM

        return self._prepared(AutoModelForCausalLM)

    def computing(self) -> AbstractContextManager[Any]:
        """Matrices multiply in `dtype` meanwhile, whatever the weights have."""
        context: AbstractContextManager[Any] = torch.autocast(
            device_of_pretrained().type, torch.bfloat16, enabled=self.dtype == torch.bfloat16
        )
        return context

    def mark(self) -> str:
        """What tells the directory's model from another: a checksum of its configuration and of the ends of its weights.

        Raises:
            RankerOptionError: there is no directory.
            RankerModelError: there is no model in it.
        """
        digest, directory = hashlib.sha256(), self.known_directory
        for file in (directory / "config.json", *sorted(directory.glob("*.safetensors"))):
            try:
                with file.open("rb") as content:
                    content.seek(max(0, file.stat().st_size - _MARKED_BYTES))
                    digest.update(f"{file.name} {file.stat().st_size} ".encode() + content.read())
            except OSError as error:
                raise RankerModelError(
                    f"{file}: found no such file ({error.strerror}), expected the model that the ranker's adapters are of"
                ) from error
        return digest.hexdigest()

    @property
    def known_directory(self) -> Path:
        """The directory.

        Raises:
            RankerOptionError: there is none.
        """
        if self.directory is None:
            raise RankerOptionError(
                "found no init, expected the directory of the language model that adapters are added to"
            )
        return self.directory

    def _prepared(self, kind: Any) -> Any:
        adapters = self.options.lora_rank > 0
        if adapters:
            need_extra("tailrace-ranker", "adapters", "peft")  # before minutes of loading
        model = _loaded(kind, self.known_directory, self.dtype if adapters else torch.float32)
        if adapters:
            self._add_adapters(model)
        chosen, large = self.options.activation_checkpointing, model.num_parameters() > LARGE_PARAMETERS
        if chosen == "on" or (chosen == "auto" and large):
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def _add_adapters(self, model: Any) -> None:
        with extra("tailrace-ranker", "adapters"):
            from peft import LoraConfig, inject_adapter_in_model
            from peft.tuners.lora import LoraLayer

        targets = {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and not any(part in name for part in _NO_TARGETS)
        }
        if not targets:
            raise RankerModelError(
                f"{self.directory}: found no linear layer in {type(model).__name__}, expected some for adapters; lora_rank = 0 "
                "trains all weights"
            )
        lora = LoraConfig(r=self.options.lora_rank, lora_alpha=self.options.lora_alpha, target_modules=sorted(targets))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            inject_adapter_in_model(lora, model)
            for module in model.modules():
                if isinstance(module, LoraLayer):
                    for a in module.lora_A.values():  # as PEFT draws them, but the same numbers on every device
                        weight = torch.empty(a.weight.shape)
                        nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
                        a.weight.data = weight.to(a.weight.device)
                    for b in module.lora_B.values():
                        b.weight.data = torch.zeros(b.weight.shape, device=b.weight.device)


def plan_of(options: SftOptions, given: bool, epochs: float, rate: float) -> Plan:
    """The plan of a training of ``sft``.

    Args:
        options: its options.
        given: whether a given model is trained.
        epochs, rate: parts of the options', 1 but for an update.
    """
    lr = (options.rate if given else options.lr) * rate
    passes, steps = max(1, round(options.epochs * epochs)), math.ceil(options.steps * epochs)
    return Plan(
        "sft", passes, options.batch, lr, weight_decay=0.01, batch_tokens=options.batch_tokens, steps=steps,
        faster="head." if given else "", faster_by=options.head_lr,
    )  # fmt: skip


def check_time(network: nn.Module, sizes: Sequence[int], loss_of: LossOf, plan: Plan, setting: Setting) -> None:
    """Refuse a budget that is shorter than one step, before anything is learned.

    Raises:
        RankerOptionError: it is.
    """
    took = first_step_s(network, sizes, loss_of, plan, setting)
    if not setting.deadline.allows(took):
        raise RankerOptionError(
            f"found {max(0.0, setting.deadline.left_s):.1f} s left of the budget to train a given model in, expected more than "
            f"the {took:.1f} s of a step of {min(plan.batch, len(sizes))} prompts: a larger budget_s, or a smaller batch"
        )


def described(tuning: Tuning | None, model: Any) -> dict[str, Any]:
    """What a saved predictor says of its model: ``pretrained``, its configuration; or ``base``, what its adapters are of."""
    if tuning is None:
        return {"pretrained": None, "base": None}
    adapters = tuning.options.lora_rank > 0
    return {"pretrained": None if adapters else configuration(model), "base": tuning.mark() if adapters else None}


def is_base(tuning: Tuning, mark: str | None) -> bool:
    """Whether a saved predictor is adapters, and the directory's model is what they are of.

    Raises:
        RankerModelError: the directory holds another model.
    """
    if mark is not None and mark != tuning.mark():
        raise RankerModelError(
            f"{tuning.directory}: found another model than the one that the ranker's adapters are of, expected that one"
        )
    return mark is not None


def copied(network: nn.Module) -> Any:
    """A copy of a network that learns alone: what is frozen is the same memory."""
    return copy.deepcopy(network, {id(weight): weight for weight in network.parameters() if not weight.requires_grad})


def backbone_of(directory: Path) -> Any:
    """A causal language model without its head, in float32.

    Raises:
        RankerModelError: the directory holds none.
    """
    from transformers import AutoModel

    return _loaded(AutoModel, directory)


def device_of_pretrained() -> torch.device:
    """Where a given model computes: the GPU if there is one. Small models from scratch stay on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it: it multiplies several times as fast then as in float32."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 and newer say it
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def build_backbone(config: dict[str, Any]) -> Any:
    """The model of a `configuration`, without its head and with any weights.

    Raises:
        ValueError: no such model is known.
    """
    from transformers import AutoModel

    return AutoModel.from_config(_config(config)).to(device_of_pretrained())


def build_causal_lm(config: dict[str, Any]) -> Any:
    """The model of a `configuration`, with any weights.

    Raises:
        ValueError: no such model is known.
    """
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(_config(config))


def configuration(model: Any) -> dict[str, Any]:
    """A model's configuration as plain data."""
    found: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return found


def _config(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    fields = {**config, "dtype": "float32"}
    return AutoConfig.for_model(fields.pop("model_type", ""), **fields)


def _loaded(kind: Any, directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    if not (directory / "config.json").is_file():
        raise RankerModelError(f"{directory}: found no config.json, expected a model directory")
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = kind.from_pretrained(directory, dtype=dtype, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RankerModelError(
            f"{directory}: found no model that can be loaded ({said}), expected a causal LM"
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    return model.to(device_of_pretrained()).eval()
