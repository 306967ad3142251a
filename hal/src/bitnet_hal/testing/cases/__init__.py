"""Launches that every device must compute correctly, by kernel."""
