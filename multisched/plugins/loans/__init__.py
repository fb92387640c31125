"""Loans: rows of one domain on which pods of another one run."""
