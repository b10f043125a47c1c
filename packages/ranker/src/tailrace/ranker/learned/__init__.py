"""Methods that learn from the text itself, with torch. The classes here are options only; torch is imported when they learn."""
