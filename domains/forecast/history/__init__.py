"""Where usage comes from: sources, what they deliver, and what is left out of it."""
