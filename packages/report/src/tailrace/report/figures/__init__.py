"""Numbers and sentences about a run, made from what is folded from its log."""
