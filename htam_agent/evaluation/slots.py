"""How many sets of inputs lie side by side in shared memory for timed calls to take in turn."""

from __future__ import annotations

from htam_agent.evaluation.free_memory import available_bytes

MOST_SLOTS = 3
SHARE = 0.6
"""Part of the memory that is free when a task is loaded which its timed calls may take."""


def slots_for(device: str, slot_bytes: int, output_bytes: int) -> int:
    """1 to MOST_SLOTS, as the free memory of `device` allows.

    Each set is there once; each side keeps one output a set. Beside them lie two draws of the inputs, their mixture and
    a scratch copy, and of the outputs the expected ones under two settings, the shared ones and scratch.
    """
    if device == "cpu":
        free = available_bytes()
    else:
        import torch

        free = torch.cuda.mem_get_info(device)[0]
    for slots in range(MOST_SLOTS, 1, -1):
        if (slots + 4) * slot_bytes + (2 * slots + 5) * output_bytes <= SHARE * free:
            return slots
    return 1
