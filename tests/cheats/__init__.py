"""The red team: for each known way of cheating a working cheat and an honest twin, for both backends in one table."""
