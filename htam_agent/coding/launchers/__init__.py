"""Launchers that stand in a model's candidates: the text of a file here becomes part of the product (assembly.py)."""
