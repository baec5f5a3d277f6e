-- What is counted, who listens, and which requests of remote callers came before.

-- Counters, changed in the transaction that makes what they count happen. What went as usual isn't
-- counted here but from the settlements: those up to `metric_fold.seq` are in, the others follow.
create table metric (
    tenant text not null default 'main',
    name text not null,
    labels text not null,                -- canonical JSON
    value integer not null,
    primary key (tenant, name, labels)
) without rowid, strict;

create table metric_fold (
    tenant text not null default 'main' primary key,
    seq integer not null
) without rowid, strict;

-- Operations of which it is not known whether they took effect, and since when.
create table doubt (
    tenant text not null default 'main',
    operation_id text not null,
    since_ms integer not null,
    primary key (tenant, operation_id),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;

-- Who is told of settlements, and up to which. One holder at a time delivers.
create table subscriber (
    tenant text not null default 'main',
    whose text not null,                 -- role and name of the principal
    name text not null,
    seq integer not null,
    holder text,
    holder_until_ms integer,
    primary key (tenant, whose, name)
) without rowid, strict;

-- A request that joined an operation of another id: its repeat is told the same.
create table request (
    tenant text not null default 'main',
    id text not null,
    operation_id text not null,
    primary key (tenant, id),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;
