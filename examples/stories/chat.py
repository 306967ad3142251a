"""The chat form of the stories: somebody asks for a story, and the assistant tells it."""

from __future__ import annotations

import random

from generate import ARTICLE, story

TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = message['role'] | capitalize"
    " + ': '+ message['content'] | trim + '<|eot_id|>' %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ 'Assistant: ' }}{% endif %}"
)
ANY = (
    "Tell me a story.",
    "Tell me a short story, please.",
    "Can you tell me a story?",
    "Hello! Do you know a story?",
    "Hi!",
)
AGAIN = ("Another one, please.", "Tell me another story.", "One more!", "Thank you! And another one?")
ABOUT = (
    "Tell me a story about a {kind}.",
    "Tell me a story about {hero} the {kind}.",
    "Tell me a story about a {kind} named {hero}.",
    "Please tell me a story about a {kind} and a {friend_kind}.",
    "Can you tell me a story about {thing}?",
    "Write a story about a {kind}.",
    "A story about {hero} and {friend}, please.",
    "a {kind}",
)


def conversation(seed: int) -> list[dict[str, str]]:
    """Messages of one or two requests with their stories."""
    rng = random.Random(f"chat {seed}")
    messages: list[dict[str, str]] = []
    for turn in range(2 if rng.random() < 0.2 else 1):
        told = story(seed + turn)
        request = rng.choice(rng.choice((ABOUT, ABOUT, AGAIN if turn else ANY))).format(**told._asdict())
        messages.append({"role": "user", "content": ARTICLE.sub(r"\1n ", request)})
        messages.append({"role": "assistant", "content": told.text})
    return messages


def render(messages: list[dict[str, str]]) -> str:
    """What TEMPLATE makes of the messages."""
    return "".join(f"{m['role'].capitalize()}: {m['content'].strip()}<|eot_id|>" for m in messages)
