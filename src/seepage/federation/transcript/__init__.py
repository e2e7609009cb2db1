"""Transcripts: rounds simulated from private batches or read from folders, and the truth, which is kept apart."""
