"""The service beside the stock Collector: points a core, memory, and thousands of runs."""
