"""Run times of jobs: history, prediction, and where they are kept."""
