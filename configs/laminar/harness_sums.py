"""A harness in plain Python: it asks a chat model, works out the sums that the model writes, and says what they print.

It reads its row from the file that TAILRACE_ROW names, and asks at OPENAI_BASE_URL, as it would ask any other model.
"""

import ast
import json
import operator
import os
import re
import urllib.request
from pathlib import Path

FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}
MOST_TURNS = 8


def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    """The model's next message."""
    request = urllib.request.Request(  # noqa: S310 - where it asks is its caller's matter
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=3600) as response:  # noqa: S310 - likewise
        message: dict[str, str] = json.load(response)["choices"][0]["message"]
        return message


def value(node: ast.expr, names: dict[str, int]) -> int:
    """What an expression of numbers, names, signs and lengths of words comes to."""
    match node:
        case ast.Constant(value=int() as number) if abs(number) < 10**6:
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=sign, right=right):
            return SIGNS[type(sign)](value(left, names), value(right, names)) % 10**9
        case ast.Call(func=ast.Name(id="len"), args=[ast.Constant(value=str() as word)]):
            return len(word)
    raise ValueError(f"no such expression: {ast.dump(node)}")


def printed(program: str, names: dict[str, int]) -> str:
    """What a program of sums prints; it is read, never run."""
    said = []
    for line in ast.parse(program).body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                names[name] = value(expression, names)
            case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[expression])):
                said.append(str(value(expression, names)))
            case _:
                raise ValueError(f"no such line: {ast.dump(line)}")
    return "\n".join(said)


def main() -> None:
    """Play one episode, and tell its reward."""
    row = json.loads(Path(os.environ["TAILRACE_ROW"]).read_text())
    messages, names = [{"role": "user", "content": row["prompt"]}], dict[str, int]()
    for _ in range(MOST_TURNS):
        said = ask(messages)
        found = FENCE.search(said["content"])
        if found is None:
            break
        try:
            answer = printed(found[1], names)
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError) as error:
            answer = type(error).__name__
        messages += [said, {"role": "user", "content": f"{answer}\n"}]
    right = said["content"].strip() == f"<answer>{row['answer']}</answer>"
    print(json.dumps({"reward": float(right)}))


if __name__ == "__main__":
    main()
