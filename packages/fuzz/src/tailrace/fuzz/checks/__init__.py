"""The invariants of the design (section 5), each checked at every event of a fuzz case."""
