"""What all parts of the embedded cluster stand on: errors, resources, metadata, storage."""
