"""The slow, obvious engine: one step at a time, every token counted one by one. The rules are those of `engine.py`."""

from math import inf


class Item:
    """A trajectory, its tokens counted one by one."""

    def __init__(self, work):
        self.work, self.done, self.cached = work, work.done_tokens, work.cached_tokens

    @property
    def context(self):
        return self.work.prompt_tokens + self.done


class ReferenceEngine:
    def __init__(self, decode, prefill, *, max_running, watermark=0.01):
        self.decode, self.prefill = decode, prefill
        self.max_running = max_running
        self.spare = int(decode.kv_capacity_tokens * watermark)
        self.now, self.speed = 0.0, 1.0
        self.batch, self.queue, self.finished = [], [], []  # batch: in the order of admission
        self.iteration = None  # "prefill" or "decode"
        self.stall_s = self.spent_s = 0.0  # engine seconds
        self.preemptions = self.tokens = 0
        self.prefill_s = self.decode_s = self.kv_share_s = self.running_s = 0.0

    # ---- what can be seen

    @property
    def kv_tokens(self):
        return sum(item.context for item in self.batch)

    @property
    def ids(self):
        return [item.work.id for item in self.batch + self.queue]

    # ---- calls

    def add(self, works, now):
        self.advance(now)
        self.queue += [Item(work) for work in works]
        if self.iteration is None:
            self.boundary()

    def remove(self, ids, now):
        self.advance(now)
        gone = []
        for name in ids:
            for place in (self.batch, self.queue):
                for item in [item for item in place if item.work.id == name]:
                    place.remove(item)
                    gone.append((name, item.done))
        if not self.batch:
            self.boundary()
        return gone

    def set_speed(self, factor, now):
        self.advance(now)
        self.speed = factor

    def advance(self, now):
        while True:
            end = self.now + self.left_s() / self.speed if self.iteration and self.speed else inf
            if end > now:
                self.spend(now)
                return
            self.spend(end)
            if self.iteration == "decode":
                for item in self.batch:
                    item.done += 1
                    self.tokens += 1
            self.boundary()

    # ---- rules

    def left_s(self):
        if self.iteration == "prefill":
            return self.stall_s - self.spent_s
        step_s = self.decode.fixed_s(len(self.batch)) + self.decode.per_token_s * self.kv_tokens
        return max(0.0, step_s - self.spent_s)

    def spend(self, until):
        seconds, self.now = until - self.now, until
        if self.iteration and self.speed:
            self.spent_s += seconds * self.speed
            if self.iteration == "prefill":
                self.prefill_s += seconds
            else:
                self.decode_s += seconds
            self.kv_share_s += seconds * self.kv_tokens / self.decode.kv_capacity_tokens
            self.running_s += seconds * len(self.batch)

    def boundary(self):
        capacity = self.decode.kv_capacity_tokens
        if self.iteration == "decode":
            for item in [item for item in self.batch if item.done == item.work.response_tokens]:
                self.batch.remove(item)
                self.finished.append((self.now, item.work.id, item.done))
        while self.kv_tokens + len(self.batch) > capacity:
            victim = self.batch.pop()
            victim.cached = 0
            self.queue.insert(0, victim)
            self.preemptions += 1
        self.stall_s = self.spent_s = 0.0
        self.iteration = "decode"
        while self.queue and len(self.batch) < self.max_running:
            head = self.queue[0]
            spare = self.spare if self.batch else 0
            if self.kv_tokens + head.context + len(self.batch) + 1 > capacity - spare:
                break
            self.batch.append(self.queue.pop(0))
            self.stall_s += self.prefill.seconds(head.context, head.cached)
            self.iteration = "prefill"
        if not self.batch:
            self.iteration = None
