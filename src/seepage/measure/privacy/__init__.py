"""Differential privacy: accounting of epsilon, the guarantee of a defense, and a client's ledger."""
