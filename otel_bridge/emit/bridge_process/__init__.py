"""Start of a bridge for the run folder, takeover from a blocked one, and the wait for its delivery."""
