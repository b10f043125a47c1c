"""The virtual host: the clock, the state that members share, failures, and the simulation that drives the executor."""
