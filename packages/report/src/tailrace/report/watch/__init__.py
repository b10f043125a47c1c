"""``tailrace watch``: a page over the event log of a run, live or afterwards, real or simulated. Needs the extra ``watch``."""
