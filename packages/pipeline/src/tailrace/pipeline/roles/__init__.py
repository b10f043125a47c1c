"""The roles of a run: what each process does, composed from the components."""
