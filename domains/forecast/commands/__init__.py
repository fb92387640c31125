"""The commands of `multisched forecast`: documents of a forecast in words, tables and one page."""
