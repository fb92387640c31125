"""What every row is predicted to use, pod by pod, and what its nodes use at the moment."""
