"""Generation requests: their construction, the rows that they sample from, reasoning."""
