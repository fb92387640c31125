"""The columns of the node table: one part for each kind of thing that is known of a row, which owns and writes it."""
