"""Start of a bridge for the run folder, and takeover from a blocked one."""
