"""For tests: a small real run, and the contract suite of hosts."""
