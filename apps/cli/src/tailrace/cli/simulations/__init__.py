"""Commands about simulations: simulate, compare, plan, profile, reproduce, fuzz."""
