"""Recipes: TOML tables to checked objects, and back."""
