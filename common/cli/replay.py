"""Run recorded stories of the cores again, and say whether they decide now what they decided then.

A service writes the story of its core when started with --story-dir (sangam up --story-dir DIR): every event with its
time. Exit codes: 0 the same, 1 it parts from the record (the first such event is shown), 2 no story.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.cli.progress import Progress
from common.story.reader import Told
from common.story.replay import Parting, Replay, Watch, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam replay`."""
    parser.add_argument("stories", nargs="+", type=Path, metavar="STORY", help="file written under --story-dir")
    parser.add_argument("--show", action="store_true", help="print every event and the effects it leads to")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0 when every story went as recorded, else 1. Raises BadStory."""
    same = True
    for path in args.stories:
        with Progress(100, f"% of {path.name}") as progress:
            told = replay(path, _show if args.show else _shown_on(progress))
        print(f"{path.name}: {describe(told)}", flush=True)
        same &= told.parting is None
    return 0 if same else 1


def describe(told: Replay) -> str:
    """The outcome of a replay in words."""
    what = f"{told.events} events of the {told.core} core of {told.service or 'a service'}, {told.effects} effects"
    if told.parting is not None:
        return f"{what}, then it parts\n{_describe_parting(told.parting)}"
    notes = [
        f"it ends as it did: {told.error}" if told.error else "",
        told.end,
        "the last line is cut short (the process was killed while it wrote)" if told.is_cut_short else "",
    ]
    return "; ".join([f"{what}: the same", *(note for note in notes if note)])


def _describe_parting(parting: Parting) -> str:
    told = parting.told
    lines = [f"  event {told.number} at {told.at_s:.6f} s: {told.event}", f"    then: {told.outcome}"]
    lines.append(f"    now:  {parting.outcome}")
    return "\n".join([*lines, *(f"      {effect}" for effect in parting.effects)])


def _show(told: Told, effects: Sequence[Any], share: float) -> None:
    print(f"{told.number} {told.at_s:.6f} {told.event}")
    for effect in effects:
        print(f"    {effect}")
    if told.outcome.error:
        print(f"    {told.outcome.error}")


def _shown_on(progress: Progress) -> Watch:
    return lambda told, effects, share: progress.show(int(share * 100), f"event {told.number}")
