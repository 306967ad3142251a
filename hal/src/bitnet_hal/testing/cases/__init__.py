"""Launches that every device must get right, kernel by kernel."""
