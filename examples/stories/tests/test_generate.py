"""The generator: seeding, size, number and distinctness of the stories, and their grammar."""

from __future__ import annotations

import re

import frame
import plots
import pytest
import words
from generate import Story, story

SAMPLE = 1000


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return [story(seed) for seed in range(SAMPLE)]


def combinations() -> int:
    """Return a lower bound of the number of stories: frame, plot, characters and thing; all other slots count as
    one."""
    routes = sum(len(plot.start) * sum(map(len, plot.fits)) * len(plot.ends) for plot in plots.PLOTS)
    frames = len(frame.OPENINGS) * len(frame.FRIENDS)
    names = len(words.SHE_NAMES) * len(words.HE_NAMES)
    kinds = len(words.ANIMALS) * (len(words.ANIMALS) - 1)
    return routes * frames * names * kinds * len(words.COLOURS) * len(words.THINGS)


def test_same_seed_same_story() -> None:
    assert story(7) == story(7)
    assert story(7) != story(8)


def test_no_two_stories_are_the_same(stories: list[Story]) -> None:
    assert len({told.text for told in stories}) == SAMPLE


def test_there_are_far_more_than_200000_stories() -> None:
    assert combinations() > 10**9


def test_ten_thousand_seeds_give_ten_thousand_texts() -> None:
    """Stories drawn at random from 200,000 would have about 250 equal pairs among 10,000."""
    assert len({story(seed).text for seed in range(10_000)}) == 10_000


def test_dozens_of_plots() -> None:
    routes = sum(len(turns) for plot in plots.PLOTS for turns in plot.fits)
    assert (len(plots.PLOTS), routes) == (48, 335)


def test_word_counts(stories: list[Story]) -> None:
    counts = [len(told.text.split()) for told in stories]
    assert min(counts) >= 80
    assert max(counts) <= 250


def test_every_turn_can_happen() -> None:
    for plot in plots.PLOTS:
        assert len(plot.fits) == len(plot.mishaps)
        assert {int(index) for fit in plot.fits for index in fit} == set(range(len(plot.turns))), plot.name


def test_every_plot_is_told(stories: list[Story]) -> None:
    assert {told.plot for told in stories} == {plot.name for plot in plots.PLOTS}


def test_no_slot_is_left_open(stories: list[Story]) -> None:
    assert not [told.text for told in stories if re.search(r"[{}\[\]|]", told.text)]


@pytest.mark.parametrize(
    "mistake",
    [
        r"\b[Aa] (?:[aeiou]|honest)",
        r"\b[Aa]n (?![aeiou]|ho(?:nest|ur))",
        r"\b(?<!if )[Ii]t (?:were|are)\b",
        r"\b[Tt]hey (?:was|is)\b",
        r"\b(?:boots|mittens|skates|slippers|glasses|shoes|trousers) (?:was|is)\b",
        r"\bthis (?:boots|mittens|skates|slippers|glasses|shoes|trousers)\b",
        r"\bone (?:apples|pears|coins)\b",
        r"\b(\w+) \1\b(?<!had had)(?<!ate and ate)",
        r"  |\s$|^\s| [.,!?]",
        r"[.!?] [a-z]",
        r"^[a-z]|\n\"?[a-z]",
    ],
)
def test_grammar(stories: list[Story], mistake: str) -> None:
    assert not [match[0] for told in stories if (match := re.search(f".{{0,30}}{mistake}", told.text))]


def test_quotes_are_closed(stories: list[Story]) -> None:
    for told in stories:
        assert all(paragraph.count('"') % 2 == 0 for paragraph in told.text.split("\n\n")), told.text


def test_pronouns_tell_hero_and_friend_apart(stories: list[Story]) -> None:
    for told in stories:
        names = {"she": words.SHE_NAMES, "he": words.HE_NAMES}
        other = "he" if told.pronoun == "she" else "she"
        assert told.hero not in names[other]
        assert told.friend not in names[told.pronoun]


def test_nobody_else_has_a_name(stories: list[Story]) -> None:
    names = {*words.SHE_NAMES, *words.HE_NAMES}
    for told in stories:
        assert (names & set(re.findall(r"[A-Z]\w+", told.text))) <= {told.hero, told.friend}
        assert told.hero in told.text
        assert told.friend in told.text


def test_hero_and_friend_stay_what_they_are(stories: list[Story]) -> None:
    """Check that no third kind of animal or person appears, except those that are only mentioned."""
    kinds = {*words.ANIMALS, *words.PEOPLE}
    for told in stories:
        text = re.sub("very good teacher|to be a pirate|also the cat", "", told.text)
        assert kinds & set(re.findall(r"\b[a-z]+\b", text)) == {told.kind, told.friend_kind}


def test_the_one_who_helps_is_introduced_before_the(stories: list[Story]) -> None:
    for told in stories:
        for helper in words.HELPERS:
            mention = re.search(rf"\b(\w+)(?: old| big| small)? {helper}\b", told.text)
            assert mention is None or mention[1].lower() in ("a", "an", "it", "of")
