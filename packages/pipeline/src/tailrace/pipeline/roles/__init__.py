"""The roles of a run, composed from the components. Each member of a run is one role in its own process."""
