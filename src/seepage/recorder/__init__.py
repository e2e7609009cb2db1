"""Adapters to other frameworks: optional extras, each imported by itself and by nothing else here."""
