"""Hosts: where members live. Threads of this process, or Ray actors; the virtual one is `tailrace.fleetsim`."""
