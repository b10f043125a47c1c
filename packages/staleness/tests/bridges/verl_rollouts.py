"""verl's own fully asynchronous rollouter under random schedules, with our gate and without: for an interpreter that has verl.

    python verl_rollouts.py SEEDS

Of verl are the rollouter with its dataset, its loops and its own threshold, and the message queue. Generation takes lengths
from a long tail, and the trainer takes batches from the queue and updates the weights, all on a clock that jumps to the next
event. Printed is, for each seed and each of both, how many versions late the latest sample was trained on, as a line of JSON.
"""

import asyncio
import contextlib
import json
import random
import selectors
import sys
from pathlib import Path

import numpy as np
import pyarrow
import ray
import tokenizers
import torch
from hydra import compose, initialize_config_dir
from pyarrow import parquet
from tensordict import TensorDict
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental import fully_async_policy
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncRollouter
from verl.experimental.fully_async_policy.message_queue import MessageQueue

from tailrace.staleness.bridges.verl import BoundedRollouter

SIDES = {"verl": FullyAsyncRollouter.__ray_metadata__.modified_class, "tailrace": BoundedRollouter}


class JumpingClock(selectors.DefaultSelector):
    """Nothing is waited for: the clock of its loop jumps instead."""

    now = 0.0

    def select(self, timeout=None):
        self.now += timeout or 0.0
        return super().select(0)


def in_no_time(work):
    clock = JumpingClock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now
    try:
        return loop.run_until_complete(asyncio.wait_for(work, 1e6))
    finally:
        loop.close()


class Queue:
    """verl's message queue without Ray's processes between."""

    def __init__(self, config, size):
        self._queue = MessageQueue.__ray_metadata__.modified_class(config, size)

    def __getattr__(self, name):
        return getattr(self._queue, name)


class Replicas:
    """What the rollouter asks of its replicas: how many there are, and samples from them."""

    def __init__(self, draw, count):
        self._draw, self._count = draw, count
        self.version, self.began = 0, {}

    def get_active_server_count(self):
        return self._count

    async def generate_sequences_single(self, prompts):
        version = self.version
        self.began[prompts.non_tensor_batch["uid"][0]] = version
        await asyncio.sleep(
            30.0 * self._draw.paretovariate(0.7) if self._draw.random() < 0.3 else self._draw.uniform(1, 10)
        )
        rows = len(prompts)
        versions = {
            "min_global_steps": np.full(rows, version, object),
            "max_global_steps": np.full(rows, self.version, object),
        }
        tensors = TensorDict({"responses": torch.zeros(rows, 1)}, batch_size=rows)
        return DataProto(batch=tensors, non_tensor_batch=versions)


async def training(rollouter, queue, replicas, batch, draw):
    """Batches as verl's trainer takes them, and an update after each: how late each sample was, by its name."""
    late, version = {}, replicas.version
    while True:
        samples = []
        while len(samples) < batch:
            found, _ = await queue.get_sample()
            if found is None:
                return late
            samples.append(ray.cloudpickle.loads(found))
        for sample in samples:
            name = sample.full_batch.non_tensor_batch["uid"][0]
            late[name, len(late)] = version - replicas.began[name]
        await asyncio.sleep(draw.uniform(2, 20))  # an optimizer step
        version += 1
        replicas.version = version
        await rollouter.reset_staleness()


async def run(side, seed, folder, tokenizer):
    draw = random.Random(seed)
    bound, batch, syncs, replicas = draw.randint(0, 2), draw.choice([2, 4]), draw.randint(1, 2), draw.randint(1, 2)
    first = draw.randint(0, 2)  # the version of the checkpoint from which the run goes on
    trained = 16 * batch * syncs
    total = first * batch * syncs + trained
    checkpoints = folder / f"{side}-{seed}"
    (checkpoints / f"global_step_{first}").mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(first))
    settings = {
        "data.train_files": folder / "prompts.parquet",
        "data.val_files": folder / "prompts.parquet",
        "data.train_batch_size": 0,
        "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False,
        "actor_rollout_ref.hybrid_engine": False,
        "actor_rollout_ref.actor.ppo_mini_batch_size": batch,
        "async_training.staleness_threshold": bound,
        "async_training.trigger_parameter_sync_step": syncs,
        "rollout.total_rollout_steps": total,
        "trainer.default_local_dir": checkpoints,
        "trainer.total_epochs": 2,
    }
    with initialize_config_dir(str(Path(fully_async_policy.__file__).parent / "config"), version_base=None):
        config = compose("fully_async_ppo_trainer", [f"{name}={value}" for name, value in settings.items()])
    rollouter = SIDES[side](config, tokenizer, device_name="cpu")
    rollouter._init_async_objects()
    rollouter.llm_server_manager = rollouter.async_rollout_manager = made = Replicas(draw, replicas)
    await rollouter.set_max_required_samples()
    queue = Queue(config, rollouter.get_max_queue_size())
    await rollouter.set_message_queue_client(queue)
    rollouter.load_checkpoint()
    made.version = first
    await rollouter.reset_staleness()  # after the update before the first sample
    trainer = asyncio.ensure_future(training(rollouter, queue, made, batch * syncs, draw))
    generation = asyncio.ensure_future(rollouter.fit())
    late = await trainer
    await generation
    return {
        "seed": seed,
        "gate": side,
        "bound": bound,
        "worst": max(late.values()),
        "trained": len(late),
        "distinct": len({name for name, _ in late}),
        "expected": trained,
        "dropped": queue.dropped_samples,
        "seconds": round(asyncio.get_running_loop().time()),
    }


def main():
    folder = Path.cwd()
    words = {"<pad>": 0, "<eos>": 1, "add": 2}
    model = tokenizers.models.WordLevel(words, unk_token="<pad>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model),
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )
    rows = [
        {"prompt": [{"role": "user", "content": "add"}], "data_source": "sums", "extra_info": {"index": index}}
        for index in range(200)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "prompts.parquet")
    for seed in range(int(sys.argv[1])):
        for side in SIDES:
            with contextlib.redirect_stdout(sys.stderr):
                found = in_no_time(run(side, seed, folder, tokenizer))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
