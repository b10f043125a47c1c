"""A replica compares what its engine has with what was published: any fault of a load shows, and nothing else does."""

import itertools
import logging
import math
import random
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

import torch

from tailrace.contracts import (
    AdapterWeights,
    Finished,
    Lend,
    Pulled,
    PullFailed,
    Return,
    Snapshot,
    UnreadableWeightsError,
    WeightBox,
    WeightDigest,
    WeightSlice,
)
from tailrace.rollout import OptionError, ReplicaCrashedError, WeightComparison, WeightsDifferError, digest_of
from tailrace.rollout.served_weights import WeightSample, read_whole, sampled_boxes
from tailrace.rollout.testing import FakeEngine, MemorySource, MemoryWeights, TensorFakeEngine
from tailrace.rollout.testing.fakes import fake_weights

from .replica_harness import Harness, prompts, route

SHAPES = [(), (1,), (7,), (4000,), (1, 3000), (5, 8), (90, 70), (300, 4), (3, 3000), (6, 40, 30), (2, 3, 50, 20)]


def indices(box):
    return set(itertools.product(*(range(first, last) for first, last in box)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("elements", [1, 16, 100, 640, 10**6])
def test_places_are_in_the_parameter_and_no_more_than_asked_for(shape, elements):
    for seed in ("a", "b"):
        boxes = sampled_boxes(shape, elements, seed)
        assert boxes == sampled_boxes(shape, elements, seed)
        assert all(0 <= first < last <= size for box in boxes for (first, last), size in zip(box, shape, strict=True))
        stacked = shape[:-2]
        for place in itertools.product(*map(range, stacked)):
            here = [box for box in boxes if all(a <= at < b for (a, b), at in zip(box, place, strict=False))]
            found = set().union(*(indices(box[len(stacked) :]) for box in here))
            matrix = math.prod(shape[-2:])
            assert 0 < len(found) <= max(elements, 16)
            assert len(found) == matrix or matrix > elements
            if len(shape) == 2 and shape[0] >= 16:  # every part of the rows, so the shard of each rank
                parts = [(run * shape[0] // 16, (run + 1) * shape[0] // 16) for run in range(16)]
                assert all(any(first <= row < last for row, _ in found) for first, last in parts)


def pieces_of(random_, name, tensor):
    """A tensor cut at random places in every dimension, in a random order."""
    cuts = []
    for size in tensor.shape:
        inner = sorted(random_.sample(range(1, size), min(size - 1, random_.randrange(3)))) if size > 1 else []
        edges = [0, *inner, size]
        cuts.append([slice(a, b) for a, b in itertools.pairwise(edges)])
    parts = [WeightSlice(name, tuple(tensor.shape), index, tensor[index]) for index in itertools.product(*cuts)]
    random_.shuffle(parts)
    return parts


def serves(tensors, boxes, dtype, *, workers=1):
    """An honest engine, element by element: each worker has rows of each tensor, the last dimension whole."""
    answers = []
    for name, shape, box in boxes:
        rows = [box[0]] if not shape else None
        for worker in range(workers if shape else 1):
            if not shape:
                part = ()
            else:
                step = -(-shape[0] // workers)
                rows = (max(box[0][0], worker * step), min(box[0][1], (worker + 1) * step))
                if rows[0] >= rows[1]:
                    continue
                part = (rows, *box[1:])
            values = [tensors[name][index].item() for index in itertools.product(*(range(a, b) for a, b in part))]
            told = digest_of(torch.tensor(values, dtype=tensors[name].dtype).to(dtype))
            answers.append(WeightDigest(name, part, str(dtype).removeprefix("torch."), told, worker))
    return answers


@pytest.mark.parametrize("seed", range(8))
def test_slices_in_any_order_give_the_sample_of_the_whole_and_each_wrong_element_of_it_shows(seed):
    random_ = random.Random(seed)
    torch.manual_seed(seed)
    published = random_.choice([torch.float32, torch.bfloat16])
    has = random_.choice([torch.float32, torch.bfloat16, torch.float16])
    tensors = {f"p{i}": torch.randn(shape).to(published) for i, shape in enumerate(random_.sample(SHAPES[1:], 4))}
    sample = WeightSample(3, random_.choice([64, 256, 1 << 20]), f"{seed}")
    assert not sample
    parts = [part for name, tensor in tensors.items() for part in pieces_of(random_, name, tensor)]
    random_.shuffle(parts)
    for part in parts:
        sample.take(part)
    boxes = sample.boxes()
    workers = random_.choice([1, 2, 3])
    sample.check(serves(tensors, boxes, has, workers=workers))
    for _ in range(4):
        box = random_.choice(boxes)
        where = random_.choice(sorted(indices(box.box)))
        wrong = {name: tensor.clone() for name, tensor in tensors.items()}
        wrong[box.name][where] += 1.0
        with pytest.raises(
            WeightsDifferError, match=rf"^parameter '{box.name}' of version 3, elements .*found the digest"
        ):
            sample.check(serves(wrong, boxes, has, workers=workers))
    dropped = serves(tensors, boxes, has, workers=workers)
    del dropped[random_.randrange(len(dropped))]
    with pytest.raises(WeightsDifferError, match="no worker has all of them"):
        sample.check(dropped)


@pytest.mark.parametrize(
    "fault", ["the other rank's rows", "the other rank's columns", "the former version", "a transpose"]
)
@pytest.mark.parametrize("seed", range(5))
def test_a_shard_of_another_rank_shows_in_a_small_sample(fault, seed):
    torch.manual_seed(seed)
    tensor, former = torch.randn(512, 512), torch.randn(512, 512)
    served = {
        "the other rank's rows": torch.cat([tensor[:256], tensor[:256]]),
        "the other rank's columns": torch.cat([tensor[:, :256], tensor[:, :256]], dim=1),
        "the former version": former,
        "a transpose": tensor.T.contiguous(),
    }[fault]
    sample = WeightSample(1, 2048, f"r0 {seed}")  # 1/512 of it
    sample.take(WeightSlice("w", (512, 512), (), tensor))
    sample.check([WeightDigest("w", box, "float32", digest_of(_cut(tensor, box))) for _, _, box in sample.boxes()])
    with pytest.raises(WeightsDifferError):
        sample.check([WeightDigest("w", box, "float32", digest_of(_cut(served, box))) for _, _, box in sample.boxes()])


def _cut(tensor, box):
    return tensor[tuple(slice(first, last) for first, last in box)]


@pytest.mark.parametrize("rows", [None, (0, 1), (1, 3)])
def test_what_a_second_worker_has_of_a_box_shows_beside_one_that_has_it_whole(rows):
    tensors = {"w": torch.arange(3 * 300.0).view(3, 300)}
    sample = WeightSample(3, 64, "twice")
    sample.take(WeightSlice("w", (3, 300), (), tensors["w"]))
    boxes = sample.boxes()
    whole = serves(tensors, boxes, torch.float32)
    for box in boxes:
        (first, last), columns = box.box
        mine = (first, last) if rows is None else (max(first, rows[0]), min(last, rows[1]))
        if mine[0] >= mine[1]:
            continue
        part = (mine, columns)
        for other in (tensors, {"w": tensors["w"] + 1}):
            (again,) = serves(other, [WeightBox("w", (3, 300), part)], torch.float32)
            if other is tensors:
                sample.check([*whole, again._replace(worker=1)])
            else:
                with pytest.raises(WeightsDifferError, match="in worker 1"):
                    sample.check([*whole, again._replace(worker=1)])


def test_elements_that_were_never_published_are_told_apart():
    sample = WeightSample(2, 1 << 20, "")
    tensor = torch.zeros(4, 4)
    sample.take(WeightSlice("w", (4, 4), (slice(0, 2), slice(0, 4)), tensor[:2]))
    with pytest.raises(WeightsDifferError, match="found no published elements there"):
        sample.check([WeightDigest("w", ((0, 4), (0, 4)), "float32", digest_of(tensor))])


def test_a_parameter_without_elements_hides_no_other_one():
    tensors = {"none": torch.zeros(0, 5), "w": torch.ones(3)}
    sample = WeightSample(2, 1 << 20, "")
    for name, tensor in tensors.items():
        sample.take(WeightSlice(name, tuple(tensor.shape), (), tensor))
    sample.check(read_whole(tensors, sample.boxes()))
    with pytest.raises(WeightsDifferError, match="parameter 'w'"):
        sample.check(read_whole({**tensors, "w": torch.zeros(3)}, sample.boxes()))


# ---- in a replica ------------------------------------------------------------------------------------------------------

VERSIONS = MemoryWeights(
    {version: fake_weights(100 + version) | {"v": torch.full((2, 3), version)} for version in range(4)}
)


class Lying(TensorFakeEngine):
    """It keeps a parameter as it was in every load whose number is among its lies."""

    def __init__(self, name, lies):
        super().__init__()
        self.name, self.lies, self.loads = name, lies, 0

    def load_weights(self, weights):
        before = self.tensors
        super().load_weights(weights)
        self.loads += 1
        if self.loads in self.lies:
            self.tensors[self.name] = before.get(self.name, torch.zeros_like(self.tensors[self.name]))


@pytest.mark.parametrize(("name", "lies", "failed"), [("w", (1,), 1), ("v", (2,), 2), ("w", (), 0)])
def test_a_replica_serves_nothing_whose_engine_has_other_weights(name, lies, failed):
    engine = Lying(name, lies)
    with Harness(MemorySource(prompts(1)), engine=engine, weights=VERSIONS, comparison=WeightComparison()) as h:
        h.pull(1)
        h.pull(2, seq=2)
        assert [event.version for event in h.of(PullFailed)] == [failed] * bool(failed)
        for event in h.of(PullFailed):
            assert event.differs == name
            assert event.reason.startswith(f"parameter '{name}' of version {failed}, elements [")
        assert {event.version for event in h.of(Pulled) if event.compared == 1.0} == {1, 2} - {failed}
        if failed == 2:
            h.until("a snapshot", lambda: any(event.last_seq == 2 for event in h.of(Snapshot)))
            assert h.of(Snapshot)[-1].version is None
        h.pull(3, seq=3)
        h.worker.submit(route(4, "0"))
        h.until("it to finish", lambda: h.of(Finished))
        assert set(h.source.kept["0"].versions) == {3}


class Adapting(TensorFakeEngine):
    """It applies an adapter of ``v``, and keeps the one before in every load whose number is among its lies."""

    def __init__(self, lies):
        super().__init__()
        self.load_weights(fake_weights(100).items())  # as an engine begins with the model's own weights
        self.lies, self.loads, self.matrices = lies, 0, {}

    def load_adapter(self, adapter):
        self.loads += 1
        if self.loads not in self.lies:
            ((a, b),) = adapter.layers.values()
            self.matrices = {"v.lora_A.weight": a.clone(), "v.lora_B.weight": b * adapter.scale}

    def digests(self, boxes):
        return list(read_whole({**self.tensors, **self.matrices}, boxes))


class Adapters(MemoryWeights):
    @contextmanager
    def load(self, version, timeout_s):
        draw = torch.Generator().manual_seed(version)
        pair = torch.randn(4, 3, generator=draw), torch.randn(2, 4, generator=draw)
        yield AdapterWeights({"v": pair}, 4, 0.3, lambda: fake_weights(100).items())


@pytest.mark.parametrize(("lies", "failed"), [((2,), [2]), ((1,), [1]), ((), [])])
def test_a_replica_serves_nothing_whose_engine_has_the_adapter_of_before(lies, failed):
    with Harness(MemorySource({}), engine=Adapting(lies), weights=Adapters({}), comparison=WeightComparison()) as h:
        for seq in (1, 2, 3):
            h.pull(seq, seq=seq)
        assert [event.version for event in h.of(PullFailed)] == failed
        assert all(event.differs.startswith("v.lora_") for event in h.of(PullFailed))
        assert {event.version for event in h.of(Pulled) if event.compared == 1.0} == {1, 2, 3} - set(failed)


class Forgetful(Lying):
    def sleep(self, level):
        super().sleep(level)
        self.tensors = {}


def test_weights_that_come_back_after_a_sleep_are_compared_too():
    engine = Forgetful("v", (3,))
    with Harness(
        MemorySource(prompts(1)), engine=engine, weights=VERSIONS, comparison=WeightComparison(), sleep_level=2
    ) as h:
        h.pull(1)
        h.pull(2, seq=2)
        for command in (Lend(3, "r0", (0,)), Return(4, "r0"), route(5, "0")):
            h.worker.submit(command)
        with pytest.raises(ReplicaCrashedError, match="parameter 'v' of version 2, elements"):
            h.until("the crash", lambda: False)


def test_nothing_is_compared_unless_it_is_asked_for():
    with Harness(MemorySource(prompts(1)), engine=Lying("v", (1, 2)), weights=VERSIONS) as h:
        h.pull(1)
        assert [event.compared for event in h.of(Pulled)] == [0.0]


def test_an_engine_without_digests_is_refused():
    with pytest.raises(OptionError, match=r"^found a FakeEngine, expected a [^\n]*DigestingEngine[^\n]*$"):
        Harness(MemorySource(prompts(1)), engine=FakeEngine(), comparison=WeightComparison())


class Silent(TensorFakeEngine):
    """An engine that cannot read a model back."""

    def digests(self, boxes):
        assert boxes
        assert all(isinstance(box, WeightBox) for box in boxes)
        raise UnreadableWeightsError("it keeps them in stripes")


class Quantising(Lying):
    """An engine that has one parameter in another form."""

    def digests(self, boxes):
        why = "it keeps 'w' in 8 bits"
        return [
            WeightDigest(name, box, "", "", unreadable=why) if name == "w" else told
            for (name, _, box), told in zip(boxes, super().digests(boxes), strict=True)
        ]


@pytest.mark.parametrize("lies", [(), (2,)])
def test_what_an_engine_has_in_another_form_is_told_and_the_rest_is_compared(caplog, lies):
    caplog.set_level(logging.WARNING)
    elements = {name: torch.as_tensor(tensor).numel() for name, tensor in VERSIONS.versions[1].items()}
    with Harness(MemorySource({}), engine=Quantising("v", lies), weights=VERSIONS, comparison=WeightComparison()) as h:
        h.pull(1)
        h.pull(2, seq=2)
        assert [event.differs for event in h.of(PullFailed)] == ["v"] * len(lies)
        share = 1 - elements["w"] / sum(elements.values())
        assert [event.compared for event in h.of(Pulled)] == [pytest.approx(share)] * (2 - len(lies))
    told = [record.message for record in caplog.records if "in 8 bits" in record.message]
    assert told == ["replica r0 does not compare all that it serves with what was published: it keeps 'w' in 8 bits"]
    required = WeightComparison(required=True)
    with Harness(MemorySource({}), engine=Quantising("v", ()), weights=VERSIONS, comparison=required) as h:
        h.pull(1)
        assert "it keeps 'w' in 8 bits" in h.of(PullFailed)[0].reason


def test_an_engine_that_cannot_read_a_model_back_says_so_once_or_fails_where_it_must(caplog):
    caplog.set_level(logging.WARNING)
    with Harness(MemorySource({}), engine=Silent(), weights=VERSIONS, comparison=WeightComparison()) as h:
        h.pull(1)
        h.pull(2, seq=2)
        assert [event.compared for event in h.of(Pulled)] == [0.0, 0.0]
    assert [record.message.count("it keeps them in stripes") for record in caplog.records] == [1]
    with Harness(MemorySource({}), engine=Silent(), weights=VERSIONS, comparison=WeightComparison(required=True)) as h:
        h.pull(1)
        assert "it keeps them in stripes" in h.of(PullFailed)[0].reason
        assert not h.of(PullFailed)[0].differs
