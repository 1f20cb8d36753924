"""Many kernels against many tasks, from a file of JSON lines to a file of JSON lines, resumable."""
