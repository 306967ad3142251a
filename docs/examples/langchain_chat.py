"""LangChain with `bitnet serve`. Usage: langchain_chat.py http://127.0.0.1:8080/v1"""

import sys

from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="stories", max_tokens=24, temperature=0)
print(model.invoke("Tell me a story.").content)
for chunk in model.stream("And another one."):
    print(chunk.content, end="", flush=True)
print()
