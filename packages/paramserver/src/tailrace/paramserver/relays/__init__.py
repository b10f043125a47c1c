"""A relay: versions in shared memory, their leases, and forwarding to other relays."""
