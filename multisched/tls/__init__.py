"""Certificates and TLS contexts for servers and clients; imports no other package of the program."""
