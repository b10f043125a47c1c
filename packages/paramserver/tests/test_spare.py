"""Memory that is filled again and again: a piece has one holder at a time, whatever threads ask for it."""

import sys
import threading

from tailrace.paramserver.clients.spare import SpareMemory

SIZE = 4096


def test_two_threads_never_hold_the_same_piece():
    spare, wrong = SpareMemory(most=3), []

    def fill(mark):
        for _ in range(3000):
            held = spare.take(SIZE)
            held[0], held[SIZE - 1] = mark, mark
            seen = {(held[0], held[SIZE - 1]) for _ in range(20)}
            wrong.extend(seen - {(mark, mark)})
            held.release()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fill, args=(mark,)) for mark in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(switch)
    assert not wrong
    assert spare.nbytes <= 3 * SIZE
