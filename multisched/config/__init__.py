"""The configuration: read, checked, completed, printed."""
