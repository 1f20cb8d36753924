"""The exception tree. Expected failures of a candidate are values (see verdict.py), never exceptions.

HtamError                     code, message, remedy, exit_code
├── UsageError                exit 2: the caller's input is at fault
│   ├── TaskError             the task file or object cannot be used
│   ├── SettingsError         a setting is missing, unknown or does not fit
│   ├── BackendUnavailable    the machine lacks what the chosen backend needs
│   ├── StoreError            a memory folder is corrupt, newer or foreign
│   └── RunError              a run folder is missing, corrupt, or cannot be written
├── InfrastructureError       exit 3: the machine or a service is at fault
│   ├── WorkerError           a harness process died or stopped answering
│   └── ModelError            the chat model's endpoint failed for good
└── BudgetSpent               exit 1: a further question to the model could cost more than the run may still spend
"""

from __future__ import annotations


class HtamError(Exception):
    """Base of every error that htam raises on purpose.

    `code` is stable and machine-readable (kebab-case), `message` says what was wrong and where, `remedy` what to do.
    """

    code = "error"
    exit_code = 3

    def __init__(self, message: str, remedy: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(HtamError):
    code = "usage"
    exit_code = 2


class TaskError(UsageError):
    code = "task"


class SettingsError(UsageError):
    code = "settings"


class BackendUnavailable(UsageError):
    code = "backend-unavailable"


class StoreError(UsageError):
    code = "memory-store"


class RunError(UsageError):
    code = "run"


class InfrastructureError(HtamError):
    code = "infrastructure"
    exit_code = 3


class WorkerError(InfrastructureError):
    code = "worker"


class ModelError(InfrastructureError):
    code = "model"


class BudgetSpent(HtamError):
    code = "budget-spent"
    exit_code = 1
