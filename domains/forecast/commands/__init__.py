"""The commands of `multisched forecast`, which print documents of a forecast as text, tables and an HTML page."""
