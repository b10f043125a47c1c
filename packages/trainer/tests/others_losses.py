"""Losses of other frameworks on one batch: run by an interpreter that has the framework, and not Tailrace.

    python others_losses.py verl|torchrl|trl|stable-baselines3 BATCH.json

BATCH.json has rows of responses that are padded on the right (`mask`), in float64. Printed is, for each case, the loss of the
batch and its gradient by the log-probabilities, and what the frameworks that have a critic make of its values, as JSON on the
last line.
"""

import collections
import json
import sys
import types
from pathlib import Path

import torch


def main() -> None:
    which, path = sys.argv[1:]
    batch = json.loads(Path(path).read_text(encoding="utf-8"))
    tensors = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in batch["tensors"].items()}
    found = {}
    for case, compute in SIDES[which](tensors, batch).items():
        logprobs = tensors["logprobs"].clone().requires_grad_()
        loss = compute(logprobs)
        loss.backward()
        found[case] = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    advantages = verl_advantages(tensors, batch) if which == "verl" else {}
    critic = CRITICS[which](tensors, batch) if which in CRITICS else {}
    print(json.dumps({"losses": found, "advantages": advantages, "critic": critic}))


def verl(tensors, batch):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config import ActorConfig

    mask, advantages = tensors["mask"], tensors["advantages"]

    def loss(name, mode, low, high, *, proximal=False, cap=None):
        config = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=low, clip_ratio_high=high
        )
        object.__setattr__(config, "clip_ratio_c", 1e9)  # no dual clip, which is none of these papers'
        if mode.endswith("norm"):
            config.global_batch_info["loss_scale_factor"] = batch["longest"]
        old = tensors["proximal" if proximal else "behaviour"]
        weights = None
        if cap is not None:
            ratio = tensors["proximal"] - tensors["behaviour"]
            weights, _ = compute_rollout_correction_weights(ratio, mask, rollout_is="token", rollout_is_threshold=cap)
        return lambda logprobs: get_policy_loss_fn(name)(
            old, logprobs, advantages, mask, loss_agg_mode=mode, config=config, rollout_is_weights=weights
        )[0]

    return {
        "dapo": loss("vanilla", "token-mean", 0.2, 0.28),
        "grpo": loss("vanilla", "seq-mean-token-mean", 0.2, 0.2),
        "dr-grpo": loss("vanilla", "seq-mean-token-sum-norm", 0.2, 0.2),
        "gspo": loss("gspo", "seq-mean-token-mean", 3e-4, 4e-4),
        "cispo": loss("cispo", "token-mean", 1.0, 0.5),
        "tis": loss("vanilla", "token-mean", 0.2, 0.28, proximal=True, cap=2.0),
        "decoupled-ppo": loss("vanilla", "token-mean", 0.2, 0.2, proximal=True, cap=1e9),
    }


def verl_advantages(tensors, batch):
    import numpy as np
    from verl.trainer.ppo import core_algos

    mask, groups = tensors["mask"], np.array(batch["groups"])
    rewards = torch.zeros_like(mask)
    rewards[:, 0] = torch.tensor(batch["rewards"], dtype=torch.float64)
    found = {
        "leave-one-out": core_algos.compute_rloo_outcome_advantage(rewards, mask, groups),
        "centred": core_algos.compute_grpo_outcome_advantage(rewards, mask, groups, norm_adv_by_std_in_grpo=False),
        "group": core_algos.compute_grpo_outcome_advantage(rewards, mask, groups),
    }
    return {name: values[0][:, 0].tolist() for name, values in found.items()}


def torchrl(tensors, _):
    from tensordict import TensorDict
    from torchrl.objectives.llm.grpo import DAPO, GRPOLoss

    mask = tensors["mask"].bool()

    class Actor(torch.nn.Module):
        """What their loss asks of an actor: a distribution with a mask, whose log-probabilities are those given."""

        in_keys = ()
        out_keys = ()
        logprobs = None

        def _get_sft_dist(self, _):
            return types.SimpleNamespace(mask=mask, log_prob=lambda _: self.logprobs)

        get_dist = _get_sft_dist

    def loss(kind, clip, aggregation):
        def compute(logprobs):
            actor = Actor()
            module = kind(actor, clip_epsilon=clip, aggregation=aggregation, entropy_bonus=False)
            actor.logprobs = logprobs
            full = {
                ("log_probs", "full"): tensors["behaviour"],
                ("tokens", "full"): torch.zeros_like(mask, dtype=torch.long),
                "advantage": tensors["advantages"].unsqueeze(-1),
            }
            return module(TensorDict(full, [len(mask)])).loss_objective.sum()

        return compute

    return {
        "dapo": loss(DAPO, (0.2, 0.28), "token_mean"),
        "grpo": loss(GRPOLoss, 0.2, "prompt_mean"),
    }


