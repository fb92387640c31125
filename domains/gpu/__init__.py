"""The gpu domain: whole GPUs and fractions of them, packed so that whole ones stay free."""
