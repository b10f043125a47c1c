"""Modelled members of a simulated fleet: what each does on the controller's commands, and how long that takes."""
