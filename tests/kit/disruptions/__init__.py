"""What strikes a simulated cluster, a file for each theme, each with its table of disruptions and their weights."""
