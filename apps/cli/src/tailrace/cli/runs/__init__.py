"""Commands about runs: begin, watch, look at, explain, break on purpose, and what a run of one's own begins with."""
