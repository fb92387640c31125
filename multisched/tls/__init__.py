"""Certificates and TLS contexts for servers and clients; imports nothing else of the program."""
