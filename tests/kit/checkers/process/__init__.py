"""Checks inside one process: results of the program compared with plain computations of the same."""
