"""The parts of h200_evaluator.py: what the evaluator costs, how steady it is and what it lets through."""
