"""Reports the state of a run's bridge."""
