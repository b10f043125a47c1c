"""A run from end to end: launched, resumed, or attached to by another controller."""
