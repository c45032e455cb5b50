"""Segments -> translation -> ledger; which segments are kept."""
