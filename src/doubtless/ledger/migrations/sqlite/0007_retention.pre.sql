-- Retention empties what settled operations carried; the archive takes in what was recorded of
-- them, by the month of their last change. What an operation is, and its end, stay where they are.

-- Up to which settlement a task has looked at all of them.
create table upkeep (
    tenant text not null default 'main',
    task text not null check (task in ('retention', 'archive')),
    seq integer not null,
    primary key (tenant, task)
) without rowid, strict;

-- What was not ripe yet when it was looked at, and when to look again.
create table upkeep_later (
    tenant text not null default 'main',
    task text not null,
    operation_id text not null,
    at_ms integer not null,
    primary key (tenant, task, operation_id),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;
create index upkeep_later_due on upkeep_later (tenant, task, at_ms);

-- Which operations are in the archive. This row stays when a month is taken away.
create table archived (
    tenant text not null default 'main',
    operation_id text not null,
    month integer not null,              -- 202612 is December 2026, UTC
    at_ms integer not null,
    evidence integer not null,           -- how many items
    digest text not null,   -- SHA-256 of its journal
    primary key (operation_id, tenant),
    foreign key (tenant, operation_id) references operation (tenant, id)
) without rowid, strict;

create table archived_attempt (
    month integer not null,
    tenant text not null default 'main',
    operation_id text not null,
    number integer not null,
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
    primary key (operation_id, tenant, number, month)
) without rowid, strict;

create table archived_evidence (
    month integer not null,
    tenant text not null default 'main',
    operation_id text not null,
    number integer not null,
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
    primary key (operation_id, tenant, number, month)
) without rowid, strict;

create table archived_journal (
    month integer not null,
    seq integer not null,
    tenant text not null default 'main',
    operation_id text not null,
    at_ms integer not null,
    entries text not null,
    primary key (operation_id, tenant, seq, month)
) without rowid, strict;

create table archived_body (
    month integer not null,
    tenant text not null default 'main',
    operation_id text not null,
    kind text not null,
    number integer not null,
    at_ms integer not null,
    digest text not null,
    size integer not null,
    content blob,
    primary key (operation_id, tenant, kind, number, month)
) without rowid, strict;

-- The months there are.
create table archive_month (
    tenant text not null default 'main',
    month integer not null,
    made_ms integer not null,
    primary key (tenant, month)
) without rowid, strict;

-- A row is deleted only where the very same stands in the archive: in the same transaction, then.
drop trigger evidence_never_deleted;
drop trigger journal_never_deleted;
create trigger evidence_never_deleted before delete on evidence
when not exists (select 1
                   from archived
                   join archived_evidence as kept on kept.month = archived.month
                    and kept.tenant = archived.tenant
                    and kept.operation_id = archived.operation_id
                  where archived.tenant = old.tenant
                    and archived.operation_id = old.operation_id
                    and kept.number is old.number
                    and kept.source is old.source
                    and kept.shows is old.shows
                    and kept.strength is old.strength
                    and kept.at_ms is old.at_ms
                    and kept.begun_ms is old.begun_ms
                    and kept.by is old.by
                    and kept.attempt is old.attempt
                    and kept.occurred_ms is old.occurred_ms
                    and kept.provider_operation_id is old.provider_operation_id
                    and kept.detail is old.detail
                    and kept.digest is old.digest)
begin
    select raise(abort, 'evidence is only appended');
end;
create trigger journal_never_deleted before delete on journal
when not exists (select 1
                   from archived
                   join archived_journal as kept on kept.month = archived.month
                    and kept.tenant = archived.tenant
                    and kept.operation_id = archived.operation_id
                  where archived.tenant = old.tenant
                    and archived.operation_id = old.operation_id
                    and kept.seq is old.seq
                    and kept.at_ms is old.at_ms
                    and kept.entries is old.entries)
begin
    select raise(abort, 'the journal is only appended');
end;
create trigger attempt_never_deleted before delete on attempt
when not exists (select 1
                   from archived
                   join archived_attempt as kept on kept.month = archived.month
                    and kept.tenant = archived.tenant
                    and kept.operation_id = archived.operation_id
                  where archived.tenant = old.tenant
                    and archived.operation_id = old.operation_id
                    and kept.number is old.number
                    and kept.correlation_id is old.correlation_id
                    and kept.fence is old.fence
                    and kept.owner is old.owner
                    and kept.opened_ms is old.opened_ms
                    and kept.lease_end_ms is old.lease_end_ms
                    and kept.resend is old.resend
                    and kept.sent_by_ms is old.sent_by_ms
                    and kept.ended_ms is old.ended_ms
                    and kept.closed_ms is old.closed_ms
                    and kept.observation is old.observation)
begin
    select raise(abort, 'an attempt is never forgotten');
end;
create trigger body_never_deleted before delete on body
when not exists (select 1
                   from archived
                   join archived_body as kept on kept.month = archived.month
                    and kept.tenant = archived.tenant
                    and kept.operation_id = archived.operation_id
                  where archived.tenant = old.tenant
                    and archived.operation_id = old.operation_id
                    and kept.kind is old.kind
                    and kept.number is old.number
                    and kept.digest is old.digest
                    and kept.content is old.content)
begin
    select raise(abort, 'a body is emptied, and never deleted');
end;

create trigger archived_journal_kept before update on archived_journal
begin
    select raise(abort, 'the journal is only appended');
end;
create trigger archived_evidence_kept before update on archived_evidence
begin
    select raise(abort, 'evidence is only appended');
end;

-- The way back, for an operation that is opened again: the same the other way round.
create trigger archived_journal_never_deleted before delete on archived_journal
when not exists (select 1
                   from journal as back
                  where back.tenant = old.tenant and back.operation_id = old.operation_id
                    and back.seq is old.seq
                    and back.at_ms is old.at_ms
                    and back.entries is old.entries)
begin
    select raise(abort, 'the journal is only appended');
end;
create trigger archived_evidence_never_deleted before delete on archived_evidence
when not exists (select 1
                   from evidence as back
                  where back.tenant = old.tenant and back.operation_id = old.operation_id
                    and back.number is old.number
                    and back.source is old.source
                    and back.shows is old.shows
                    and back.strength is old.strength
                    and back.at_ms is old.at_ms
                    and back.begun_ms is old.begun_ms
                    and back.by is old.by
                    and back.attempt is old.attempt
                    and back.occurred_ms is old.occurred_ms
                    and back.provider_operation_id is old.provider_operation_id
                    and back.detail is old.detail
                    and back.digest is old.digest)
begin
    select raise(abort, 'evidence is only appended');
end;

-- Nothing is opened again of which half stands in the archive.
create trigger operation_whole before update of open on operation
when new.open = 1 and old.open = 0
     and exists (select 1 from archived where tenant = new.tenant and operation_id = new.id)
begin
    select raise(abort, 'an operation is opened again only with all that is known of it');
end;

-- On a server this makes the partitions of a month; here there is nothing to be made.
create trigger archive_month_made after insert on archive_month
begin
    select 1;
end;
