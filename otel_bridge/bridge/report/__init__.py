"""What a bridge reports of a run."""
