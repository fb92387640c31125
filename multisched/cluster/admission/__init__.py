"""What the embedded API server adds to an object, or refuses of it."""
