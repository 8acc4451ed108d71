"""Held-out questions that the default model answers rightly in every way the demo asks: what the demo may ask.

`python -m tests.cli.demo_candidates [PER_TASK]` lists them by task with their index, to write into
`common/cli/demo_questions.py` when the model has been trained anew.
"""

from __future__ import annotations

import sys

from common.cli.default_model import default_model_dir
from common.cli.demo_questions import SEED, WAYS, request_for
from common.cli.local_check import LocalCheck
from common.corpus.questions import TASKS, held_out_questions
from common.text_codec import load_text_codec


def main(per_task: int) -> None:
    """Print the candidates, task by task."""
    model_dir = default_model_dir()
    codec = load_text_codec(model_dir)
    for task in TASKS:
        questions = held_out_questions(per_task=per_task, seed=SEED, tasks=(task,))
        requests = {question: [request_for(question, *way) for way in WAYS] for question in questions}
        every = [request for each in requests.values() for request in each]
        check = LocalCheck.load(model_dir, every, device="cpu", dtype="auto")
        right = 0
        for index, (question, each) in enumerate(requests.items()):
            answers = {codec.decode(check.run(request).token_ids) for request in each}
            if answers == {question.answer}:
                right += 1
                print(f"{task} {index}: {question.prompt} -> {question.answer}", flush=True)
        print(f"{task}: {right} of {len(questions)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
