"""What the forecast shows: documents, reports and metrics."""
