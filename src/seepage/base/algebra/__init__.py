"""Linear algebra that several attacks share."""
