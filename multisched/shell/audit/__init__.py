"""The audit: what is known here, compared with what the API server has."""
