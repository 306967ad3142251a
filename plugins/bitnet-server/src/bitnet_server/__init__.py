"""An OpenAI-compatible HTTP server and a chat page for bitnet."""
