"""Deep checks of a candidate that was found correct: other shapes, sanitizers, hardware counters.

Each runs the candidate in a separate confined process (supervisor.py starts it, runner.py is it), never beside the
reference: inputs and outputs cross as files.
"""
