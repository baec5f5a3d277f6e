"""What a check-up finds: each check by a stable name, how grave it is, and how to mend it."""

from dataclasses import dataclass
from enum import StrEnum

from doubtless.core.model import Json


class Grade(StrEnum):
    """How grave it is. Only an error makes the check-up fail."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    check: str  # its name, which stays
    grade: Grade
    found: str  # what is so, in a sentence; never a secret
    mend: str = ""  # what to do, where it isn't well

    def to_json(self) -> dict[str, Json]:
        """Return it for programs."""
        return {
            "check": self.check,
            "grade": self.grade.value,
            "found": self.found,
            "mend": self.mend or None,
        }


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, grade=Grade.OK, found=found)


def warning(check: str, found: str, mend: str) -> Finding:
    """It works, but not as it should, or not under all circumstances."""
    return Finding(check=check, grade=Grade.WARNING, found=found, mend=mend)


def error(check: str, found: str, mend: str) -> Finding:
    """It doesn't work, or loses what it acknowledged."""
    return Finding(check=check, grade=Grade.ERROR, found=found, mend=mend)
