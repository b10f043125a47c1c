"""The experience buffer in TorchRL's replay buffers: samplers, writes, and that each trajectory is consumed once."""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("torchrl", reason="needs the extra torchrl")

import torch
from tensordict import TensorDict, lazy_stack
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import SamplerWithoutReplacement
from torchrl.data.replay_buffers.samplers import (
    PrioritizedSampler,
    PromptGroupSampler,
    RandomSampler,
    StalenessAwareSampler,
)

from tailrace.contracts import FinishReason
from tailrace.trajstore import (
    AlreadyConsumedError,
    Assignment,
    PartialDelta,
    RewardVariance,
    Status,
    TrajectoryDataError,
    TrajectoryStateError,
    TrajectoryStore,
)
from tailrace.trajstore.torchrl import ExperienceStorage, GroupSampler


@pytest.fixture
def store():
    with TrajectoryStore(mixed_versions=True) as store:
        yield store


def generate(store, group, number, *, version=3, length=None, reward=1.0):
    """A finished trajectory: its tokens are those of its length, so that each differs."""
    name, length = f"{group}.{number}", length or 1 + (5 * group + 3 * number) % 7
    store.begin("replica", version, [Assignment(name, group, tuple(range(1, 3 + group)))])
    tokens = tuple(100 * group + 10 * number + place for place in range(length))
    logprobs = tuple(-0.5 - token / 1024 for token in tokens)
    assert not store.append("replica", [PartialDelta(name, 0, version, tokens, logprobs, FinishReason.STOP)])
    if reward is not None:
        store.set_reward(name, reward)
    return name


def buffer(store, sampler=None, batch_size=4, kind=TensorDictReplayBuffer, **options):
    storage = ExperienceStorage(store)
    return kind(storage=storage, collate_fn=storage.collate, sampler=sampler, batch_size=batch_size, **options)


def test_an_item_is_what_the_store_has_of_a_trajectory(store):
    generate(store, 2, 0, version=3, length=4, reward=0.25)
    store.begin("a", 1, [Assignment("turns", 5, (7, 8))])
    store.append("a", [PartialDelta("turns", 0, 1, (20, 21), (-0.5, -0.25), turn_ends=True)])
    (talk,) = store.conversations(["turns"])
    store.observe("turns", talk.turns[-1].serial, (30,))
    store.begin("b", 2, [Assignment("turns", 5, (7, 8))])
    store.append("b", [PartialDelta("turns", 3, 2, (22,), (-1.0,), FinishReason.STOP)], trainer_version=4)
    store.set_reward("turns", -1.0)
    item = ExperienceStorage(store)[1]
    assert item.batch_size == torch.Size([])
    assert item["trajectory"] == "turns"
    assert item["group"] == 5
    assert item["tokens", "prompt"].tolist() == [7, 8]
    assert item["tokens", "response"].tolist() == [20, 21, 30, 22]
    assert item["tokens", "full"].tolist() == [7, 8, 20, 21, 30, 22]
    assert item["masks", "all_assistant_mask"].tolist() == [False, False, True, True, False, True]
    assert torch.equal(
        item["log_probs", "full"].nan_to_num(9.0), torch.tensor([9.0, 9.0, -0.5, -0.25, 9.0, -1.0])
    )  # NaN, for which TorchRL's losses leave a token out
    assert item["versions"].tolist() == [1, 1, 1, 2]
    assert (item["policy_version"], item["completed_version"]) == (1, 4)
    assert (item["next", "reward"], item["next", "done"]) == (-1.0, True)


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement, StalenessAwareSampler, GroupSampler])
def test_trajectories_of_unequal_length_come_out_as_they_went_in(store, kind, sampler):
    names = [generate(store, group, number) for group in range(3) for number in range(2)]
    sampler = sampler(2) if sampler is GroupSampler else sampler()
    batch = buffer(store, sampler, 4, kind).sample()
    assert batch.batch_size == torch.Size([4])
    assert set(batch["trajectory"]) <= set(names)
    wanted = {experience.trajectory: experience for experience in store.experiences(names)}
    lengths = set()
    for item in batch.unbind(0):
        experience = wanted[item["trajectory"]]
        assert item["tokens", "response"].tolist() == list(experience.tokens)
        assert item["log_probs", "response"].tolist() == list(experience.logprobs)  # float32 has these exactly
        lengths.add(len(experience.tokens))
    padded = batch.get(("tokens", "full"), as_padded_tensor=True, padding_side="left", padding_value=-100)
    assert padded.shape == (4, max(len(item["tokens", "full"]) for item in batch.unbind(0)))


