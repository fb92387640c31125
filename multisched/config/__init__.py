"""Reads, checks, completes and prints the configuration."""
