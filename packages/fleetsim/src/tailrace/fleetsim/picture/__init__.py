"""Pictures of simulated fleets: what is watched while they run, the figures that matter, pages and drawings of them."""
