"""What must hold of a program, compared with what the cluster has and with what the program has observed."""
