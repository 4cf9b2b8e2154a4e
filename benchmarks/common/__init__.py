"""What the benchmarks share, and some tests with them."""
