"""Public test doubles and the contract every writer must pass."""
