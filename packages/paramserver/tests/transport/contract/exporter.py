"""The exporter's process of the contract suite: one line of JSON for each command on standard input."""

import json
import mmap
import os
import random
import sys
from pathlib import Path

from tailrace.paramserver.transport.protocol import load


class Memory:
    def __init__(self, nbytes, seed):
        self.name = f"memory of seed {seed}"
        self.fd = os.memfd_create("contract")
        os.ftruncate(self.fd, nbytes)
        self.map = mmap.mmap(self.fd, nbytes)
        self.view = memoryview(self.map)
        self.view[:] = random.Random(seed).randbytes(nbytes)

    def close(self):
        self.view.release()
        self.map.close()
        os.close(self.fd)


def answer(**fields):
    print(json.dumps(fields), flush=True)


def close(export, memory):
    export.close()
    export.close()  # twice is no error
    memory.close()


def main():
    transport = load(sys.argv[1])
    exports = {}
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "export":
            memory = Memory(command["nbytes"], command["seed"])
            exports[command["seed"]] = (transport.export(memory), memory)
            answer(descriptor=exports[command["seed"]][0].descriptor)
        elif command["do"] == "close":
            close(*exports.pop(command["seed"]))
            answer(closed=True)
        elif command["do"] == "close all":
            while exports:
                close(*exports.popitem()[1])
            answer(closed=True)
        elif command["do"] == "held":
            answer(fds=len(list(Path("/proc/self/fd").iterdir())), threads=len(list(Path("/proc/self/task").iterdir())))


main()
