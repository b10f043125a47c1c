"""What comes of a simulation: its log, figures, run directory, and advice."""
