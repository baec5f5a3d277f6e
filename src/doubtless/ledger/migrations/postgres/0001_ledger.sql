-- The ledger. Every table has a tenant; instants are integer milliseconds since the epoch; JSON is
-- text. Tables and columns are those of SQLite's, file by file, but for `writer`. Text is compared
-- by code points, as there. Where a table has several indexes, the column that tells most comes
-- first: before there are statistics, one that begins with the tenant looks as good as any other.

create function refuse() returns trigger language plpgsql as $$
begin
    raise exception '%', tg_argv[0];
end
$$;

-- Facts about the ledger as a whole: one row, of the tenant 'main'.
create table meta (
    tenant text collate "C" not null default 'main' primary key,
    ledger_id text collate "C" not null, -- 16 random bytes in hexadecimal
    created_ms bigint not null,
    clock_floor_ms bigint not null,     -- the highest `now` ever committed
    clock_break_ms bigint not null default 0,
    mended bigint not null default 0    -- how often a failed commit was written over in the log
);

-- Up to which group of units each writing connection has committed: whoever loses the connection
-- during a COMMIT reads here what became of it.
create table writer (
    tenant text collate "C" not null default 'main',
    id text collate "C" not null,
    number bigint not null,
    at_ms bigint not null,
    primary key (tenant, id)
);

-- What was done to this schema, in order. A file that is changed after it was applied is noticed.
create table migration (
    tenant text collate "C" not null default 'main',
    number bigint not null,
    name text collate "C" not null,
    checksum text collate "C" not null,
    applied_ms bigint not null,
    primary key (tenant, number)
);

create table operation (
    position bigint generated always as identity primary key, -- the order of creation
    tenant text collate "C" not null default 'main',
    id text collate "C" not null,
    tool text collate "C" not null,
    effect text collate "C" not null,
    source text collate "C" not null,
    principal text collate "C" not null,
    session_id text collate "C" not null,
    correlation_id text collate "C",
    contract_digest text collate "C" not null,
    payload_hash text collate "C" not null,
    request_digest text collate "C" not null,
    ref text collate "C" not null,
    key text collate "C" not null,
    state text collate "C" not null check (state in (
        'prepared', 'awaiting_approval', 'executing', 'accepted', 'unknown', 'reconciling',
        'manual_review', 'succeeded', 'failed', 'rejected', 'cancelled')),
    version bigint not null check (version > 0),
    fence bigint not null check (fence >= 0),
    created_ms bigint not null,
    updated_ms bigint not null,
    due_ms bigint,
    valid_until_ms bigint not null,
    owner text collate "C",
    lease_end_ms bigint,
    cause text collate "C",
    origin text collate "C",
    deadline_ms bigint,
    accepted_ms bigint,
    completes_by_ms bigint,
    not_before_ms bigint,
    looks bigint not null,
    budget_from bigint not null,
    business_key text collate "C",
    claim text collate "C",
    provider_operation_id text collate "C",
    status_url text collate "C",
    confirmed_state text collate "C",
    confirmed_ms bigint,
    confirmed_source text collate "C",
    supersedes text collate "C",
    superseded_by text collate "C",
    duplicate_of text collate "C",
    on_unknown text collate "C" not null,
    needs_approval bigint not null,
    open bigint not null,               -- 1 until it ends: said twice, for the indexes
    unique (id, tenant),
    check (open = case when state in ('succeeded', 'failed', 'rejected', 'cancelled')
                       then 0 else 1 end),
    check (due_ms is not null or open = 0)
);

-- Over open operations alone, so that any number of settled ones slows no claim.
create index operation_due on operation (tenant, due_ms) where open = 1;

create index operation_session on operation (session_id, principal, tenant);
create index operation_object on operation (claim, source, tenant) where claim is not null;
create index operation_key on operation (key, tenant);
create index operation_ref on operation (ref, tenant);
create index operation_provider on operation (provider_operation_id, tenant)
 where provider_operation_id is not null;

