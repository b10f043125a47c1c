"""A reader in a process of its own, which reads until it is killed."""

import json
import sys

from tailrace.paramserver.transport.protocol import load


def main():
    descriptor = json.loads(sys.stdin.readline())
    buffer = bytearray(descriptor["nbytes"])
    source = load(sys.argv[1]).open(descriptor, timeout_s=30.0)
    while True:
        source.read_into(memoryview(buffer), 0, 30.0)
        print("read", flush=True)


main()
