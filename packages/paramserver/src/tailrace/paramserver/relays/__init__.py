"""A relay: versions in shared memory, their leases, and what is passed on to other relays."""
