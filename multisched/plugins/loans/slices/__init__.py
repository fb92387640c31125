"""What published slices mean for the rows of loans."""
