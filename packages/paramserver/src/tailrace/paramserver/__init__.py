"""Weight versions for RL post-training: relays in shared memory, chain-pipelined broadcast, leases and checksums."""
