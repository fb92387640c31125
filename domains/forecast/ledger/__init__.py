"""Predicted use of every row, pod by pod, and measured load of nodes."""
