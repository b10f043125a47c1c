"""Members of a simulated fleet: what each does with the controller's commands, and how long it takes."""
