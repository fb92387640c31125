"""Virtual time: an event loop whose clock jumps, and workers that answer in it."""