def test_only_what_may_be_trained_on_is_seen(store):
    seen = generate(store, 0, 0)
    generate(store, 0, 1, reward=None)  # not scored yet
    store.begin("replica", 3, [Assignment("0.2", 0, (1, 2))])  # not finished
    store.begin("replica", 3, [Assignment("eval", 0, (1, 2), purpose="eval")])
    store.append("replica", [PartialDelta("eval", 0, 3, (1,), (-1.0,), FinishReason.STOP)])
    store.set_reward("eval", 1.0)
    gone = generate(store, 0, 3)
    store.discard([gone], "too old")
    replay = buffer(store)
    assert len(replay) == 1
    assert [item["trajectory"] for item in replay[:].unbind(0)] == [seen]
    assert replay.storage.contains(torch.tensor([0, 1, -1])).tolist() == [True, False, False]


def test_a_batch_is_consumed_once_and_leaves(store):
    for number in range(4):
        generate(store, 0, number)
    replay = buffer(store, SamplerWithoutReplacement(), 2)
    batch = replay.sample()
    replay.storage.consume(batch, 4)
    replay.storage.consume(batch, 4)  # the answer may have been lost
    assert len(replay) == 2
    rest = replay.sample()
    assert not set(rest["trajectory"]) & set(batch["trajectory"])
    with pytest.raises(AlreadyConsumedError, match=r"found consumed for version 4, expected never consumed"):
        replay.storage.consume([*rest["trajectory"], *batch["trajectory"]], 5)
    assert store.statuses(rest["trajectory"]) == dict.fromkeys(rest["trajectory"], Status.COMPLETE)  # all or none
    assert len(replay) == 2


def test_group_sampler_hands_out_whole_groups_once(store):
    for number in range(2):
        for group in range(3):
            generate(store, group, number)
    generate(store, 3, 0)  # half a group
    sampler = GroupSampler(2)
    replay = buffer(store, sampler, 4)
    assert replay.can_sample()
    batch, info = replay.sample(return_info=True)
    assert list(batch["trajectory"]) == ["0.0", "0.1", "1.0", "1.1"]
    assert info["staleness"].tolist() == [-3] * 4  # nothing was consumed yet: the trainer is at version 0
    assert not replay.can_sample()
    with pytest.raises(
        TrajectoryStateError, match=r"found 1 complete groups of 2 in the experience buffer, expected 2"
    ):
        replay.sample()
    assert len(replay) == 3  # other samplers do not see what was handed out
    replay.storage.release(batch)
    assert list(replay.sample()["trajectory"]) == [
        "2.0",
        "2.1",
        "0.0",
        "0.1",
    ]  # it has been whole for longer than what came back
    generate(store, 3, 1)
    assert set(replay.sample()["trajectory"]) == {"1.0", "1.1", "3.0", "3.1"}
    with pytest.raises(ValueError, match=r"found batch_size=3, expected a multiple of group_size=2"):
        replay.sample(3)


def test_group_sampler_takes_a_policy(store):
    for group, rewards in enumerate([(1.0, 1.0), (0.0, 1.0), (0.0, 0.5)]):
        for number, reward in enumerate(rewards):
            generate(store, group, number, reward=reward)
    replay = buffer(store, GroupSampler(2, RewardVariance()), 2)
    assert [replay.sample()["group"].tolist() for _ in range(3)] == [[1, 1], [2, 2], [0, 0]]


def test_prompt_group_sampler_of_torchrl_sees_what_was_consumed(store):
    for group in range(2):
        for number in range(2):
            generate(store, group, number)
    replay = buffer(store, PromptGroupSampler(num_groups=1, group_key="group"), 2)
    batch = replay.sample()
    replay.storage.consume(batch, 4)
    generate(store, 7, 0)
    generate(store, 7, 1)  # as many as before, others
    seen = {tuple(replay.sample()["trajectory"]) for _ in range(20)}
    assert not {name for names in seen for name in names} & set(batch["trajectory"])


