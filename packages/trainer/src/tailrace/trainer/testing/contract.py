"""What every training backend must do, as a pytest suite, on a tiny random model in a world of one."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.contracts import Experience, plugins
from tailrace.trainer.advantages import CriticAdvantages, open_advantages
from tailrace.trainer.backend import TrainingBackend
from tailrace.trainer.config import CriticConfig, TrainerConfig
from tailrace.trainer.errors import BatchError, CheckpointError, TrainerConfigError
from tailrace.trainer.losses import open_loss
from tailrace.trainer.testing.experiences import make_experiences
from tailrace.trainer.testing.reference import reference_estimates, reference_loss, reference_value_loss

_VOCABULARY = 31
_CONFIG = TrainerConfig(lr=0.01, device="cpu", threads=1, grad_clip_norm=0.0)


class BackendContract:
    """Tests of what every `TrainingBackend` must do, as a pytest suite, on a tiny random model in a world of one.

    Attributes:
        config: the settings; a backend that trains adapters is tried with one, too.
        tolerance: largest difference of weights and losses between two ways to compute the same.
    """

    tolerance = 1e-4
    config = _CONFIG

    def build(self, model_path: Path, config: TrainerConfig) -> TrainingBackend:
        """The backend under test: rank 0 of 1."""
        raise TypeError(f"{type(self).__name__} must override build({model_path=}, {config=})")

    def _with_critic(self, model_path: Path, config: TrainerConfig) -> TrainingBackend | None:
        """The backend with a critic; None if it refuses one by name."""
        try:
            return self.build(model_path, config)
        except TrainerConfigError as error:
            if "critic" not in str(error):
                raise
            return None

    def test_the_loss_is_that_of_the_reference(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model, batch = _model(tmp_path), _batch(1)
        expected = reference_loss(AutoModelForCausalLM.from_pretrained(model), batch, self.config).item()
        with closing(self.build(model, self.config)) as backend:
            found = backend.step([batch])
        assert abs(found["loss"] - expected) <= self.tolerance
        assert found["trajectories"] == len(batch)

    def test_gradients_that_were_added_make_the_step_of_the_whole_batch(self, tmp_path: Path) -> None:
        model, batch = _model(tmp_path), _batch(2)
        with closing(self.build(model, self.config)) as backend:
            backend.step([batch])
            expected = _weights(backend)
        with closing(self.build(model, self.config)) as backend:
            before = _weights(backend)
            backend.accumulate([each for each in batch if each.group == 0])
            assert _differ(before, _weights(backend)) == 0
            backend.apply([each for each in batch if each.group != 0])
            assert _differ(expected, _weights(backend)) <= self.tolerance
            assert _differ(before, expected) > 0

    def test_packed_micro_batches_have_the_gradient_and_log_probabilities_of_padded_ones(self, tmp_path: Path) -> None:
        model, found = _model(tmp_path), []
        batch = make_experiences(3, 5, vocab_size=_VOCABULARY, seed=9, turns=2, forks=0.4)
        batch = [replace(each, reward=float(place % 2)) for place, each in enumerate(batch)]
        first = [each for each in batch if each.group == 0]
        for packing, shared in ((False, 0), (True, 0), (True, 60)):
            # several responses in a row, and one that is longer than a row may be
            config = replace(self.config, packing=packing, micro_batch_tokens=70, shared_prompt_tokens=shared)
            with closing(self.build(model, config)) as backend:
                plain = backend.step([batch])
                backend.accumulate(first)
                streamed = backend.apply(batch[len(first) :])
                found.append((plain, streamed, _weights(backend)))
        (plain, streamed, weights), *packed = found
        for step, later, after in packed:
            for one, other in ((step, plain), (later, streamed)):
                for name in ("loss", "approx_kl", "entropy", "grad_norm", "ratio_mean", "tokens"):
                    assert abs(one[name] - other[name]) <= self.tolerance * max(1.0, other[name]), name
            assert _differ(after, weights) <= 2 * self.tolerance

    def test_contexts_have_the_loss_and_gradient_of_plain_transformers_on_each(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model = _model(tmp_path)
        batch = make_experiences(3, 4, vocab_size=_VOCABULARY, seed=1, max_prompt=5, max_response=4, turns=4, forks=0.6)
        batch = [replace(each, reward=float(place % 2)) for place, each in enumerate(batch)]
        assert max(len(each.contexts) for each in batch) > 2
        for name in ("grpo", "gspo"):
            lm = AutoModelForCausalLM.from_pretrained(model)
            expected = reference_loss(lm, batch, replace(_CONFIG, loss=name))
            expected.backward()
            norm = math.hypot(*(float(each.grad.norm()) for each in lm.parameters() if each.grad is not None))
            for packing in (True, False):
                config = replace(_CONFIG, lr=0.0, loss=name, packing=packing, micro_batch_tokens=70)
                with closing(self.build(model, config)) as backend:
                    found = [backend.step([batch])]
                    backend.accumulate([each for each in batch if each.group == 0])
                    found.append(backend.apply([each for each in batch if each.group != 0]))
                for metrics in found:
                    assert abs(metrics["loss"] - expected.item()) <= self.tolerance, name
                    assert abs(metrics["grad_norm"] - norm) <= self.tolerance * norm, name

    def test_every_loss_is_that_of_the_reference_plain_and_streamed(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model, batch = _model(tmp_path), _batch(7)
        lm = AutoModelForCausalLM.from_pretrained(model)
        for name in plugins.names("tailrace.loss"):
            loss = open_loss(name)
            if not type(loss).__module__.startswith("tailrace."):
                continue  # the reference does not know it
            own = open_advantages(loss.advantages)
            whole = isinstance(own, CriticAdvantages) or own.needs_batch
            config = replace(
                _CONFIG, lr=0.0, loss=name, max_response_tokens=30, advantages="group" if whole else "auto"
            )
            expected = reference_loss(lm, batch, config).item()
            with closing(self.build(model, config)) as backend:
                plain = backend.step([batch])
                backend.accumulate([each for each in batch if each.group == 0])
                streamed = backend.apply([each for each in batch if each.group != 0])
            for found in (plain, streamed):
                assert abs(found["loss"] - expected) <= self.tolerance, f"{name}: {found['loss']} and {expected}"
            assert abs(plain["grad_norm"] - streamed["grad_norm"]) <= self.tolerance * plain["grad_norm"], name

    def test_ppo_and_its_critic_are_those_of_the_reference_plain_and_streamed(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        model, batch = _model(tmp_path), _batch(9)
        init = build_value_model(tmp_path / "critic", model)
        lm = AutoModelForCausalLM.from_pretrained(model)
        critic = AutoModelForSequenceClassification.from_pretrained(init)
        for options in ({"whiten": False}, {}):
            settings = CriticConfig(init=init, value_clip=0.1)
            config = replace(_CONFIG, lr=0.0, loss="ppo", critic=settings, advantages="gae", advantages_options=options)
            opened = self._with_critic(model, config)
            if opened is None:
                return
            expected = reference_estimates(critic, batch, config)
            of_values = reference_value_loss(critic, batch, expected, config).item()
            loss = reference_loss(lm, batch, config, advantages=expected.advantages).item()
            with closing(opened) as backend:
                found = [backend.step([batch])]
                if not options:
                    with _raises(TrainerConfigError, "whiten = false"):
                        backend.accumulate([each for each in batch if each.group == 0])
                else:
                    backend.accumulate([each for each in batch if each.group == 0])
                    found.append(backend.apply([each for each in batch if each.group != 0]))
            for metrics in found:
                assert abs(metrics["loss"] - loss) <= self.tolerance, f"{metrics['loss']} and {loss}"
                assert abs(metrics["value_loss"] - of_values) <= self.tolerance

    def test_a_checkpoint_brings_back_the_critic_bit_for_bit(self, tmp_path: Path) -> None:
        directory, model = tmp_path / "7", _model(tmp_path)
        config = replace(_CONFIG, loss="ppo")
        opened = self._with_critic(model, config)
        if opened is None:
            return
        with closing(opened) as backend:
            backend.step([_batch(3)])
            saved = backend.save(directory, 7)
            after = [backend.step([_batch(seed)]) for seed in (4, 5)], _weights(backend)
            saved.result(60)
        with closing(self.build(model, config)) as backend:  # another one, whose critic began anew
            assert backend.load(directory) == 7
            again = [backend.step([_batch(seed)]) for seed in (4, 5)], _weights(backend)
        told = [
            [{k: v for k, v in one.items() if not k.endswith("_s")} for one in steps] for steps, _ in (after, again)
        ]
        assert told[0] == told[1]
        assert _differ(after[1], again[1]) == 0
        with closing(self.build(model, replace(_CONFIG, loss="ppo", advantages="group"))) as backend:
            before = _weights(backend)
            with _raises(CheckpointError, "found a checkpoint with a critic, expected one without one"):
                backend.load(directory)
            assert _differ(_weights(backend), before) == 0

    def test_the_proximal_policy_of_a_second_mini_batch_is_that_before_the_first(self, tmp_path: Path) -> None:
        import pytest
        from transformers import AutoModelForCausalLM

        model, batch = _model(tmp_path), _batch(8)
        halves = [batch[:8], batch[8:]]  # groups of 4
        config = replace(_CONFIG, loss="decoupled-ppo")
        before, after = (AutoModelForCausalLM.from_pretrained(model) for _ in range(2))
        with closing(self.build(model, config)) as backend:
            backend.step(halves[:1])
            weights = _weights(backend)
        if not weights.keys() <= dict(after.named_parameters()).keys():
            pytest.skip("its weights are an adapter's")
        after.load_state_dict(weights, strict=False)
        losses = [reference_loss(before, halves[0], config), reference_loss(after, halves[1], config, proximal=before)]
        with closing(self.build(model, config)) as backend:
            found = backend.step(halves)
        assert abs(found["loss"] - sum(loss.item() for loss in losses) / 2) <= self.tolerance

    def test_a_checkpoint_brings_back_weights_and_optimizer_bit_for_bit(self, tmp_path: Path) -> None:
        from tailrace.trainer import load_weights_file

        directory = tmp_path / "7"
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            backend.step([_batch(3)])
            saved, at = backend.save(directory, 7), _weights(backend)
            backend.step([_batch(4)])
            after = _weights(backend)
            saved.result(60)
            assert _differ(dict(load_weights_file(directory)), at) == 0
            assert backend.load(directory) == 7
            assert _differ(_weights(backend), at) == 0
            backend.step([_batch(4)])
            assert _differ(_weights(backend), after) == 0

    def test_newer_weights_stand_beside_the_optimizer_of_a_checkpoint(self, tmp_path: Path) -> None:
        """The parameters are the newer ones; moments and the schedule are the checkpoint's."""
        directory = tmp_path / "7"
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            backend.step([_batch(3)])
            backend.save(directory, 7).result(60)
            backend.step([_batch(4)])
            newer = _weights(backend)
            backend.step([_batch(5)])
            straight = _weights(backend)
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            before, first = _weights(backend), next(iter(newer))
            for wrong in ({name: newer[name] for name in newer if name != first}, newer | {first: newer[first][:1]}):
                with _raises(CheckpointError, "of another model"):
                    backend.load(directory, wrong)
            assert _differ(_weights(backend), before) == 0
            assert backend.load(directory, newer) == 7
            assert _differ(_weights(backend), newer) == 0
            backend.step([_batch(5)])
            assert _differ(_weights(backend), straight) > 0  # the moments of one step are lost
            assert backend.load(directory) == 7
            assert _differ(_weights(backend), newer) > 0

    def test_a_missing_checkpoint_is_named(self, tmp_path: Path) -> None:
        import pytest

        with (
            closing(self.build(_model(tmp_path), self.config)) as backend,
            pytest.raises(CheckpointError, match="none"),
        ):
            backend.load(tmp_path / "none")

    def test_a_batch_that_cannot_be_trained_on_changes_nothing(self, tmp_path: Path) -> None:
        import pytest

        batch = _batch(5)
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            before = _weights(backend)
            with pytest.raises(BatchError):
                backend.step([[*batch[:-1], replace(batch[-1], reward=math.nan)]])
            assert _differ(_weights(backend), before) == 0

    def test_a_pass_that_an_exception_ends_leaves_nothing_for_the_next_step(self, tmp_path: Path) -> None:
        config, model = replace(self.config, micro_batch_tokens=64), _model(tmp_path)
        with closing(self.build(model, config)) as backend:
            before = _weights(backend)
            backend.step([_batch(5)])
            expected = _weights(backend)
        for place in ("forward", "backward", "ended"):
            with closing(self.build(model, config)) as backend:
                count = _Count(place, 2)
                backend.on_phase = count
                if place == "ended" and not backend.watch_micro_batches(partial(count, "ended")):
                    continue
                with _raises(_PassError, place):
                    backend.step([_batch(6)])
                count.left = 2
                with _raises(_PassError, place):
                    backend.accumulate(_batch(6))
                assert _differ(_weights(backend), before) == 0
                backend.step([_batch(5)])
                assert _differ(_weights(backend), expected) == 0, place

    def test_the_layout_is_that_of_weights_and_shards(self, tmp_path: Path) -> None:
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            layout, weights = backend.layout(), _weights(backend)
            assert {each.name: tuple(each.shape) for each in layout.tensors} == {
                name: tuple(tensor.shape) for name, tensor in weights.items()
            }
            shards = {name: tuple(tensor.shape) for name, tensor in backend.shards()}
            assert shards == {each.name: tuple(each.shape) for each in layout.shards["rank0"].buffers}

    def test_what_is_offloaded_comes_back_bit_for_bit_or_is_refused_by_name(self, tmp_path: Path) -> None:
        found = []
        for away in (False, True):
            with closing(self.build(_model(tmp_path), _CONFIG)) as backend:
                backend.step([_batch(7)])
                if away:
                    try:
                        backend.offload(["optimizer", "parameters"])
                    except TrainerConfigError as error:
                        if "offload" not in str(error):
                            raise
                    else:
                        backend.onload(["optimizer", "parameters"])
                backend.step([_batch(8)])
                found.append(_weights(backend))
        assert _differ(*found) == 0

    def test_phases_and_micro_batches_are_told(self, tmp_path: Path) -> None:
        phases: list[str] = []
        expected: list[int] = []
        config = replace(self.config, micro_batch_tokens=64)
        with closing(self.build(_model(tmp_path), config)) as backend:
            backend.on_phase = phases.append
            watched = backend.watch_micro_batches(lambda: expected.append(backend.expected_micro_batches))
            backend.step([_batch(6)])
        assert phases[0] == "forward"
        assert phases[-1] == "optimizer"
        assert set(phases) == {"forward", "backward", "optimizer"}
        assert bool(expected) == watched


