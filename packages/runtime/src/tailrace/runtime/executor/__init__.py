"""The executor: carries the controller's commands out on the members of a host, and reports their events."""
