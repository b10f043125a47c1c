"""For tests: a small real run, and the contract that every host of members passes."""
