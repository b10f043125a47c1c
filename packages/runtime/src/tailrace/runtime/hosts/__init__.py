"""Hosts, which run members: as threads of this process, or as Ray actors. `tailrace.fleetsim` has the virtual host."""
