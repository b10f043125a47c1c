"""The two ends of a version's way: the trainer's publisher and a replica's reader."""
