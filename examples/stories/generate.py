"""A seeded generator of short simple stories: `story(seed)` is always the same text for the same seed.

python generate.py --seed 7 --count 3
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from typing import NamedTuple

import frame
import plots
import words

HELPER = re.compile(r"\{([aA])_(?:(old|big|small)_)?helper\}")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou]|honest)")
START = re.compile(r"((?:^|\n)\"?|[.!?] \"?|[.!?]\" \")([a-z])")
PRONOUNS = {"she": ("she", "her", "her", "herself"), "he": ("he", "him", "his", "himself")}


class Story(NamedTuple):
    """One story with its plot and characters."""

    text: str
    plot: str
    hero: str
    kind: str
    pronoun: str
    friend: str
    friend_kind: str
    thing: str  # with its article


def _character(rng: random.Random, pronoun: str) -> tuple[str, str]:
    name = rng.choice(words.SHE_NAMES if pronoun == "she" else words.HE_NAMES)
    if rng.random() < 0.4:  # a made-up name: the model must learn to copy names
        name = "".join(rng.choice(part) for part in words.NAME_PARTS)
    return name, rng.choice(words.ANIMALS if rng.random() < 0.8 else words.PEOPLE)


def _slots(rng: random.Random) -> dict[str, str]:
    """Return a value for every slot of the templates, agreeing in number and gender."""
    pronoun, other = rng.sample(("she", "he"), 2)
    (hero, kind), (friend, friend_kind) = _character(rng, pronoun), _character(rng, other)
    while friend_kind == kind or friend == hero:
        friend, friend_kind = _character(rng, other)
    slots = {"H": hero, "hs": kind, "F": friend, "fs": friend_kind}
    for prefix, forms in (("", PRONOUNS[pronoun]), ("f", PRONOUNS[other])):
        slots |= dict(zip((prefix + "he", prefix + "him", prefix + "his", prefix + "self"), forms, strict=True))
    slots["trait"], slots["ftrait"] = rng.sample(words.TRAITS, 2)

    plural = rng.random() < 0.12
    noun = rng.choice(words.PAIRS if plural else words.THINGS)
    look = rng.choice(words.COLOURS if plural or rng.random() < 0.6 else words.LOOKS)
    slots |= {"thing": noun, "T": f"{look} {noun}", "aT": f"a pair of {look} {noun}" if plural else f"a {look} {noun}"}
    slots |= dict(
        zip(
            ("it", "them", "was", "is", "they", "no_thing", "is_this"),
            ("they", "them", "were", "are", "they", f"no {noun} anywhere", "are these")
            if plural
            else ("it", "it", "was", "is", "it", f"no {noun} anywhere", "is this"),
            strict=True,
        )
    )
    slots["T2"] = f"{rng.choice(words.COLOURS)} {rng.choice([other for other in words.THINGS if other != noun])}"
    slots["aT2"] = f"a {slots['T2']}"

    places = [(preposition, place) for preposition, names in words.PLACES.items() for place in names]
    (home_at, home), (at, place) = rng.sample(places, 2)
    slots |= {"home": f"{home_at} {home}", "P": place, "at": f"{at} {place}", "house": rng.choice(words.HOUSES)}
    slots["hobby"], slots["hobby2"] = rng.sample(words.HOBBIES, 2)
    for name, options in (
        ("food", words.FOODS),
        ("fruits", words.FRUITS),
        ("number", words.NUMBERS),
        ("quirk", words.QUIRKS),
        ("helper", words.HELPERS),
        ("fear", words.FEARS),
        ("sight", words.SIGHTS),
        ("noise", words.NOISES),
        ("good", words.GOOD_FEELINGS),
        ("bad", words.BAD_FEELINGS),
    ):
        slots[name] = rng.choice(options)
    slots["Time"] = rng.choice(words.TIMES)
    slots["time"] = slots["Time"][0].lower() + slots["Time"][1:]
    slots["skill"], slots["skilled"] = rng.choice(list(words.SKILLS.items()))
    slots["contest"], slots["do"] = rng.choice(list(words.CONTESTS.items()))
    slots["wish"], (slots["trouble"], slots["size"]) = rng.choice(list(words.WISHES.items()))
    for key in ("he", "his", "fhe", "fhis", "they", "number", "is_this", "no_thing"):
        slots[key[0].upper() + key[1:]] = slots[key][0].upper() + slots[key][1:]
    return slots


def _paragraphs(rng: random.Random, plot: plots.Plot) -> list[str]:
    opening = [rng.choice(frame.OPENINGS)]
    if rng.random() < 0.6:
        opening.append(rng.choice(frame.HABITS))
    opening.append(rng.choice(frame.FRIENDS))
    mishap = rng.randrange(len(plot.mishaps))
    middle = [rng.choice(plot.start), plot.mishaps[mishap]]
    turn = plot.turns[int(rng.choice(plot.fits[mishap]))]
    end = [rng.choice(plot.ends)]
    if rng.random() < 0.8:
        helper_known = any(HELPER.search(text) for text in (*middle, turn))
        end.append(rng.choice([text for text in frame.CLOSINGS if helper_known or not HELPER.search(text)]))
    return [" ".join(opening), " ".join(middle), turn, " ".join(end)]


def _name_helper(text: str, helper: str) -> str:
    """Write "a {helper}" at the first mention, "the {helper}" at all later ones."""
    mentions = itertools.count()

    def phrase(match: re.Match[str]) -> str:
        article = "the" if next(mentions) else "a"
        article = article.capitalize() if match[1] == "A" else article
        return " ".join(part for part in (article, match[2], helper) if part)

    return HELPER.sub(phrase, text)


def story(seed: int) -> Story:
    """Return the story of this seed: 80 to 250 words in four paragraphs."""
    rng = random.Random(f"story {seed}")
    while True:
        plot = rng.choice(plots.PLOTS)
        slots = _slots(rng)
        text = "\n\n".join(_paragraphs(rng, plot))
        text = _name_helper(text, slots["helper"]).format_map(slots)
        text = ARTICLE.sub(r"\1n ", text)
        text = START.sub(lambda match: match[1] + match[2].upper(), text)
        if 80 <= len(text.split()) <= 250:
            return Story(text, plot.name, slots["H"], slots["hs"], slots["he"], slots["F"], slots["fs"], slots["aT"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first story")
    parser.add_argument("--count", type=int, default=1, help="number of stories")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        print(story(seed).text, end="\n\n---\n\n")


if __name__ == "__main__":
    main()
