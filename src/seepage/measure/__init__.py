"""How close a reconstruction is, at most how close it can be, and what noise promises and keeps."""
