"""The contract of a rollout engine, as a pytest suite: subclass it and say how the engine is built."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tailrace.contracts import DigestingEngine, Engine, FinishReason, Request, Sampling, SlicedWeights, WeightSlice
from tailrace.rollout.errors import EngineBusyError, RequestError, WeightsDifferError, WeightsError
from tailrace.rollout.generation import generate
from tailrace.rollout.served_weights import WeightSample

VOCABULARY = 149


_TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
}
_WIDE = {"hidden_size": 128}  # where heads have no size of their own
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {}),
    "qwen2": ("Qwen2", _WIDE),
    "llama": ("Llama", {**_WIDE, "tie_word_embeddings": False}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "moe_intermediate_size": 64,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
}


def save_tiny_model(path: Path, seed: int, *, layers: int = 3, kind: str = "qwen3") -> Any:
    """Build the model from a config, save it as a Hugging Face model directory and return it (float32, CPU).

    The weights are large enough that the token distribution is far from uniform, so that a wrong weight shows.

    Args:
        kind: qwen3 or qwen2 (both with tied embeddings), llama, or qwen3_moe.
    """
    import torch
    import transformers

    family, sizes = _KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = getattr(transformers, f"{family}Config")(**{**_TINY, "num_hidden_layers": layers, **sizes})
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(path)
    return model


def log_probabilities(
    model: Any, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float
) -> list[float]:
    """Log-probability of each response token, from one plain forward pass; temperature 0 leaves the logits unscaled."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        scores = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        picked: list[float] = scores.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
    return picked


