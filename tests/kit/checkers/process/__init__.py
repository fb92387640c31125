"""Checks inside one process: each answer of the program beside a plain computation of the same."""
