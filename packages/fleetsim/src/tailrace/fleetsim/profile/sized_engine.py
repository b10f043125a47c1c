"""An engine of one size in a process of its own, as a replica has it: started, timed and ended on request.

    {"do": "open", ...} ──► {"do": "generate", ...} ──► {"do": "time", ...} ... ──► {"do": "close"} ──► the process ends

A request is answered with figures, or with the line `error` of an engine that refuses.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from tailrace.contracts import Engine, Request, Sampling, TailraceError

WARM_STEPS = 2
"""Decoding steps that are not timed, after the last prefill."""


class SizedEngine:
    """Answers the requests to one engine."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        asked = dict(request)
        does: Mapping[str, Callable[..., dict[str, Any]]] = {
            "open": self._open,
            "generate": self._generate,
            "time": self._time,
            "close": self._close,
        }
        try:
            return does[asked.pop("do")](**asked)
        except (TailraceError, MemoryError) as error:
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}

    def _open(self, engine: str, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        from tailrace.rollout import build_engine

        self._engine = build_engine(engine, model, options)
        stats = self._engine.stats()
        return {"kv_tokens": stats.kv_capacity_tokens, "max_running": stats.max_running}

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Generate a response to each prompt. Answers their tokens, and the preemptions meanwhile."""
        engine = self._built()
        drawn = Sampling(**{**sampling, "stop_token_ids": tuple(sampling["stop_token_ids"])})
        before = engine.stats().preemptions
        engine.submit([Request(str(at), tuple(prompt), drawn) for at, prompt in enumerate(prompts)])
        lengths = [0] * len(prompts)
        left = set(range(len(prompts)))
        while left:
            for delta in engine.step():
                lengths[int(delta.id)] += len(delta.tokens)
                if delta.finish is not None:
                    left.discard(int(delta.id))
        return {"lengths": lengths, "preemptions": engine.stats().preemptions - before}

    def _time(self, batch: int, length: int, steps: int, tokens: Sequence[int], seed: int) -> dict[str, Any]:
        """Time the prefill of `batch` sequences of `length` tokens drawn from `tokens`, and a decoding step of all of them.

        Answers no figures where not all of them ever run at once, as where the KV cache is too small for them.
        """
        engine, rng = self._built(), random.Random(seed)
        drawn = Sampling(max_tokens=WARM_STEPS + steps + batch + length, stop_token_ids=())
        requests = [Request(f"{length}.{at}", tuple(rng.choices(tokens, k=length)), drawn) for at in range(batch)]
        began = time.perf_counter()
        engine.submit(requests)
        told: set[str] = set()
        while len(told) < batch:
            told |= {delta.id for delta in engine.step() if delta.tokens}
        prefill_s = time.perf_counter() - began
        taken: list[float] = []
        for step in range(WARM_STEPS + steps):
            began = time.perf_counter()
            count = sum(bool(delta.tokens) for delta in engine.step())
            if step >= WARM_STEPS and count == batch:
                taken.append(time.perf_counter() - began)
        engine.abort([request.id for request in requests])
        return {"prefill_s": prefill_s, "step_s": median(taken)} if taken else {}

    def _close(self) -> dict[str, Any]:
        self._built().close()
        self._engine = None
        return {}

    def _built(self) -> Engine:
        assert self._engine is not None, "it is opened first"
        return self._engine


if __name__ == "__main__":
    from tailrace.processes import serve

    serve(SizedEngine())
