"""Migrations that no release has: a pre step, and a post step that undoes what older code uses."""

from collections.abc import Mapping

from doubtless.ledger import migrate
from doubtless.ledger.migrate import Migration

PRE: Mapping[str, str] = {
    "sqlite": """
        create table made_up (tenant text not null default 'main', a integer) strict;
        alter table operation add column made_up integer default 7;
    """,
    "postgres": """
        create table made_up (tenant text not null default 'main', a bigint);
        alter table operation add column made_up bigint default 7;
    """,
}
POST = "insert into made_up (a) values (1);"
INDEX: Mapping[str, str] = {
    "sqlite": "create index made_up_a on made_up (a);\ncreate index made_up_b on made_up (a);",
    "postgres": "-- outside a transaction\n"
    "create index concurrently made_up_a on made_up (a);\n"
    "create index concurrently made_up_b on made_up (a);",
}


def released(database: str) -> tuple[Migration, ...]:
    """Return the migrations of this release."""
    return migrate.known(database)


def steps(database: str, *, after: int | None = None) -> tuple[Migration, ...]:
    """Return a pre step, one that builds indexes, and a post step, of the numbers that follow."""
    last = released(database)[-1].number if after is None else after
    texts = (PRE[database], INDEX[database], POST)
    names = ("made_up.pre", "made_up_index.pre", "made_up.post")
    return tuple(
        Migration(number=last + at, name=f"{last + at:04d}_{name}.sql", text=text)
        for at, (name, text) in enumerate(zip(names, texts, strict=True), start=1)
    )
