"""The chat form of the stories: a user asks for a story, and the assistant tells it."""

from __future__ import annotations

import random

from generate import ARTICLE, Story, story

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
    "Tell me a story about a {kind} named {hero}.",
    "Tell me a story about {hero} the {kind}.",
    "Tell a story about a {kind} named {hero}",
    "A story about a {kind} called {hero}, please.",
    "Tell me a story about a {kind}.",
    "Write a story about a {kind}.",
    "A {kind}",
    "Tell me a story about a {kind} named {hero} and a {friend_kind} named {friend}.",
    "Please tell me a story about a {kind} and a {friend_kind}.",
    "A story about {hero} and {friend}, please.",
    "Tell me a story about {plot}.",
    "Can you tell me a story about {plot}?",
    "Tell me a story about {hero} the {kind} and {plot}.",
    "Can you tell me a story about {thing}?",
)


def request(rng: random.Random, told: Story) -> str:
    """Return a plausible request for this story; a third of them without a capital letter."""
    asked = rng.choice([text for text in ABOUT if "{thing}" not in text or told.thing in told.text])
    asked = ARTICLE.sub(r"\1n ", asked.format(**told._asdict()))
    return asked if rng.random() < 0.7 else asked[0].lower() + asked[1:]


def conversation(seed: int) -> list[dict[str, str]]:
    """Return the messages of one to four requests with their stories."""
    rng = random.Random(f"chat {seed}")
    messages: list[dict[str, str]] = []
    for turn in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 3, 4))):
        told = story(seed + turn)
        asked = request(rng, told) if rng.random() < 0.7 else rng.choice(AGAIN if turn else ANY)
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": told.text})
    return messages


def render(messages: list[dict[str, str]]) -> str:
    """Render the messages with TEMPLATE."""
    return "".join(f"{m['role'].capitalize()}: {m['content'].strip()}<|eot_id|>" for m in messages)
