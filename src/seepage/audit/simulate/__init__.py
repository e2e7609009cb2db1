"""Simulate a federation: partition the data among clients, and train the model up to the audited round."""