class _PassError(Exception):
    """Ends a pass."""


class _Count:
    """Counts down each time that it is told of its place, and raises at the last."""

    def __init__(self, place: str, left: int) -> None:
        self.place, self.left = place, left

    def __call__(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                raise _PassError(place)


def _model(directory: Path) -> Path:
    from tailrace.trainer.small_model import build_model

    sizes = {"hidden": 16, "layers": 2, "head_dim": 8, "mlp": 32, "max_positions": 64}
    return build_model(directory / "model", vocab_size=_VOCABULARY, **sizes)


def _batch(seed: int) -> list[Experience]:
    """Three groups, the rewards of each of which differ."""
    made = make_experiences(3, 4, vocab_size=_VOCABULARY, seed=seed)
    return [replace(each, reward=float(place % 2)) for place, each in enumerate(made)]


def _weights(backend: TrainingBackend) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in backend.weights()}


def _differ(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between two sets of tensors, which must have the same names."""
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def _raises(kind: type[BaseException], words: str) -> Any:
    """``pytest.raises`` of an error that has these words; pytest is imported by tests alone."""
    import re

    import pytest

    return pytest.raises(kind, match=re.escape(words))


def build_value_model(directory: Path, model: Path, *, labels: int = 1, seed: int = 0) -> Path:
    """Write a causal LM's directory as that of a value model: a sequence classifier, with a random head of about unit values.

    Args:
        directory: the directory to create.
        model: directory of a causal LM.
        labels: rows of the head.
        seed: seed of the head.

    Returns:
        The directory.
    """
    import shutil

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForSequenceClassification

    lm = AutoModelForSequenceClassification.from_pretrained(model, num_labels=labels)
    draw = torch.Generator().manual_seed(seed)
    lm.score.weight.data = torch.randn(lm.score.weight.shape, generator=draw) / lm.score.weight.shape[1] ** 0.5
    shutil.copytree(model, directory)
    lm.config.architectures = [type(lm).__name__]
    lm.config.save_pretrained(directory)
    save_file({name: tensor.detach() for name, tensor in lm.named_parameters()}, str(directory / "model.safetensors"))
    return directory


def inside(worker: Any) -> Any:
    """The backend's part of a `TrainerWorker`, whichever it is: for tests that look at one backend's own attributes."""
    return worker._model
