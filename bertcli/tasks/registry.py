"""The learning tasks, by name.

named_tasks("classify")  # (CLASSIFY,)
named_tasks("embed")     # (CONTRAST, SIMILARITY): two tasks with other fields
"""

from __future__ import annotations

from bertcli.tasks.answer import ANSWER
from bertcli.tasks.classify import CLASSIFY
from bertcli.tasks.learning import LearningTask
from bertcli.tasks.multilabel import MULTILABEL
from bertcli.tasks.pairs import CONTRAST, SIMILARITY
from bertcli.tasks.regress import REGRESS
from bertcli.tasks.tag import TAG

# Messages list them in this order; the first one whose label fits is chosen.
LEARNING_TASKS: tuple[LearningTask, ...] = (
    CLASSIFY,
    MULTILABEL,
    REGRESS,
    TAG,
    ANSWER,
    CONTRAST,
    SIMILARITY,
)
TASK_NAMES = tuple(dict.fromkeys(task.name for task in LEARNING_TASKS))


def named_tasks(name: str | None) -> tuple[LearningTask, ...]:
    """Return the tasks of this name; without a name, those that are inferred from fields."""
    if name is None:
        return tuple(task for task in LEARNING_TASKS if task.is_default)
    return tuple(task for task in LEARNING_TASKS if task.name == name)
