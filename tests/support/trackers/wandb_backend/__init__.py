"""A stand-in for W&B's server on loopback, which the real SDK is driven against."""
