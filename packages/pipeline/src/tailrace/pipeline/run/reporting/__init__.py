"""The parts of ``report.html``: what a run's files say, in figures, tables and words."""
