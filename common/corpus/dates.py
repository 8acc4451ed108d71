"""Weekdays some days on or back, and dates some days on, the working shown."""

from __future__ import annotations

import random

from common.corpus.question import Problem

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_AFTER = (
    "What day is {n} days after {day}?",
    "Which weekday comes {n} days after {day}?",
    "Today is {day}. What day is it in {n} days?",
    "It is {day}. Which day will it be in {n} days?",
)
_BEFORE = (
    "What day is {n} days before {day}?",
    "Which weekday comes {n} days before {day}?",
    "Today is {day}. What day was it {n} days ago?",
    "It is {day}. Which day was it {n} days ago?",
)
_MONTH_DAYS = {
    "January": 31,
    "February": 28,
    "March": 31,
    "April": 30,
    "May": 31,
    "June": 30,
    "July": 31,
    "August": 31,
    "September": 30,
    "October": 31,
    "November": 30,
    "December": 31,
}
_MONTHS = tuple(_MONTH_DAYS)
_DATE_AFTER = (
    "What date is {n} days after {month} {day}?",
    "Which date comes {n} days after {month} {day}?",
    "Today is {month} {day}. What is the date in {n} days?",
)


def draw_weekday(rng: random.Random) -> Problem:
    """Up to 30 days after or before a weekday. The working takes out the whole weeks and counts the rest.

    16 days after Monday: "16=14+2, 1 Tuesday, 2 Wednesday: Wednesday".
    """
    start, n, after = rng.randrange(7), rng.randint(2, 30), rng.random() < 0.5
    way = 1 if after else -1
    counted = "".join(f", {step} {_WEEKDAYS[(start + way * step) % 7]}" for step in range(1, n % 7 + 1))
    end = (start + way * n) % 7
    return Problem(
        key=f"weekday {start} {n if after else -n}",
        prompt=rng.choice(_AFTER if after else _BEFORE).format(n=n, day=_WEEKDAYS[start]),
        answer=f"{n}={n - n % 7}+{n % 7}{counted}: {_WEEKDAYS[end]}",
    )


def draw_date(rng: random.Random) -> Problem:
    """2 to 9 days after a date: "28+6=34, 34-31=3: April 3".

    Never from a day of February, so that leap years do not matter.
    """
    month = rng.choice([month for month in _MONTHS if month != "February"])
    length = _MONTH_DAYS[month]
    day, n = rng.randint(1, length), rng.randint(2, 9)
    answer = f"{day}+{n}={day + n}"
    if day + n > length:
        following = _MONTHS[(_MONTHS.index(month) + 1) % 12]
        answer += f", {day + n}-{length}={day + n - length}: {following} {day + n - length}"
    else:
        answer += f": {month} {day + n}"
    return Problem(
        key=f"date {month} {day} {n}",
        prompt=rng.choice(_DATE_AFTER).format(n=n, month=month, day=day),
        answer=answer,
    )
