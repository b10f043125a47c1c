"""Methods without a language model: what a learned ranker must beat."""
