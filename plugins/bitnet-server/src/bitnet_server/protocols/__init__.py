"""APIs beside OpenAI's chats and completions: each translates its requests to a chat, and the chat's chunks back."""
