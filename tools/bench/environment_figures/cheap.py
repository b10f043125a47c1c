"""An environment that costs nothing: what remains is the pool's."""


class Cheap:
    """Repeats what it is told."""

    replayable = True

    def reset(self, row):  # noqa: ANN001, ANN201, ARG002 (a worker loads it, without types)
        self.turns = 0
        return ""

    def step(self, action):  # noqa: ANN001, ANN201
        self.turns += 1
        return {"observation": f"{self.turns} {action}", "done": False}

    def snapshot(self):  # noqa: ANN201
        return str(self.turns).encode()

    def restore(self, state):  # noqa: ANN001, ANN201
        self.turns = int(state)

    def close(self):  # noqa: ANN201
        pass
