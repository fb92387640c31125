"""The effect of published slices on the rows of loans."""
