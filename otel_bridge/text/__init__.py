"""Text that leaves the product: printable and redacted, with addresses without credentials.

Pure.
"""
