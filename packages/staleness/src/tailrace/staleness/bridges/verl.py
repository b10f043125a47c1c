"""verl's fully asynchronous training with a bound on staleness (written against verl 0.9.1). Nobody else imports this file.

    python -m tailrace.staleness.bridges.verl async_training.staleness_threshold=1 ...

It takes the arguments of `python -m verl.experimental.fully_async_policy.fully_async_main`, and replaces one thing:
`SampleGate` decides when a sample may start, and in which order complete ones reach the trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
import ray
from verl.experimental.fully_async_policy import fully_async_main
from verl.experimental.fully_async_policy.detach_utils import RolloutSample
from verl.experimental.fully_async_policy.fully_async_main import FullyAsyncTaskRunner
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncRollouter

from tailrace.staleness.bridges.verl_gate import SampleGate, whole_bound

_CONFIG = str(Path(fully_async_main.__file__).with_name("config"))
_SAMPLE: ContextVar[RolloutSample] = ContextVar("sample")


class OrderedQueue:
    """verl's client of its message queue, which keeps complete samples until the gate hands them over."""

    def __init__(self, client: Any, rollouter: BoundedRollouter) -> None:
        self._client, self._rollouter = client, rollouter
        self._kept: dict[str, Any] = {}
        self._in_order = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def put_sample(self, sample: Any) -> bool:
        """Keep a sample, and put into the queue what is due. None, the end of all samples, goes at once.

        Returns:
            Whether the queue took everything without dropping an older sample.

        Raises:
            VersionError: the sample is older than what it was started with.
        """
        if sample is None:
            return bool(await self._client.put_sample(sample=None))
        async with self._in_order:
            made = _SAMPLE.get()
            self._kept[made.sample_id] = sample
            versions = made.full_batch.non_tensor_batch.get("min_global_steps", ())
            oldest = min((int(version) for version in versions if version is not None), default=None)
            due = self._rollouter.gate.complete(made.sample_id, oldest)
            return all([await self._client.put_sample(sample=self._kept.pop(name)) for name in due])


class BoundedRollouter(FullyAsyncRollouter.__ray_metadata__.modified_class):  # type: ignore[misc, unused-ignore]
    """verl's rollouter, whose samples are trained on at most `async_training.staleness_threshold` versions late."""

    gate: SampleGate[str]
    _begun: bool

    async def set_max_required_samples(self) -> None:
        """Make the gate of a run that begins."""
        await super().set_max_required_samples()
        self.max_queue_size += 1  # for the end of all samples: a full queue drops its oldest one
        self._open_gate(0)

    def load_checkpoint(self) -> None:
        """Make the gate of a run that goes on at the trainer's version."""
        super().load_checkpoint()
        self._open_gate((self.global_steps - 1) // self._batch_size())

    async def set_message_queue_client(self, message_queue_client: Any) -> None:
        """Have samples put into the queue in the gate's order."""
        await super().set_message_queue_client(OrderedQueue(message_queue_client, self))

    async def reset_staleness(self) -> Any:
        """Note that the replicas have new weights. The first call, before any sample, is of those that the run begins with."""
        if self._begun:
            self.gate.updated()  # before the samples that wait are woken
        self._begun = True
        return await super().reset_staleness()

    async def _should_pause_generation(self) -> bool:
        return not self.gate.may_start()

    def _process_single_sample_streaming(self, rollout_sample: RolloutSample) -> Coroutine[Any, Any, None]:
        # Not a coroutine: the sample has to count before verl asks for the next one, and a task begins later.
        self.gate.start(rollout_sample.sample_id)
        return self._generate(rollout_sample)

    async def _generate(self, rollout_sample: RolloutSample) -> None:
        _SAMPLE.set(rollout_sample)
        await super()._process_single_sample_streaming(rollout_sample)

    def _open_gate(self, version: int) -> None:
        self.gate = SampleGate(whole_bound(self.staleness_threshold), self._batch_size(), version)
        self._begun = False

    def _batch_size(self) -> int:
        return int(self.required_samples * self.config.async_training.trigger_parameter_sync_step)


class BoundedTaskRunner(FullyAsyncTaskRunner.__ray_metadata__.modified_class):  # type: ignore[misc, unused-ignore]
    """verl's task runner, with `BoundedRollouter` for its rollouter."""

    def _create_rollouter(self, config: Any) -> None:
        # verl names the class in this method, so it is replaced where the method looks it up.
        fully_async_main.FullyAsyncRollouter = ray.remote(num_cpus=10, max_concurrency=100)(BoundedRollouter)
        super()._create_rollouter(config)


@hydra.main(config_path=_CONFIG, config_name="fully_async_ppo_trainer", version_base=None)  # type: ignore[untyped-decorator, unused-ignore]
def main(config: Any) -> None:
    """verl's own program with the bounded rollouter.

    Raises:
        LimitError: the threshold is no bound in versions. Nothing has started.
    """
    whole_bound(config.async_training.staleness_threshold)
    fully_async_main.FullyAsyncTaskRunner = ray.remote(num_cpus=1)(BoundedTaskRunner)
    fully_async_main.main.__wrapped__(config)


if __name__ == "__main__":
    # By its name, under which Ray's processes import it.
    import_module("tailrace.staleness.bridges.verl").main()
