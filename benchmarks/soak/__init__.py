"""A service under outages and kills, for as long as asked: ``python -m benchmarks.soak``."""
