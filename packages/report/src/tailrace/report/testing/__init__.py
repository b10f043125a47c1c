"""What tests and benchmarks of pages need."""