def trl(tensors, batch):
    import trl.trainer.grpo_trainer

    kind = trl.trainer.grpo_trainer.GRPOTrainer
    mask = tensors["mask"]

    def loss(loss_type, low, high, level="token"):
        def compute(logprobs):
            trainer = object.__new__(kind)
            trainer.__dict__ |= {
                "model": types.SimpleNamespace(training=True),
                "args": types.SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
                "accelerator": types.SimpleNamespace(
                    num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value
                ),
                "loss_type": loss_type,
                "importance_sampling_level": level,
                "epsilon_low": low,
                "epsilon_high": high,
                "beta": 0.0,
                "top_entropy_quantile": 1.0,
                "off_policy_mask_threshold": None,
                "aux_loss_enabled": False,
                "use_vllm": False,
                "vllm_importance_sampling_correction": False,
                "current_gradient_accumulation_steps": 1,
                "max_completion_length": batch["longest"],
                "_entropy_bonus_enabled": False,
                "_metrics": collections.defaultdict(lambda: collections.defaultdict(list)),
            }
            trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, torch.zeros_like(mask), None)
            ids = torch.zeros_like(mask, dtype=torch.long)
            inputs = {
                "prompt_ids": ids[:, :1],
                "prompt_mask": mask[:, :1],
                "completion_ids": ids,
                "completion_mask": mask,
                "advantages": tensors["advantages"][:, 0],
                "old_per_token_logps": tensors["behaviour"],
                "num_items_in_batch": mask.sum(),
            }
            return trainer._compute_loss(None, inputs)

        return compute

    return {
        "dapo": loss("dapo", 0.2, 0.28),
        "grpo": loss("grpo", 0.2, 0.2),
        "dr-grpo": loss("dr_grpo", 0.2, 0.2),
        "gspo": loss("grpo", 3e-4, 4e-4, "sequence"),
        "cispo": loss("cispo", 0.2, 1.5),  # theirs is the bound itself, and none below
    }


def verl_critic(tensors, batch):
    """GAE over the tokens that a model generated, with an environment's between them, and the value loss."""
    from verl.trainer.ppo import core_algos

    values = tensors["values"].clone().requires_grad_()
    advantages, returns = core_algos.compute_gae_advantage_return(
        tensors["token_rewards"], tensors["values_before"], tensors["generated"], batch["gamma"], batch["lam"]
    )
    loss, _ = core_algos.compute_value_loss(
        values, returns, tensors["values_before"], tensors["generated"], batch["value_clip"], "token-mean"
    )
    loss.backward()
    return {
        "advantages": advantages.tolist(),
        "returns": returns.tolist(),
        "loss": loss.item(),
        "gradient": values.grad.tolist(),
        "whitened": True,
    }


def torchrl_critic(tensors, batch):
    """The same, of each response's generated tokens alone: TorchRL knows no tokens between them."""
    from torchrl.objectives.utils import _clip_value_loss, distance_loss
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    values = tensors["values"].clone().requires_grad_()
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    losses = []
    for row, kept in enumerate(tensors["generated"].bool()):
        before, rewards = (tensors[name][row][kept][:, None] for name in ("values_before", "token_rewards"))
        done = torch.zeros_like(before, dtype=torch.bool)
        done[-1] = True
        after = torch.cat([before[1:], torch.zeros_like(before[:1])])
        found = generalized_advantage_estimate(batch["gamma"], batch["lam"], before, after, rewards, done)
        advantages[row, kept], returns[row, kept] = (each[:, 0].detach() for each in found)
        now, goal = values[row][kept], returns[row][kept].detach()
        plain = distance_loss(goal, now, loss_function="l2")
        losses.append(_clip_value_loss(before[:, 0], now, torch.tensor(batch["value_clip"]), goal, plain, "l2")[0])
    loss = torch.cat(losses).mean() / 2  # its l2 is not halved
    loss.backward()
    return {
        "advantages": advantages.tolist(),
        "returns": returns.tolist(),
        "loss": loss.item(),
        "gradient": values.grad.tolist(),
        "whitened": False,
    }


def stable_baselines3_critic(tensors, batch):
    """GAE of each response's generated tokens, an episode each. Its value loss is another one: of the clipped value alone."""
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    advantages, returns = (torch.zeros_like(tensors["values"]) for _ in range(2))
    for row, kept in enumerate(tensors["generated"].bool()):
        buffer = RolloutBuffer(
            int(kept.sum()),
            spaces.Box(0, 1, (1,)),
            spaces.Discrete(2),
            device="cpu",
            gae_lambda=batch["lam"],
            gamma=batch["gamma"],
        )
        buffer.rewards[:, 0] = tensors["token_rewards"][row][kept].numpy()
        buffer.values[:, 0] = tensors["values_before"][row][kept].numpy()
        buffer.compute_returns_and_advantage(last_values=torch.zeros(1), dones=np.ones(1))
        advantages[row, kept] = torch.tensor(buffer.advantages[:, 0], dtype=torch.float64)
        returns[row, kept] = torch.tensor(buffer.returns[:, 0], dtype=torch.float64)
    return {"advantages": advantages.tolist(), "returns": returns.tolist(), "whitened": False}


CRITICS = {"verl": verl_critic, "torchrl": torchrl_critic, "stable-baselines3": stable_baselines3_critic}
SIDES = {"verl": verl, "torchrl": torchrl, "trl": trl, "stable-baselines3": lambda *_: {}}

if __name__ == "__main__":
    main()