def greedy(model: Any, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The greedy response, one full forward pass for each token."""
    import torch

    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(length):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


def next_token_distribution(model: Any, prompt: tuple[int, ...], temperature: float) -> list[float]:
    """Probability of every token after the prompt."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1]
        distribution: list[float] = torch.softmax(logits / temperature, dim=-1).tolist()
    return distribution


# A test suite asserts, and the names of its tests say what they check.

_BATCH = 16
_SEED = 11
_TIMEOUT_S = 120.0
_BLOCK = 32
OPTIONS: Mapping[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": _BATCH,
    "block_tokens": _BLOCK,
    "seed": _SEED,
    "threads": 1,
}

Prompts = list[tuple[int, ...]]


@contextmanager
def emptied(engine: Engine) -> Iterator[None]:
    """Abort at the end what was submitted within: a test that fails leaves nothing to the next one on its engine."""
    submit, ids = engine.submit, dict[str, None]()

    def noted(requests: Sequence[Request]) -> None:
        ids.update(dict.fromkeys(request.id for request in requests))
        submit(requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "submit", noted)
        yield
    if ids:
        engine.abort([*ids])


class OnTinyModels:
    """What the suites of engines share: two tiny random Qwen3 with tied embeddings, and how the engine is built.

    Attributes:
        options: options passed to `build`, in addition to the sizes that the suite needs.
        tolerance: largest error of a log-probability; the reference is plain transformers (and PEFT) in float32 on CPU.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[float] = 1e-4

    def build(self, model_path: str, options: Mapping[str, Any]) -> Engine:
        """The engine under test."""
        raise TypeError(f"{type(self).__name__} must override build({model_path=}, {options=})")

    @pytest.fixture(scope="class")
    @classmethod
    def models(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
        """A model directory, its model, and a model with other weights."""
        folder = tmp_path_factory.mktemp("models")
        return folder / "a", save_tiny_model(folder / "a", seed=1), save_tiny_model(folder / "b", seed=2)


class EngineContract(OnTinyModels):
    """Tests of what every engine must do.

    Attributes:
        options, tolerance: see `OnTinyModels`.
        seeds: whether the engine keeps the seeds of requests, as its factory says.
        digests: whether it is a `DigestingEngine`, as its factory says.
        deterministic: whether it gives equal bits to equal calls, as its factory says.
        tells_preemptions: whether it counts preemptions and takes `kv_cache_bytes`.
        tells_cached_tokens: whether it has a prefix cache and counts what that had (`EngineStats.cached_tokens`).
    """

    seeds: ClassVar[bool] = False
    digests: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False
    tells_preemptions: ClassVar[bool] = False
    tells_cached_tokens: ClassVar[bool] = False

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, models: tuple[Path, Any, Any]) -> Iterator[Engine]:
        """One engine for the whole class, since building one takes seconds."""
        engine = cls().build(str(models[0]), {**OPTIONS, **cls.options})
        yield engine
        engine.close()

    @pytest.fixture
    def engine(self, shared: Engine, models: tuple[Path, Any, Any]) -> Iterator[Engine]:
        """The engine with the weights of the first model."""
        shared.load_weights(models[1].named_parameters())
        with emptied(shared):
            yield shared

    @pytest.fixture
    def reference(self, models: tuple[Path, Any, Any]) -> Any:
        """The first model in plain transformers."""
        return models[1]

    @pytest.fixture
    def prompts(self) -> Prompts:
        """Prompts of several lengths; some span several KV blocks, so that they can hit a prefix cache."""
        draw = random.Random(_SEED)
        return [
            tuple(draw.randrange(VOCABULARY) for _ in range(length))
            for length in (1, 2, 5, 9, 14, 20, 27, 33, 40, 65, 90, 130)
        ]

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
    def test_log_probabilities_are_those_of_plain_transformers(
        self, engine: Engine, reference: Any, prompts: Prompts, temperature: float
    ) -> None:
        responses = generate(engine, _requests(prompts, temperature, 24), _TIMEOUT_S)
        for index, prompt in enumerate(prompts):
            response = responses[str(index)]
            assert len(response.tokens) == len(response.logprobs) == 24
            expected = log_probabilities(reference, prompt, response.tokens, temperature)
            assert response.logprobs == pytest.approx(expected, abs=self.tolerance)

    def test_greedy_is_that_of_plain_transformers(self, engine: Engine, reference: Any, prompts: Prompts) -> None:
        responses = generate(engine, _requests(prompts, 0.0, 24), _TIMEOUT_S)
        for index, prompt in enumerate(prompts):
            assert responses[str(index)].tokens == greedy(reference, prompt, 24)

    def test_sampled_and_greedy_requests_run_side_by_side(self, engine: Engine, reference: Any) -> None:
        prompt = (3, 1, 4)
        requests = [Request(f"g{i}", prompt, Sampling(temperature=0, max_tokens=12)) for i in range(3)]
        requests += [Request(f"s{i}", prompt, Sampling(temperature=1, max_tokens=12)) for i in range(8)]
        responses = generate(engine, requests, _TIMEOUT_S)
        assert {responses[f"g{i}"].tokens for i in range(3)} == {greedy(reference, prompt, 12)}
        assert len({responses[f"s{i}"].tokens for i in range(8)}) > 1

    def test_abort_keeps_tokens_and_resuming_them_changes_nothing(
        self, engine: Engine, reference: Any, prompts: Prompts
    ) -> None:
        length = 48
        sampling = Sampling(temperature=0, max_tokens=length)
        tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
        logprobs: dict[str, list[float]] = {id_: [] for id_ in tokens}
        ends: dict[str, FinishReason] = {}

        def take(deltas: Any) -> None:
            for delta in deltas:
                assert delta.id not in ends, "a delta after the last one"
                assert len(delta.tokens) == len(delta.logprobs)
                tokens[delta.id] += delta.tokens
                logprobs[delta.id] += delta.logprobs
                if delta.finish is not None:
                    ends[delta.id] = delta.finish

        pending = list(tokens)
        interruptions = 0
        deadline = time.monotonic() + _TIMEOUT_S
        while pending:
            engine.submit([Request(id_, prompts[int(id_)], sampling, tuple(tokens[id_])) for id_ in pending])
            before = {id_: len(tokens[id_]) for id_ in pending}
            while any(id_ not in ends and len(tokens[id_]) < before[id_] + 15 for id_ in pending):
                take(engine.step())
                assert time.monotonic() < deadline, "the engine does not advance"
            # all tokens returned before the abort must remain, and only the abort itself may add more
            take(engine.abort([*pending, "nobody"]))
            assert engine.step() == []
            assert engine.stats().running == engine.stats().waiting == 0
            pending = [id_ for id_ in pending if id_ not in ends]
            interruptions += len(pending)
        assert interruptions >= len(prompts), "nothing was interrupted"
        for index, prompt in enumerate(prompts):
            id_ = str(index)
            assert ends[id_] is FinishReason.LENGTH
            assert tuple(tokens[id_]) == greedy(reference, prompt, length)
            expected = log_probabilities(reference, prompt, tuple(tokens[id_]), 0)
            assert logprobs[id_] == pytest.approx(expected, abs=self.tolerance)

    def test_abort_of_some_leaves_the_others_alone(self, engine: Engine, reference: Any, prompts: Prompts) -> None:
        engine.submit(_requests(prompts, 0.0, 24))
        tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
        _run_until(engine, tokens, lambda: all(len(made) >= 4 for made in tokens.values()))
        gone = [id_ for id_ in tokens if int(id_) % 2]
        for delta in engine.abort(gone):
            tokens[delta.id] += delta.tokens
        lengths = {id_: len(tokens[id_]) for id_ in gone}
        _run_until(engine, tokens, lambda: all(len(made) == 24 for id_, made in tokens.items() if id_ not in gone))
        for index, prompt in enumerate(prompts):
            made = tokens[str(index)]
            assert tuple(made) == greedy(reference, prompt, 24)[: len(made)]
        assert {id_: len(tokens[id_]) for id_ in gone} == lengths

    def test_new_weights_of_a_tied_model_are_served_and_the_old_are_not(
        self, engine: Engine, models: tuple[Path, Any, Any], prompts: Prompts
    ) -> None:
        _, old, new = models
        generate(engine, _requests(prompts, 0.0, 24), _TIMEOUT_S)  # fills whatever the engine caches
        engine.load_weights(new.named_parameters())
        responses = generate(engine, _requests(prompts, 0.0, 24), _TIMEOUT_S)
        for index, prompt in enumerate(prompts):
            response = responses[str(index)]
            assert response.tokens == greedy(new, prompt, 24)
            expected = log_probabilities(new, prompt, response.tokens, 0)
            assert response.logprobs == pytest.approx(expected, abs=self.tolerance)
            stale = log_probabilities(old, prompt, response.tokens, 0)
            assert max(abs(a - b) for a, b in zip(response.logprobs, stale, strict=True)) > 0.1

    def test_the_prefix_cache_serves_what_resumes_and_nothing_of_old_weights(
        self, engine: Engine, models: tuple[Path, Any, Any], prompts: Prompts
    ) -> None:
        if not self.tells_cached_tokens:
            pytest.skip("the engine does not say what its prefix cache had")
        _, old, new = models
        prompt = prompts[-1]
        sampling = Sampling(temperature=0, max_tokens=80)

        def until(made: list[int], count: int) -> int:
            """Generate behind what is made, interrupt at so many tokens, and tell how many tokens were cached."""
            before = engine.stats().cached_tokens
            engine.submit([Request("r", prompt, sampling, tuple(made))])
            tokens = {"r": made}
            _run_until(engine, tokens, lambda: len(made) >= count)
            for delta in engine.abort(["r"]):
                made += delta.tokens
            return engine.stats().cached_tokens - before

        made: list[int] = []
        assert until(made, 40) == 0, "nothing of this prompt was generated before"
        kept = len(made)
        # all full blocks of prompt and kept tokens, but the last token, which nothing was computed for yet
        assert until(made, 60) == (len(prompt) + kept - 1) // _BLOCK * _BLOCK
        engine.load_weights(new.named_parameters())
        again = list(made)
        assert until(again, 70) == 0, "keys and values of old weights were served"
        assert tuple(again[len(made) :]) == greedy(new, (*prompt, *made), len(again) - len(made))
        assert until(again, 75) > 0
        assert tuple(made) == greedy(old, prompt, len(made))

    def test_weights_may_come_in_slices(self, engine: Engine, models: tuple[Path, Any, Any], prompts: Prompts) -> None:
        new, asked = models[2], _requests(prompts, 0.0, 24)
        engine.load_weights(models[1].named_parameters())
        engine.load_weights(ModelInParts(new, ranks=3))
        responses = generate(engine, asked, _TIMEOUT_S)
        for index, prompt in enumerate(prompts):
            assert responses[str(index)].tokens == greedy(new, prompt, 24)
        with pytest.raises(WeightsError):
            engine.load_weights(ModelInParts(new, ranks=3, without="model.norm.weight"))
        engine.load_weights(new.named_parameters())

    def test_incomplete_or_foreign_weights_are_refused(self, engine: Engine, models: tuple[Path, Any, Any]) -> None:
        named = dict(models[1].named_parameters())
        for name in (
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.2.mlp.up_proj.weight",
            "model.norm.weight",
        ):
            with pytest.raises(WeightsError, match=name.split(".")[-2]):
                engine.load_weights([item for item in named.items() if item[0] != name])
        with pytest.raises(WeightsError):
            engine.load_weights([*named.items(), ("model.layers.0.nothing.weight", named["model.norm.weight"])])
        with pytest.raises(WeightsError):
            engine.load_weights([*named.items(), ("model.norm.weight", named["model.norm.weight"][:-1])])
        engine.load_weights(named)
        for neither in (named.keys(), ["ab"], [("model.norm.weight",)], [(1, named["model.norm.weight"])], "ab", None):
            with pytest.raises(WeightsError, match="expected pairs of a name and a tensor, or a mapping"):
                engine.load_weights(neither)  # type: ignore[arg-type]
        engine.load_weights(named.items())
        engine.submit([Request("r", (1, 2), Sampling(max_tokens=30))])
        with pytest.raises(EngineBusyError):
            engine.load_weights(named.items())
        engine.abort(["r"])

    @pytest.mark.parametrize("nbytes", [64, 1 << 20])  # two elements of each run, all of every parameter
    def test_digests_are_those_of_what_it_generates_with(
        self, engine: Engine, models: tuple[Path, Any, Any], nbytes: int
    ) -> None:
        if not self.digests:
            pytest.skip("it gives no digests")
        assert isinstance(engine, DigestingEngine)
        _, old, new = models
        for pieces in (new.named_parameters(), ModelInParts(new, ranks=3)):
            engine.load_weights(old.named_parameters())
            sample = _sample(new, nbytes)
            with pytest.raises(WeightsDifferError, match="found the digest"):
                sample.check(engine.digests(sample.boxes()))
            engine.load_weights(pieces)
            compared = sample.check(engine.digests(sample.boxes()))
        assert compared == 1.0 if nbytes > 64 else 0.0 < compared < 0.2

    def test_digests_show_what_was_not_loaded(self, engine: Engine, models: tuple[Path, Any, Any]) -> None:
        if not self.digests:
            pytest.skip("it gives no digests")
        assert isinstance(engine, DigestingEngine)
        _, old, new = models
        stale, sample = dict(old.named_parameters()), _sample(new, 256)
        for name in (
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.1.mlp.up_proj.weight",
            "model.layers.2.mlp.down_proj.weight",
        ):
            engine.load_weights(
                [(each, stale[each] if each == name else new_) for each, new_ in new.named_parameters()]
            )
            with pytest.raises(WeightsDifferError, match=rf"^parameter '{name}' of version 7, elements ") as caught:
                sample.check(engine.digests(sample.boxes()))
            assert caught.value.parameter == name
        engine.load_weights(new.named_parameters())
        sample.check(engine.digests(sample.boxes()))

    def test_counts_and_kv_follow_the_requests(self, engine: Engine) -> None:
        assert engine.stats().kv == pytest.approx(0, abs=1e-6)
        count = _BATCH + 8
        tokens: dict[str, list[int]] = {str(index): [] for index in range(count)}
        engine.submit([Request(id_, (int(id_), 7), Sampling(max_tokens=120)) for id_ in tokens])
        levels = []
        for length in (2, 40, 80):
            _run_until(engine, tokens, lambda length=length: sum(len(m) >= length for m in tokens.values()) >= _BATCH)  # type: ignore[misc]
            stats = engine.stats()
            assert (stats.running, stats.waiting) == (_BATCH, 8)
            assert stats.max_running in (0, _BATCH), "found another limit than the one that it keeps; 0 says nothing"
            levels.append(stats.kv)
        assert 0 < levels[0] < levels[1] < levels[2] <= 1
        engine.abort(list(tokens)[:4])
        assert sum((engine.stats().running, engine.stats().waiting)) == count - 4
        engine.abort(list(tokens))
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.kv == pytest.approx(0, abs=1e-6)

    def test_a_stop_token_and_the_limit_end_a_response(self, engine: Engine, reference: Any) -> None:
        prompt = (5, 6, 7, 8)
        whole = greedy(reference, prompt, 20)
        stop = whole[9]
        end = whole.index(stop) + 1

        def run(max_tokens: int, kept: int, stops: tuple[int, ...]) -> Any:
            sampling = Sampling(temperature=0, max_tokens=max_tokens, stop_token_ids=stops)
            return generate(engine, [Request("r", prompt, sampling, whole[:kept])], _TIMEOUT_S)["r"]

        stopped = run(20, 0, (stop,))
        assert (stopped.tokens, stopped.finish) == (whole[:end], FinishReason.STOP)
        limited = run(8, 5, ())
        assert (limited.tokens, limited.finish) == (whole[5:8], FinishReason.LENGTH)
        # nothing is left to generate: one empty last delta
        assert (run(5, 5, ()).tokens, run(5, 5, ()).finish) == ((), FinishReason.LENGTH)
        assert (run(20, end, (stop,)).tokens, run(20, end, (stop,)).finish) == ((), FinishReason.STOP)

    def test_a_request_goes_on_behind_what_an_environment_answered(self, engine: Engine, reference: Any) -> None:
        prompt = (5, 6, 7, 8)
        turn = greedy(reference, prompt, 4)
        kept = (*turn, 9, 10, turn[-1])  # an answer that ends with a stop token
        follows = greedy(reference, (*prompt, *kept), 12)
        stops = (turn[-1], follows[5])
        end = min(follows.index(token) + 1 for token in stops if token in follows)

        def run(max_tokens: int) -> Any:
            sampling = Sampling(temperature=0, max_tokens=max_tokens, stop_token_ids=stops, turns=True)
            return generate(engine, [Request("r", prompt, sampling, kept)], _TIMEOUT_S)["r"]

        second = run(19)
        assert (second.tokens, second.finish) == (follows[:end], FinishReason.STOP)
        expected = log_probabilities(reference, prompt, (*kept, *second.tokens), 0)[len(kept) :]
        assert second.logprobs == pytest.approx(expected, abs=self.tolerance)
        # the limit counts what was answered
        assert run(len(kept) + end - 1).tokens == follows[: end - 1]
        assert (run(len(kept)).tokens, run(len(kept)).finish) == ((), FinishReason.LENGTH)

    def test_the_models_context_ends_a_response(self, engine: Engine) -> None:
        response = generate(engine, [Request("r", (1,) * 500, Sampling(max_tokens=100))], _TIMEOUT_S)["r"]
        assert (len(response.tokens), response.finish) == (12, FinishReason.LENGTH)

    def test_requests_that_cannot_run_are_refused(self, engine: Engine) -> None:
        for prompt in ((), (1,) * 512):
            with pytest.raises(RequestError):
                engine.submit([Request("r", prompt, Sampling())])
        engine.submit([Request("twice", (1,), Sampling(max_tokens=50))])
        with pytest.raises(RequestError, match="twice"):
            engine.submit([Request("twice", (1,), Sampling())])
        with pytest.raises(ValueError, match="max_model_len"):
            engine.submit([Request("long", (1,) * 512, Sampling())])
        nan, inf = float("nan"), float("inf")
        tokens: list[Any] = [VOCABULARY, -1, 2**31, 2**70, 1.5, "1", None, True]
        wrong: list[Request] = [
            *(Request("r", (1, token, 2), Sampling()) for token in tokens),
            Request("r", (1,), Sampling(), kept=(2, VOCABULARY)),
            *(Request("r", (1,), Sampling(temperature=one)) for one in (-1.0, nan, inf, 1e-40, "1", None)),  # type: ignore[arg-type]
            *(Request("r", (1,), Sampling(max_tokens=most)) for most in (0, -3, 1.5, None)),  # type: ignore[arg-type]
            Request("r", (1,), Sampling(stop_token_ids=("x",))),  # type: ignore[arg-type]
            *(Request("r", (1,), Sampling(seed=seed)) for seed in (2**63, -(2**70), 0.5)),  # type: ignore[arg-type]
        ]
        for request in wrong:
            with pytest.raises(ValueError, match="'r'"):
                engine.submit([request])
        with pytest.raises(ValueError, match=str(VOCABULARY)):
            generate(engine, [Request("first", (1,), Sampling()), Request("r", (VOCABULARY,), Sampling())], _TIMEOUT_S)
        # nothing of them is left: their ids are free, and what was in flight goes on
        last = Sampling(temperature=0, max_tokens=2**62, stop_token_ids=(-1, 2**40), seed=2**63 - 1)
        found = generate(engine, [Request(id_, (1,) * 510, last) for id_ in ("r", "first")], _TIMEOUT_S)
        assert {len(response.tokens) for response in found.values()} == {2}
        engine.abort(["twice"])
        assert engine.step() == []
        assert (engine.stats().running, engine.stats().waiting) == (0, 0)
        assert generate(engine, [Request("long", (1,), Sampling(max_tokens=1))], _TIMEOUT_S)["long"].tokens

    @pytest.mark.parametrize("temperature", [0.6, 1.0])
    def test_samples_follow_the_distribution(self, engine: Engine, reference: Any, temperature: float) -> None:
        count, prompt = 1500, (9, 9, 2)
        requests = [Request(str(i), prompt, Sampling(temperature=temperature, max_tokens=1)) for i in range(count)]
        seen = [0] * VOCABULARY
        for response in generate(engine, requests, _TIMEOUT_S).values():
            seen[response.tokens[0]] += 1
        expected = [count * share for share in next_token_distribution(reference, prompt, temperature)]
        common = [token for token, mean in enumerate(expected) if mean >= 5]
        bins = [(seen[token], expected[token]) for token in common]
        rest = count - sum(seen[token] for token in common), count - sum(expected[token] for token in common)
        if rest[1] >= 5:
            bins.append(rest)
        assert len(bins) > 3, "the distribution is too narrow for a test"
        statistic = sum((found - mean) ** 2 / mean for found, mean in bins)
        degrees = len(bins) - 1
        # six standard deviations of a chi-square variable: a sound engine fails once in millions of runs
        assert statistic < degrees + 6 * (2 * degrees) ** 0.5 + 6, f"chi-square {statistic:.1f}, seed {_SEED}"

    def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(self, engine: Engine, prompts: Prompts) -> None:
        if not self.seeds:
            pytest.skip("its factory says that the engine keeps no seeds")
        draw = random.Random(_SEED)
        prompts = [*prompts, (7,) * 400, (9,) * 450]  # several of the long ones do not fit into one forward pass
        seeded = _seeded(prompts, 1.0, 24)
        alone = {request.id: generate(engine, [request], _TIMEOUT_S)[request.id].tokens for request in seeded}
        for case in range(2):
            beside = [
                Request(
                    f"beside {i}",
                    (i,) * draw.randint(1, 440),
                    Sampling(temperature=draw.choice([0.0, 0.8]), max_tokens=30),
                )
                for i in range(draw.randint(1, 24))
            ]
            others = [
                Request(f"other {r.id}", r.prompt, replace(r.sampling, seed=5 + (r.sampling.seed or 0))) for r in seeded
            ]
            requests = [*seeded, *beside, *others]
            draw.shuffle(requests)
            responses = generate(engine, requests, _TIMEOUT_S)
            assert {request.id: responses[request.id].tokens for request in seeded} == alone, (
                f"seed {_SEED}, case {case}"
            )
            assert all(responses[f"other {name}"].tokens != tokens for name, tokens in alone.items())

    def test_the_same_calls_between_the_same_steps_give_the_same_bits(
        self, engine: Engine, models: tuple[Path, Any, Any], prompts: Prompts
    ) -> None:
        """Whatever the engine did before it was given the weights."""
        if not self.deterministic:
            pytest.skip("its factory does not say that it is deterministic")
        found = []
        for _ in range(2):
            engine.load_weights(models[2].named_parameters())
            found.append(_scripted(engine, prompts))
        assert found[0] == found[1], f"seed {_SEED}"

    @pytest.mark.deep
    @pytest.mark.parametrize("threads", [1, 2])
    def test_engines_that_are_built_alike_give_the_same_bits(
        self, models: tuple[Path, Any, Any], prompts: Prompts, threads: int
    ) -> None:
        if not self.deterministic:
            pytest.skip("its factory does not say that it is deterministic")
        found = []
        for _ in range(2):
            engine = self.build(str(models[0]), {**OPTIONS, **self.options, "threads": threads})
            try:
                engine.load_weights(models[2].named_parameters())
                found.append(_scripted(engine, prompts))
            finally:
                engine.close()
        assert found[0] == found[1], f"seed {_SEED}"

    def test_a_small_cache_makes_it_preempt_and_changes_no_token(
        self, engine: Engine, models: tuple[Path, Any, Any], prompts: Prompts
    ) -> None:
        if not self.tells_preemptions:
            pytest.skip("the engine counts no preemptions")
        requests = _seeded(prompts, 1.0, 100)
        expected = generate(engine, requests, _TIMEOUT_S)
        bytes_per_token = 2 * 3 * 2 * 32 * 4  # keys and values, layers, heads, width, float32
        small = {"max_model_len": 256, "kv_cache_bytes": 12 * 32 * bytes_per_token}
        tight = self.build(str(models[0]), {**OPTIONS, **self.options, **small})
        try:
            tight.load_weights(models[1].named_parameters())
            assert tight.stats().preemptions == 0
            found = generate(tight, requests, _TIMEOUT_S)
            assert tight.stats().preemptions > 0
        finally:
            tight.close()
        assert engine.stats().preemptions == 0
        for name, response in found.items():
            if self.seeds:
                assert response.tokens == expected[name].tokens, name
            expected_logprobs = log_probabilities(models[1], prompts[int(name)], response.tokens, 1.0)
            assert response.logprobs == pytest.approx(expected_logprobs, abs=self.tolerance)


def _scripted(engine: Engine, prompts: Prompts) -> list[Any]:
    """All deltas of seeded requests that come, and are interrupted, between steps that a seed chooses; to the last bit."""
    draw, waiting, running, deltas = random.Random(_SEED), _seeded(prompts, 0.9, 40), set[str](), list[Any]()
    for _ in range(400):
        if waiting and draw.random() < 0.4:
            engine.submit([waiting[0]])
            running.add(waiting.pop(0).id)
        made = list(engine.step())
        if running and draw.random() < 0.03:
            made += engine.abort([gone := draw.choice(sorted(running))])
            running.discard(gone)
        running -= {delta.id for delta in made if delta.finish is not None}
        deltas.append(sorted((delta.id, delta.tokens, tuple(map(float.hex, delta.logprobs))) for delta in made))
        if not (waiting or running):
            break
    assert not running, "the engine does not advance"
    return deltas


def _seeded(prompts: Prompts, temperature: float, length: int) -> list[Request]:
    return [
        Request(str(i), prompt, Sampling(temperature, length, seed=1000 + i * 10**12))
        for i, prompt in enumerate(prompts)
    ]


def _requests(prompts: Prompts, temperature: float, length: int) -> list[Request]:
    sampling = Sampling(temperature=temperature, max_tokens=length)
    return [Request(str(index), prompt, sampling) for index, prompt in enumerate(prompts)]


def _run_until(engine: Engine, tokens: dict[str, list[int]], done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not done():
        for delta in engine.step():
            tokens[delta.id] += delta.tokens
        assert time.monotonic() < deadline, "the engine does not advance"


def _sample(model: Any, nbytes: int) -> WeightSample:
    sample = WeightSample(7, nbytes, "contract")
    for name, tensor in model.named_parameters():
        sample.take(WeightSlice(name, tuple(tensor.shape), (), tensor))
    return sample


class ModelInParts(SlicedWeights):
    """The parameters of a model as ranks of a trainer have them: rows of each, and of one with two dimensions columns too.

    Args:
        model: the model.
        ranks: the most parts of a dimension.
        without: a parameter whose last part is missing.
    """

    def __init__(self, model: Any, ranks: int, without: str | None = None) -> None:
        self._model, self._ranks, self._without = model, ranks, without

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter([pair for pair in self._model.named_parameters() if pair[0] != self._without])

    def slices(self) -> Iterator[WeightSlice]:
        for name, tensor in self._model.named_parameters():
            parts = [
                [slice(first, min(first + step, size)) for first in range(0, size, step)]
                for size, step in ((size, -(-size // self._ranks)) for size in tensor.shape)
            ]
            indices = list(itertools.product(*parts))
            for index in indices[:-1] if name == self._without else indices:
                yield WeightSlice(name, tuple(tensor.shape), index, tensor.detach()[index])
