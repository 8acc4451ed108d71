"""What a model's answers are worth and what they cost: held-out questions, a grid of settings, scores, a report."""
