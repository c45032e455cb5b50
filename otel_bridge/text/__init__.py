"""Text that leaves the product: printable, redacted, addresses without credentials. Pure."""
