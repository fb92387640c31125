"""The controllers of the embedded cluster."""
