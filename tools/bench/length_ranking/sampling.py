"""Responses to the problems, by a real engine at temperature 1: how long each is. A file that can be gone on with."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from frozen_rounds.real import EngineLoop, Text
from length_ranking.mix import Problem
from length_ranking.policy import MAX_MODEL_LEN, MAX_TOKENS
from length_ranking.stages import Clock

from tailrace.ranker import Example

_OPEN = 24  # prompts whose samples are in flight together
_BATCH = 256


def sampled(
    file: Path,
    model: Path,
    problems: Mapping[int, Problem],
    samples: int,
    seed: int,
    clock: Clock,
    *,
    engine_name: str = "auto",
    version: int = 0,
) -> dict[int, Example]:
    """An example for each problem, by its index in the mix. What the file has already is not generated again.

    A sample's noise depends on the seed, its problem and its number only, so it does not matter where an earlier call ended.

    Args:
        file: a row for each problem that is done.
        model: directory of the policy.
        problems: by index.
        samples: of each problem.
        seed: of the noise.
        clock: what is left of the time.
        engine_name: plugin of ``tailrace.engine``.
        version: of the policy, for the examples.
    """
    rows = _rows(file, samples)
    todo = [index for index in problems if index not in rows]
    if todo:
        _generate(file, model, {index: problems[index] for index in todo}, samples, seed, clock, engine_name)
        rows = _rows(file, samples)
    return {
        index: Example(
            problem.prompt, tuple(rows[index]["lengths"]), tuple(rows[index]["truncated"]), problem.family, version
        )
        for index, problem in problems.items()
    }


def _generate(
    file: Path,
    model: Path,
    problems: Mapping[int, Problem],
    samples: int,
    seed: int,
    clock: Clock,
    engine_name: str,
) -> None:
    from tokenizers import Tokenizer

    from tailrace.contracts import Sampling
    from tailrace.rollout import build_engine
    from tailrace.rollout.model_files import end_tokens

    clock.check(60.0)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    stops = end_tokens(str(model))
    options = {"threads": 1, "max_num_seqs": _BATCH, "max_model_len": MAX_MODEL_LEN, "seed": seed}
    clock.say(file.stem, "starting the engine")

    def encode(index: int) -> tuple[int, ...]:
        return tuple(tokenizer.encode(problems[index].prompt, add_special_tokens=False).ids)

    with closing(build_engine(engine_name, str(model), options)) as engine, file.open("a") as out:
        loop = EngineLoop(engine, encode, Sampling(1.0, MAX_TOKENS, stops), seed, same_noise=True)
        waiting = deque(problems)
        open_: dict[int, list[Text]] = {}
        done = 0
        while waiting or open_:
            clock.check()
            while waiting and len(open_) < _OPEN:
                open_[waiting[0]] = []
                loop.start([waiting.popleft()], samples)
            index, text = loop.finished()
            open_[index].append(text)
            if len(open_[index]) == samples:
                # They came in the order in which they ended: the short ones first.
                texts = sorted(open_.pop(index), key=lambda text: text.ids)
                random.Random(f"{seed} {index}").shuffle(texts)
                row = {
                    "index": index,
                    "lengths": [text.tokens for text in texts],
                    "truncated": [text.ids[-1] not in stops for text in texts],
                }
                out.write(json.dumps(row) + "\n")
                out.flush()
                done += 1
                clock.say(file.stem, f"{done} of {len(problems)} prompts", last=done == len(problems))


def _rows(file: Path, samples: int) -> dict[int, dict[str, Sequence[int]]]:
    """The rows of a file, by index; a last line that was cut off is not one of them."""
    if not file.exists():
        return {}
    text = file.read_text()
    if not text.endswith("\n") and text:
        file.write_text(text[: text.rfind("\n") + 1])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if len(row["lengths"]) != samples:
            raise SystemExit(
                f"{file}: found {len(row['lengths'])} samples of problem {row['index']}, expected {samples}: another directory"
            )
    return {row["index"]: row for row in rows}
