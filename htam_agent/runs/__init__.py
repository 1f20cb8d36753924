"""A run's folder and the records in it."""
