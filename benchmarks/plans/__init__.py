"""The table of measured plans: operators, the plans that a run can reach, and how each is measured."""
