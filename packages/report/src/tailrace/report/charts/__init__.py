"""Charts as plain data. Nothing here draws: the page does."""