create trigger operation_fence before update of fence on operation for each row
  when (new.fence < old.fence)
  execute function refuse('a fence only grows');

create trigger operation_identity before update of
    position, tenant, id, tool, effect, source, principal, session_id, contract_digest,
    payload_hash, request_digest, ref, key, created_ms on operation for each row
  execute function refuse('what an operation is never changes');

create table attempt (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    number bigint not null check (number > 0),
    correlation_id text collate "C" not null,
    fence bigint not null,
    owner text collate "C" not null,
    opened_ms bigint not null,
    lease_end_ms bigint not null,
    resend bigint not null,
    sent_by_ms bigint,
    ended_ms bigint,
    closed_ms bigint,
    observation text collate "C",
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id),
    check ((ended_ms is null) = (observation is null))
);

create table evidence (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    number bigint not null check (number > 0),
    source text collate "C" not null,
    shows text collate "C" not null,
    strength text collate "C" not null,
    at_ms bigint not null,
    begun_ms bigint not null,
    by text collate "C" not null,
    attempt bigint,
    occurred_ms bigint,
    provider_operation_id text collate "C",
    detail text collate "C" not null,
    digest text collate "C",
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id)
);

create trigger evidence_kept before update on evidence for each row
  execute function refuse('evidence is only appended');
create trigger evidence_never_deleted before delete on evidence for each row
  execute function refuse('evidence is only appended');
create trigger evidence_never_emptied before truncate on evidence
  execute function refuse('evidence is only appended');

-- A row is what one unit of work did to one operation: [[kind, principal, role, data], …].
create table journal (
    seq bigint generated always as identity primary key,
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null, -- a refusal may name one that doesn't exist
    at_ms bigint not null,
    entries text collate "C" not null
);

create index journal_operation on journal (tenant, operation_id);

create trigger journal_kept before update on journal for each row
  execute function refuse('the journal is only appended');
create trigger journal_never_deleted before delete on journal for each row
  execute function refuse('the journal is only appended');
create trigger journal_never_emptied before truncate on journal
  execute function refuse('the journal is only appended');

-- Retention empties `content`; the digest stays.
create table body (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    kind text collate "C" not null,
    number bigint not null,
    at_ms bigint not null,
    digest text collate "C" not null,
    size bigint not null,
    content bytea,
    primary key (tenant, operation_id, kind, number),
    foreign key (tenant, operation_id) references operation (tenant, id)
);

create trigger body_fixed before update of content, digest on body for each row
  when (old.kind in ('payload', 'request')
        and (new.content is not null or new.digest <> old.digest))
  execute function refuse('payload and request never change');

create table contract (
    tenant text collate "C" not null default 'main',
    digest text collate "C" not null,
    content text collate "C" not null,
    at_ms bigint not null,
    primary key (tenant, digest)
);

create table claim (
    tenant text collate "C" not null default 'main',
    source text collate "C" not null,
    key text collate "C" not null,
    operation_id text collate "C" not null,
    release_ms bigint,                  -- null while the operation is open
    primary key (tenant, source, key),
    foreign key (tenant, operation_id) references operation (tenant, id)
);

create table dependency (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    number bigint not null,
    after_id text collate "C" not null,
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id),
    foreign key (tenant, after_id) references operation (tenant, id)
);

create index dependency_after on dependency (after_id, tenant);

create table approval (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    number bigint not null check (number > 0),
    by text collate "C" not null,
    at_ms bigint not null,
    expires_ms bigint not null,
    digest text collate "C" not null,
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id)
);

create table settlement (
    seq bigint generated always as identity primary key, -- in the order of commits: writers take
                                                         -- turns
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    state text collate "C" not null,
    version bigint not null,
    at_ms bigint not null,
    foreign key (tenant, operation_id) references operation (tenant, id)
);
