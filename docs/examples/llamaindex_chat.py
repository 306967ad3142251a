"""LlamaIndex with `bitnet serve`. Usage: llamaindex_chat.py http://127.0.0.1:8080/v1"""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

# Without is_chat_model and context_window it would take the model for a completion model with 3,900 tokens.
model = OpenAILike(
    api_base=sys.argv[1], api_key="none", model="stories", is_chat_model=True, context_window=1024, max_tokens=24
)
print(model.chat([ChatMessage(role="user", content="Tell me a story.")]).message.content)
for chunk in model.stream_complete("Once upon a time"):
    print(chunk.delta, end="", flush=True)
print()
