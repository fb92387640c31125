"""Values over time: measured usage, predicted profiles, and their sums per row."""
