"""The wire between a program and what it asks: it goes wrong in named ways, drawn from a seed."""