def test_staleness_aware_sampler_keeps_its_bound(store):
    for number in range(4):
        generate(store, 0, number, version=number)
    sampler = StalenessAwareSampler(max_staleness=1)
    sampler.consumer_version = 3
    batch = buffer(store, sampler, 2).sample()
    assert sorted(batch["policy_version"].tolist()) == [2, 3]


def test_threads_over_one_store_train_on_each_trajectory_once(store):
    """Some add, some train, each with a buffer of its own over one storage."""
    seed = random.randrange(2**32)
    print("seed", seed)
    torch.manual_seed(seed)
    storage, stop, trained, failures = ExperienceStorage(store), threading.Event(), [], []

    def train(number):
        replay = TensorDictReplayBuffer(
            storage=storage, collate_fn=storage.collate, sampler=GroupSampler(2), batch_size=4
        )
        dice = random.Random(seed + number)
        try:
            while not stop.is_set():
                try:
                    batch = replay.sample()
                except TrajectoryStateError:
                    continue
                if dice.random() < 0.2:
                    storage.release(batch)  # a step that was given up
                    continue
                storage.consume(batch, 1)
                trained.append(list(batch["trajectory"]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    names = [generate(store, group, number) for group in range(20) for number in range(2)]
    for _ in range(2000):
        if len(trained) == 10 or failures:
            break
        stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert sorted(name for batch in trained for name in batch) == sorted(names)
    assert store.audit()["consumed_twice"] == []


@pytest.mark.deep
def test_a_process_that_dies_between_sample_and_consume_loses_and_repeats_nothing(tmp_path):
    program = """
import os, signal, sys
from torchrl.data import TensorDictReplayBuffer
from tailrace.trajstore import TrajectoryStore
from tailrace.trajstore.torchrl import ExperienceStorage, GroupSampler
with TrajectoryStore("run.db") as store:
    storage = ExperienceStorage(store)
    replay = TensorDictReplayBuffer(storage=storage, collate_fn=storage.collate, sampler=GroupSampler(2), batch_size=2)
    batch = replay.sample()
    storage.consume(batch, 1)
    print("consumed", *batch["trajectory"])
    print("sampled", *replay.sample()["trajectory"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with TrajectoryStore(tmp_path / "run.db") as store:
        for group in range(2):
            for number in range(2):
                generate(store, group, number)
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert found.returncode == -signal.SIGKILL, found.stderr
    consumed, sampled = (line.split()[1:] for line in found.stdout.splitlines())
    with TrajectoryStore(tmp_path / "run.db") as store:
        replay = buffer(store, GroupSampler(2), 2)
        assert list(replay.sample()["trajectory"]) == sampled
        assert not replay.can_sample()
        assert set(store.statuses(consumed).values()) == {Status.CONSUMED}


def test_what_a_buffer_is_extended_with_is_stored(store):
    for number in range(3):
        generate(store, 4, number, length=2 + number)
    items = [item.clone() for item in ExperienceStorage(store)[:].unbind(0)]
    with TrajectoryStore(mixed_versions=True) as other:
        replay = buffer(other)
        replay.extend(lazy_stack(items[:2]))
        replay.add(items[2])
        assert len(replay) == 3
        for wrote, read in zip(items, replay[:].unbind(0), strict=True):
            assert (wrote.exclude("completed_version").to_dict().keys()) == read.exclude(
                "completed_version"
            ).to_dict().keys()
            for key in [("tokens", "full"), ("log_probs", "response"), "versions", ("next", "reward"), "group"]:
                assert torch.equal(wrote[key], read[key]), key
        bare = TensorDict(
            {
                "tokens": {"prompt": torch.tensor([1]), "response": torch.tensor([2, 3])},
                "log_probs": {"response": torch.tensor([-1.0, -2.0])},
                "next": {"reward": torch.tensor([[0.5]])},
                "group": torch.tensor(9),
                "policy_version": torch.tensor(6),
            }
        )
        replay.add(bare)
        stored = replay[3]
        assert stored["trajectory"].startswith("torchrl-")
        assert stored["versions"].tolist() == [6, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda item: item.del_("group"), r"found no tensor group, expected one in each item"),
        (lambda item: item.set(("log_probs", "response"), torch.zeros(1)), r"found 2 response tokens and 1 log-prob"),
        (lambda item: item.set("versions", torch.zeros(3)), r"found 3 versions for 2 response tokens and 1 rewards"),
        (
            lambda item: item.set(("log_probs", "response"), torch.tensor([-1.0, torch.nan])),
            r"found response tokens without a log-probability, expected generated ones alone",
        ),
    ],
)
def test_an_item_that_does_not_fit_is_one_line_and_stores_nothing(store, change, message):
    generate(store, 0, 0, length=2)
    good = ExperienceStorage(store)[0].clone()
    bad = good.clone()
    change(bad)
    with TrajectoryStore() as other:
        replay = buffer(other)
        with pytest.raises(TrajectoryDataError, match=message) as found:
            replay.extend(lazy_stack([good, bad]))
        assert "\n" not in str(found.value)
        assert other.audit()["total"] == 0


def test_what_does_not_fit_a_store_is_refused(store, tmp_path):
    generate(store, 0, 0)
    replay = buffer(store)
    item = replay[0].clone()
    for write in (
        lambda: replay.__setitem__(0, item),
        lambda: replay.set_(("next", "reward"), torch.zeros(1, 1)),
        lambda: replay.add(item),  # of an id that is there
        replay.empty,
        lambda: pickle.dumps(replay),
        lambda: buffer(store, PrioritizedSampler.__new__(PrioritizedSampler)),  # its extension is not in every wheel
    ):
        with pytest.raises(TrajectoryStateError, match=r"found .*, expected ") as found:
            write()
        assert "\n" not in str(found.value)
    assert replay[0]["next", "reward"] == 1.0


@pytest.mark.parametrize("masking", ["sft", "rlhf", "generic"])
def test_torchrls_own_loss_trains_on_the_generated_tokens_of_a_batch(store, masking):
    """GRPOLoss with a model of transformers, against the loss token by token; an environment's tokens are left out."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models
    from torchrl.modules.llm import TransformersWrapper
    from torchrl.objectives.llm import GRPOLoss

    store.begin("a", 1, [Assignment("0.0", 0, (7, 8)), Assignment("0.1", 0, (7, 8))])
    store.append("a", [PartialDelta("0.0", 0, 1, (20, 21), (-4.0, -4.5), turn_ends=True)])
    (talk,) = store.conversations(["0.0"])
    store.observe("0.0", talk.turns[-1].serial, (30, 31))
    store.append("a", [PartialDelta("0.0", 4, 1, (22,), (-4.2,), FinishReason.STOP)])
    store.append("a", [PartialDelta("0.1", 0, 1, (11, 12, 13, 14), (-4.1, -4.2, -3.9, -4.4), FinishReason.STOP)])
    for number, reward in enumerate([1.0, 0.0]):
        store.set_reward(f"0.{number}", reward)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=8,
        num_key_value_heads=1,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    words = Tokenizer(models.WordLevel({"pad": 0}, unk_token="pad"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad")
    actor = TransformersWrapper(model, tokenizer=tokenizer, input_mode="tokens", generate=False)
    batch = buffer(store, GroupSampler(2), 2).sample()
    batch["advantage"] = 2 * batch["next", "reward"].unsqueeze(-1) - 1
    found = GRPOLoss(actor, entropy_bonus=False, masking_strategy=masking)(batch).loss_objective

    losses = []
    for experience, advantage in zip(store.experiences(["0.0", "0.1"]), (1.0, -1.0), strict=True):
        tokens = [*experience.prompt, *experience.tokens]
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        for place, token in enumerate(experience.tokens):
            if experience.generated[place]:
                ratio = (logprobs[len(experience.prompt) + place - 1, token] - experience.logprobs[place]).exp()
                losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    assert len(losses) == 7
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each, list(model.parameters()), retain_graph=True) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_a_checkpoint_of_the_buffer_frees_what_was_trained_on_later(store, tmp_path, way):
    for number in range(4):
        generate(store, 0, number)
    replay = buffer(store, SamplerWithoutReplacement(), 2)
    first = replay.sample()
    replay.storage.consume(first, 1)
    state = replay.state_dict() if way == "state_dict" else replay.dumps(tmp_path / "buffer")
    second = replay.sample()
    replay.storage.consume(second, 2)
    assert len(replay) == 0
    replay.load_state_dict(state) if way == "state_dict" else replay.loads(tmp_path / "buffer")
    assert {item["trajectory"] for item in replay[:].unbind(0)} == set(second["trajectory"])
    assert os.listdir(tmp_path) == ([] if way == "state_dict" else ["buffer"])  # noqa: PTH208
