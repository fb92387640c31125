"""The client against a whole API server: the embedded one in process and over TLS, or the real one."""
