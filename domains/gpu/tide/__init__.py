"""The tide: inference takes GPU cards by day, training by night."""
