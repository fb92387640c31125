"""Sources of usage, their readings, and the removal of implausible samples."""
