-- The ledger. Every table has a tenant; instants are integer milliseconds since the epoch; JSON is
-- text.

-- Facts about the ledger as a whole: one row, of the tenant 'main'.
create table meta (
    tenant text not null default 'main' primary key,
    ledger_id text not null,             -- 16 random bytes in hexadecimal
    created_ms integer not null,
    clock_floor_ms integer not null,     -- the highest `now` ever committed
    clock_break_ms integer not null default 0,
    mended integer not null default 0    -- how often a failed commit was written over in the log
) without rowid, strict;

-- What was done to this schema, in order. A file that is changed after it was applied is noticed.
create table migration (
    tenant text not null default 'main',
    number integer not null,
    name text not null,
    checksum text not null,
    applied_ms integer not null,
    primary key (tenant, number)
) without rowid, strict;

create table operation (
    position integer primary key,        -- the order of creation
    tenant text not null default 'main',
    id text not null,
    tool text not null,
    effect text not null,
    source text not null,
    principal text not null,
    session_id text not null,
    correlation_id text,
    contract_digest text not null,
    payload_hash text not null,
    request_digest text not null,
    ref text not null,
    key text not null,
    state text not null check (state in (
        'prepared', 'awaiting_approval', 'executing', 'accepted', 'unknown', 'reconciling',
        'manual_review', 'succeeded', 'failed', 'rejected', 'cancelled')),
    version integer not null check (version > 0),
    fence integer not null check (fence >= 0),
    created_ms integer not null,
    updated_ms integer not null,
    due_ms integer,
    valid_until_ms integer not null,
    owner text,
    lease_end_ms integer,
    cause text,
    origin text,
    deadline_ms integer,
    accepted_ms integer,
    completes_by_ms integer,
    not_before_ms integer,
    looks integer not null,
    budget_from integer not null,
    business_key text,
    claim text,
    provider_operation_id text,
    status_url text,
    confirmed_state text,
    confirmed_ms integer,
    confirmed_source text,
    supersedes text,
    superseded_by text,
    duplicate_of text,
    on_unknown text not null,
    needs_approval integer not null,
    open integer not null,               -- 1 until it ends: said twice, for the indexes
    unique (tenant, id),
    check (open = case when state in ('succeeded', 'failed', 'rejected', 'cancelled')
                       then 0 else 1 end),
    check (due_ms is not null or open = 0)
) strict;

-- Over open operations alone, so that any number of settled ones slows no claim.
create index operation_due on operation (tenant, due_ms) where open = 1;

create index operation_session on operation (tenant, session_id, principal);
create index operation_object on operation (tenant, source, claim) where claim is not null;
create index operation_key on operation (tenant, key);
create index operation_ref on operation (tenant, ref);
create index operation_provider on operation (tenant, provider_operation_id)
 where provider_operation_id is not null;

create trigger operation_fence before update of fence on operation
when new.fence < old.fence
begin
    select raise(abort, 'a fence only grows');
end;

create trigger operation_identity before update of
    position, tenant, id, tool, effect, source, principal, session_id, contract_digest,
    payload_hash, request_digest, ref, key, created_ms on operation
begin
    select raise(abort, 'what an operation is never changes');
end;

create table attempt (
    tenant text not null default 'main',
    operation_id text not null,
    number integer not null check (number > 0),
    correlation_id text not null,
    fence integer not null,
    owner text not null,
    opened_ms integer not null,
    lease_end_ms integer not null,
    resend integer not null,
    sent_by_ms integer,
    ended_ms integer,
    closed_ms integer,
    observation text,
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id),
    check ((ended_ms is null) = (observation is null))
) without rowid, strict;

create table evidence (
    tenant text not null default 'main',
    operation_id text not null,
    number integer not null check (number > 0),
    source text not null,
    shows text not null,
    strength text not null,
    at_ms integer not null,
    begun_ms integer not null,
    by text not null,
    attempt integer,
    occurred_ms integer,
    provider_operation_id text,
    detail text not null,
    digest text,
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;

create trigger evidence_kept before update on evidence
begin
    select raise(abort, 'evidence is only appended');
end;
create trigger evidence_never_deleted before delete on evidence
begin
    select raise(abort, 'evidence is only appended');
end;

-- A row is what one unit of work did to one operation: [[kind, principal, role, data], …].
create table journal (
    seq integer primary key,
    tenant text not null default 'main',
    operation_id text not null,          -- a refusal may name one that doesn't exist
    at_ms integer not null,
    entries text not null
) strict;

create index journal_operation on journal (tenant, operation_id);

create trigger journal_kept before update on journal
begin
    select raise(abort, 'the journal is only appended');
end;
create trigger journal_never_deleted before delete on journal
begin
    select raise(abort, 'the journal is only appended');
end;

-- Retention empties `content`; the digest stays.
create table body (
    tenant text not null default 'main',
    operation_id text not null,
    kind text not null,
    number integer not null,
    at_ms integer not null,
    digest text not null,
    size integer not null,
    content blob,
    primary key (tenant, operation_id, kind, number),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;

create trigger body_fixed before update of content, digest on body
when old.kind in ('payload', 'request') and (new.content is not null or new.digest <> old.digest)
begin
    select raise(abort, 'payload and request never change');
end;

create table contract (
    tenant text not null default 'main',
    digest text not null,
    content text not null,
    at_ms integer not null,
    primary key (tenant, digest)
) strict;

create table claim (
    tenant text not null default 'main',
    source text not null,
    key text not null,
    operation_id text not null,
    release_ms integer,                  -- null while the operation is open
    primary key (tenant, source, key),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;

create table dependency (
    tenant text not null default 'main',
    operation_id text not null,
    number integer not null,
    after_id text not null,
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id),
    foreign key (tenant, after_id) references operation (tenant, id)
) without rowid, strict;

create index dependency_after on dependency (tenant, after_id);

create table approval (
    tenant text not null default 'main',
    operation_id text not null,
    number integer not null check (number > 0),
    by text not null,
    at_ms integer not null,
    expires_ms integer not null,
    digest text not null,
    primary key (tenant, operation_id, number),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;

create table settlement (
    seq integer primary key,             -- never used again, since no row is ever deleted
    tenant text not null default 'main',
    operation_id text not null,
    state text not null,
    version integer not null,
    at_ms integer not null,
    foreign key (tenant, operation_id) references operation (tenant, id)
) strict;
