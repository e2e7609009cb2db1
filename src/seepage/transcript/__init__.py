"""Transcripts: rounds made from private batches or read from folders, and the truth that stays beside them."""
