"""What all tables of a contract file are: strict models, in which unknown keys don't pass."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
