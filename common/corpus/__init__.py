"""Generated questions with answers that are computed, not written: what sangam-tiny learns and is examined on.

Pure Python; every draw comes from a `random.Random`. `questions.py` is the door.
"""
