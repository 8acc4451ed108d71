"""Questions about the letters of a quoted word: how often one occurs, and the word backwards."""

from __future__ import annotations

import random
import string

from common.corpus.question import Problem

_COUNTING = (
    'How many "{letter}" are in "{word}"?',
    'Count the "{letter}" in "{word}".',
    'How often is "{letter}" in "{word}"?',
)
_REVERSING = (
    'Reverse "{word}".',
    'Spell "{word}" backwards.',
    'Write "{word}" in reverse.',
    'What is "{word}" backwards?',
)
_WORDS = tuple(
    [
        "apple",
        "banana",
        "bridge",
        "butter",
        "candle",
        "carrot",
        "castle",
        "cheese",
        "circle",
        "coffee",
        "copper",
        "cotton",
        "dinner",
        "doctor",
        "dragon",
        "eleven",
        "engine",
        "falcon",
        "family",
        "father",
        "feather",
        "finger",
        "forest",
        "garden",
        "ginger",
        "guitar",
        "hammer",
        "harbor",
        "helmet",
        "honey",
        "island",
        "jacket",
        "kettle",
        "kitten",
        "ladder",
        "lemon",
        "letter",
        "lizard",
        "magnet",
        "marble",
        "meadow",
        "mirror",
        "monkey",
        "mother",
        "needle",
        "nickel",
        "onion",
        "orange",
        "paper",
        "parrot",
        "pencil",
        "pepper",
        "pillow",
        "planet",
        "pocket",
        "potato",
        "puzzle",
        "rabbit",
        "ribbon",
        "river",
        "rocket",
        "saddle",
        "salmon",
        "school",
        "season",
        "shadow",
        "silver",
        "spider",
        "spring",
        "summer",
        "sunset",
        "tablet",
        "temple",
        "tiger",
        "tomato",
        "tunnel",
        "turtle",
        "valley",
        "velvet",
        "violin",
        "walnut",
        "window",
        "winter",
        "wizard",
        "yellow",
        "zebra",
    ]
)
_FEW_LETTERS = 4


def draw_counting(rng: random.Random) -> Problem:
    """How often a letter occurs in a word or in a string of few different letters: 0 to 5 times."""
    if rng.random() < 0.3:
        word = rng.choice(_WORDS)
        letter = rng.choice(word if rng.random() < 0.85 else string.ascii_lowercase)
    else:
        alphabet = rng.sample(string.ascii_lowercase, _FEW_LETTERS)
        word = "".join(rng.choices(alphabet, k=rng.randint(3, 7)))
        letter = rng.choice(alphabet)
        if word.count(letter) > 5:
            return draw_counting(rng)
    return Problem(
        key=f"count {letter} {word}",
        prompt=rng.choice(_COUNTING).format(letter=letter, word=word),
        answer=str(word.count(letter)),
    )


def draw_reversing(rng: random.Random) -> Problem:
    """A word, or three to six letters, backwards."""
    if rng.random() < 0.2:
        word = rng.choice(_WORDS)
    else:
        word = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 6)))
    return Problem(key=f"reverse {word}", prompt=rng.choice(_REVERSING).format(word=word), answer=word[::-1])
