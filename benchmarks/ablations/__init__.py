"""The ablation: the real graph, replayed against the table of measured plans."""
