"""The common base of the embedded cluster: errors, resources, metadata, storage."""
