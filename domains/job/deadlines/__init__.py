"""Order of the queue by deadlines, and predicted waits."""
