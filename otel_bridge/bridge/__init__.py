"""The process that brings segments to trackers: reader, ledger, delivery, life."""
