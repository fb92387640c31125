"""The columns of the node table: each part owns and writes the columns of one kind of property."""
