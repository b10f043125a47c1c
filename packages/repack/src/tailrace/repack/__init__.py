"""Planning over rollout snapshots: best-fit consolidation of the long tail (Laminar, Algorithm 1) and routing."""
