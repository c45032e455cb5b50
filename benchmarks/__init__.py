"""Speed against the real peers, as ratios measured in one run: ``make bench``, or ``python -m benchmarks NAME …``."""
