-- What is counted, who listens, and which requests of remote callers came before.

-- Counters, changed in the transaction that makes what they count happen. What went as usual isn't
-- counted here but from the settlements: those up to `metric_fold.seq` are in, the others follow.
create table metric (
    tenant text collate "C" not null default 'main',
    name text collate "C" not null,
    labels text collate "C" not null,   -- canonical JSON
    value bigint not null,
    primary key (tenant, name, labels)
);

create table metric_fold (
    tenant text collate "C" not null default 'main' primary key,
    seq bigint not null
);

-- Operations of which it is not known whether they took effect, and since when.
create table doubt (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    since_ms bigint not null,
    primary key (tenant, operation_id),
    foreign key (tenant, operation_id) references operation (tenant, id)
);

-- Who is told of settlements, and up to which. One holder at a time delivers.
create table subscriber (
    tenant text collate "C" not null default 'main',
    whose text collate "C" not null,    -- role and name of the principal
    name text collate "C" not null,
    seq bigint not null,
    holder text collate "C",
    holder_until_ms bigint,
    primary key (tenant, whose, name)
);

-- A request that joined an operation of another id: its repeat is told the same.
create table request (
    tenant text collate "C" not null default 'main',
    id text collate "C" not null,
    operation_id text collate "C" not null,
    primary key (tenant, id),
    foreign key (tenant, operation_id) references operation (tenant, id)
);
