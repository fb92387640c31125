"""What each scheduling rule says of pods and nodes, in plain arithmetic: no plugin takes part."""
