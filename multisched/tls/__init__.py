"""Certificates and TLS contexts, for whoever serves or connects; uses nothing else of the program."""
