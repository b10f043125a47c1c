"""Harnesses of the tests: programs that know a base_url alone. The row's metadata says what one does."""

import http.client
import json
import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit


def call(base_url, key, path, body, method="POST", headers=None):
    """Status and text of an answer."""
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
        content = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
        connection.request(method, f"{parts.path}/{path}", content, given)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Model:
    """The model as a harness sees it."""

    def __init__(self, base_url, key):
        self.base_url, self.key = base_url, key

    def ask(self, messages, **more):
        """The next message."""
        status, text = call(self.base_url, self.key, "chat/completions", {"model": "m", "messages": messages, **more})
        if status != 200:
            raise RuntimeError(f"{status} {json.loads(text)['error']['message']}")
        return json.loads(text)["choices"][0]["message"]


def talk(model, row):
    """Take as many turns as the row says, each request behind the one before. The reward is the share of turns that said 12."""
    about = row["metadata"]
    messages = [{"role": "system", "content": "Guess."}, {"role": "user", "content": row["prompt"]}]
    right = 0
    for turn in range(about.get("turns", 3)):
        if turn == about.get("dies_at") and not Path(about["once"]).exists():
            Path(about["once"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if turn == about.get("dies_always_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if turn == about.get("fails_at"):
            print("no such tool", file=sys.stderr)
            sys.exit(about.get("status", 1))
        if turn == about.get("sleeps_at"):
            time.sleep(60)
        said = model.ask(messages)
        right += said["content"] == "12"
        if about.get("forgets"):
            messages = [{"role": "user", "content": f"another {turn}"}]
        else:
            messages += [{**said, "content": said["content"].strip()}, {"role": "user", "content": f"turn {turn}"}]
    return right / max(1, about.get("turns", 3))


def branch(model, row):
    """Two turns, another one behind the first, a sub-agent of two, a third turn, and a history in short, asked twice."""
    asked = 0

    def ask(messages):
        nonlocal asked
        dies = asked == row["metadata"].get("dies_at") and not Path(row["metadata"]["once"]).exists()
        asked += 1
        if dies:
            Path(row["metadata"]["once"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return model.ask(messages)

    begun = [{"role": "system", "content": "Guess."}, {"role": "user", "content": row["prompt"]}]
    begun += [ask(begun)]
    main = [*begun, {"role": "user", "content": "go on"}]
    main += [ask(main)]
    ask([*begun, {"role": "user", "content": "or else"}])
    checked = [{"role": "system", "content": "Check."}, {"role": "user", "content": "Is it so?"}]
    checked += [ask(checked)]
    ask([*checked, {"role": "user", "content": "sure?"}])
    ask([*main, {"role": "user", "content": "checked"}])
    short = [{"role": "system", "content": "Guess."}, {"role": "user", "content": "in short"}]
    return float(ask(short)["content"] == ask(short)["content"])


def main():
    """Play the episode of a command."""
    row = json.loads(Path(os.environ["TAILRACE_ROW"]).read_text())
    model = Model(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    reward = (branch if row["metadata"].get("branches") else talk)(model, row)
    how = row["metadata"].get("reward", "line")
    if how in ("post", "post, then words"):
        status, _ = call(model.base_url, model.key, "reward", {"reward": reward})
        assert status == 200
    words = {"none": "done", "post": "done", "nonsense": '{"reward": "much"}', "post, then words": '{"reward": 99}'}
    print(words.get(how) or json.dumps({"reward": reward}))


if __name__ == "__main__":
    main()
