"""The forecast domain: online services, placed by the peaks predicted from their history."""
