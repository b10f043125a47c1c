"""What a configuration means as a fleet: pools of replicas, a trainer, their costs and how long a batch takes them."""
