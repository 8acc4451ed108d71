"""Questions about the letters of a quoted word: how many there are, how often one occurs, and the word backwards."""

from __future__ import annotations

import itertools
import random
import string

from common.corpus.question import Problem

_LETTERS = ('How many letters are in "{word}"?', 'Count the letters in "{word}".', 'How many letters has "{word}"?')
_VOWELS = ('How many vowels are in "{word}"?', 'Count the vowels in "{word}".', 'How many vowels has "{word}"?')
_OCCURRENCES = (
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
_VOWEL_LETTERS = "aeiou"


def draw_counting(rng: random.Random) -> Problem:
    """How many letters, or vowels, a word or a string of three to seven letters has.

    The working counts along the word: the vowels in "banana" are "b0 a1 n1 a2 n2 a3: 3".
    """
    if rng.random() < 0.3:
        word = rng.choice(_WORDS)
    else:
        letters = string.ascii_lowercase, _VOWEL_LETTERS
        word = "".join(rng.choice(letters[rng.random() < 0.4]) for _ in range(rng.randint(3, 7)))
    kind, wanted = rng.choice((("letters", string.ascii_lowercase), ("vowels", _VOWEL_LETTERS)))
    return Problem(
        key=f"count {kind} {word}",
        prompt=rng.choice(_LETTERS if kind == "letters" else _VOWELS).format(word=word),
        answer=f"{_counted(word, wanted)}: {sum(letter in wanted for letter in word)}",
    )


def draw_occurrences(rng: random.Random) -> Problem:
    """How often a letter occurs in a word or in a string of few different letters: 0 to 5 times.

    The working counts along the word: "a" in "banana" is "b0 a1 n1 a2 n2 a3: 3".
    """
    if rng.random() < 0.3:
        word = rng.choice(_WORDS)
        letter = rng.choice(word if rng.random() < 0.85 else string.ascii_lowercase)
    else:
        alphabet = rng.sample(string.ascii_lowercase, _FEW_LETTERS)
        word = "".join(rng.choices(alphabet, k=rng.randint(3, 7)))
        letter = rng.choice(alphabet)
        if word.count(letter) > 5:
            return draw_occurrences(rng)
    return Problem(
        key=f"count {letter} {word}",
        prompt=rng.choice(_OCCURRENCES).format(letter=letter, word=word),
        answer=f"{_counted(word, letter)}: {word.count(letter)}",
    )


def _counted(word: str, wanted: str) -> str:
    """Each letter with the count of `wanted` ones up to it."""
    counts = itertools.accumulate(int(letter in wanted) for letter in word)
    return " ".join(f"{letter}{count}" for letter, count in zip(word, counts, strict=True))


def draw_reversing(rng: random.Random) -> Problem:
    """A word, or three to six letters, backwards."""
    if rng.random() < 0.2:
        word = rng.choice(_WORDS)
    else:
        word = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 6)))
    return Problem(key=f"reverse {word}", prompt=rng.choice(_REVERSING).format(word=word), answer=word[::-1])
