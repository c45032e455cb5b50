"""Speed against the real peers, as ratios measured in one run: ``make bench``, or ``python -m benchmarks NAME …``."""

import sys
from pathlib import Path

# The stand-in for W&B's server and the readers of trackers belong to the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
