"""Code that several adapters share, and parts of single adapters."""
