"""A harness that asks twice, has a sub-agent, and forgets what it no longer needs; it knows as little as harness_sums.py.

question ─┬─► first part ────────┐
          ├─► first part ────────┤   what most of them print is believed
sub-agent ┴─► first part, answer ┴─► the parts that are left, alone ──► answer
                                  └► none are left: the branch that is believed goes on ──► answer
"""

import json
import os
from collections import Counter
from pathlib import Path

from harness_sums import FENCE, MOST_TURNS, ask, printed

Talk = list[dict[str, str]]


def step(talk: Talk, names: dict[str, int]) -> str | None:
    """Let the model say something, and tell it what its program prints. Returns that; None without a program."""
    said = ask(talk)
    talk.append(said)
    found = FENCE.search(said["content"])
    if found is None:
        return None
    try:
        answer = printed(found[1], names)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError) as error:
        answer = type(error).__name__
    talk.append({"role": "user", "content": f"{answer}\n"})
    return answer


def finish(talk: Talk, names: dict[str, int]) -> str:
    """The answer at the end of a conversation."""
    for _ in range(MOST_TURNS):
        if talk[-1]["role"] == "assistant":
            break
        step(talk, names)
    return talk[-1]["content"]


def main() -> None:
    """Play one episode. The task's verifier judges the last turn."""
    row = json.loads(Path(os.environ["TAILRACE_ROW"]).read_text())
    first, *rest = row["prompt"].split("show ")  # a part ends with the value that it asks for
    shown, _, left = "show ".join(rest).partition("\n")
    tries = []
    for question in (row["prompt"], row["prompt"], f"{first}show {shown}\n"):
        talk, names = [{"role": "user", "content": question}], dict[str, int]()
        tries.append((step(talk, names), talk, names))
    checked = finish(tries[-1][1], dict(tries[-1][2]))
    votes = Counter(value for value, _, _ in tries)
    votes[checked.removeprefix("<answer>").removesuffix("</answer>").strip()] += 1
    programs = [each for each in tries[:2] if each[0] is not None] or tries[:1]
    _, talk, names = max(programs, key=lambda each: votes[each[0]])
    finish([{"role": "user", "content": left}] if left else talk, names)
    print(json.dumps({"contexts": len(tries) + 1}))


if __name__ == "__main__":
    main()
