"""The pure controller and the state that it owns."""
