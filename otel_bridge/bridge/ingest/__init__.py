"""Reads segments through translation into the ledger, and decides which segments are kept."""
