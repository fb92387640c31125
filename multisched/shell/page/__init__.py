"""Reads a running program for its web page, in steps that do not delay scheduling."""
