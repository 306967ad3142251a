"""The frame of a plot: beginnings, introductions of the hero and the friend, and closing sentences. Slots as in
plots.py."""

from __future__ import annotations

OPENINGS = (
    "Once upon a time there lived a {trait} {hs} named {H} in {house} {home}.",
    "Once upon a time {home} there was {house}, and there lived {H}, a {trait} {hs}.",
    "Once upon a time there was a {trait} {hs} named {H}. {H} lived in {house} {home}.",
    "Once upon a time, in {house} {home}, there lived a {trait} {hs} named {H}.",
    "{H} was a {trait} {hs} who lived in {house} {home}.",
    "Long ago a {hs} named {H} lived in {house} {home}. Everybody said that {H} was very {trait}.",
    "This is the story of {H}, a {trait} {hs} who lived in {house} {home}.",
    "There once was a {hs} named {H}, and nobody {home} was as {trait} as {he} was.",
)
HABITS = (
    "{He} liked to {hobby}.",
    "Every day {he} liked to {hobby} and to {hobby2}.",
    "Most of all {he} loved {food}.",
    "{He} loved to {hobby}, and {he} never said no to {food}.",
)
FRIENDS = (
    "{His} best friend was a {ftrait} {fs} named {F}, who {quirk}.",
    "{H} had a friend named {F}. {F} was a {ftrait} {fs} who {quirk}.",
    "Next door lived {F}, a {ftrait} {fs} who {quirk}.",
    "{His} neighbour was {F}, a {ftrait} {fs} who {quirk}.",
    "{H} liked nobody better than {F}, a {ftrait} {fs} who {quirk}.",
)
CLOSINGS = (
    "And from that day on, {H} and {F} were the best of friends.",
    "And if they have not gone to bed, they are still laughing today.",
    "That night {H} the {hs} slept very well, and so did {F} the {fs}.",
    '"What a day!" said {H}. "And tomorrow we do it again," said {F}.',
    "Then they ate {food} until the moon came up.",
    "{H} and {F} still tell this story when it rains.",
    '"You are a good friend," said {H}. "I know," said {F}, and they both laughed.',
    "Everybody {home} still talks about {H} the {hs} and {F} the {fs}.",
    "And {H} never forgot that a friend is worth more than {aT2}.",
    "And {a_helper}? {A_helper} got the biggest piece of {food}.",
    "Then {H} went home, closed the door and smiled.",
    "After that, {H} the {hs} was never {bad} again. Well, almost never.",
    "Only {F} the {fs} knows how the story went on, and {fhe} does not tell.",
    "This is how {H} the {hs} and {F} the {fs} became famous {home}.",
    '"Good night, {F}," said {H}. "Good night, {H}," said {F}.',
    "And if you are ever {home}, you may meet {H} the {hs}. Say hello from me!",
)
