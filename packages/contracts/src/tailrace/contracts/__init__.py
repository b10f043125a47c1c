"""The vocabulary of Tailrace: trajectories, replica snapshots, events, commands and the protocols of policies, engines and transports."""
