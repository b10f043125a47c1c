"""A tool that takes its time and no processor: what an engine does meanwhile is all that differs."""

import math
import random
import time


class Slow:
    """Answers after seconds of a lognormal law, which the row's seed and the number of the call decide."""

    replayable = True

    def __init__(self, median=0.0, sigma=0.0, cap=math.inf) -> None:  # noqa: ANN001 (a worker loads it, without types)
        self.median, self.sigma, self.cap = median, sigma, cap

    def reset(self, row):  # noqa: ANN001, ANN201
        self.random = random.Random(row["seed"])
        return ""

    def step(self, action):  # noqa: ANN001, ANN201, ARG002
        time.sleep(min(self.median * math.exp(self.sigma * self.random.gauss(0.0, 1.0)), self.cap))
        return {"observation": "42", "done": False}

    def close(self):  # noqa: ANN201
        pass
