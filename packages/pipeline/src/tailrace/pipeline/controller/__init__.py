"""The pure controller and the states that it owns."""
