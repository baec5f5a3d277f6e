-- Retention empties what settled operations carried; the archive takes in what was recorded of
-- them, by the month of their last change. What an operation is, and its end, stay where they are.

-- Up to which settlement a task has looked at all of them.
create table upkeep (
    tenant text collate "C" not null default 'main',
    task text collate "C" not null check (task in ('retention', 'archive')),
    seq bigint not null,
    primary key (tenant, task)
);

-- What was not ripe yet when it was looked at, and when to look again.
create table upkeep_later (
    tenant text collate "C" not null default 'main',
    task text collate "C" not null,
    operation_id text collate "C" not null,
    at_ms bigint not null,
    primary key (tenant, task, operation_id),
    foreign key (tenant, operation_id) references operation (tenant, id)
);
create index upkeep_later_due on upkeep_later (tenant, task, at_ms);

-- Which operations are in the archive. This row stays when a month is taken away.
create table archived (
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    month bigint not null,              -- 202612 is December 2026, UTC
    at_ms bigint not null,
    evidence bigint not null,           -- how many items
    digest text collate "C" not null,   -- SHA-256 of its journal
    primary key (operation_id, tenant),
    foreign key (tenant, operation_id) references operation (tenant, id)
);

create table archived_attempt (
    month bigint not null,
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    number bigint not null,
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
    primary key (operation_id, tenant, number, month)
) partition by list (month);

create table archived_evidence (
    month bigint not null,
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    number bigint not null,
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
    primary key (operation_id, tenant, number, month)
) partition by list (month);

create table archived_journal (
    month bigint not null,
    seq bigint not null,
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    at_ms bigint not null,
    entries text collate "C" not null,
    primary key (operation_id, tenant, seq, month)
) partition by list (month);

create table archived_body (
    month bigint not null,
    tenant text collate "C" not null default 'main',
    operation_id text collate "C" not null,
    kind text collate "C" not null,
    number bigint not null,
    at_ms bigint not null,
    digest text collate "C" not null,
    size bigint not null,
    content bytea,
    primary key (operation_id, tenant, kind, number, month)
) partition by list (month);

-- The months there are. A row makes the partitions of its month.
create table archive_month (
    tenant text collate "C" not null default 'main',
    month bigint not null,
    made_ms bigint not null,
    primary key (tenant, month)
);

create function make_month() returns trigger language plpgsql as $$
declare
    name text;
begin
    foreach name in array array['attempt', 'evidence', 'journal', 'body'] loop
        execute format(
            'create table if not exists %I partition of %I for values in (%s)',
            format('archived_%s_%s', name, new.month), 'archived_' || name, new.month);
    end loop;
    return null;
end
$$;
create trigger archive_month_made after insert on archive_month for each row
  execute function make_month();

-- A row is deleted only where the very same stands in the archive: in the same transaction, then.
create function in_archive() returns trigger language plpgsql as $$
declare
    its bigint;
begin
    select month into its from archived
     where tenant = old.tenant and operation_id = old.operation_id;
    if tg_table_name = 'journal' then
        perform 1 from archived_journal as kept
          where kept.month = its and kept.tenant = old.tenant
            and kept.operation_id = old.operation_id and kept.seq = old.seq
            and kept.at_ms = old.at_ms and kept.entries = old.entries;
    elsif tg_table_name = 'evidence' then
        perform 1 from archived_evidence as kept
          where kept.month = its and kept.tenant = old.tenant
            and kept.operation_id = old.operation_id and kept.number = old.number
            and row(kept.source, kept.shows, kept.strength, kept.at_ms, kept.begun_ms, kept."by",
                    kept.attempt, kept.occurred_ms, kept.provider_operation_id, kept.detail,
                    kept.digest)
                is not distinct from
                row(old.source, old.shows, old.strength, old.at_ms, old.begun_ms, old."by",
                    old.attempt, old.occurred_ms, old.provider_operation_id, old.detail,
                    old.digest);
    elsif tg_table_name = 'attempt' then
        perform 1 from archived_attempt as kept
          where kept.month = its and kept.tenant = old.tenant
            and kept.operation_id = old.operation_id and kept.number = old.number
            and row(kept.correlation_id, kept.fence, kept.owner, kept.opened_ms,
                    kept.lease_end_ms, kept.resend, kept.sent_by_ms, kept.ended_ms,
                    kept.closed_ms, kept.observation)
                is not distinct from
                row(old.correlation_id, old.fence, old.owner, old.opened_ms,
                    old.lease_end_ms, old.resend, old.sent_by_ms, old.ended_ms,
                    old.closed_ms, old.observation);
    else
        perform 1 from archived_body as kept
          where kept.month = its and kept.tenant = old.tenant
            and kept.operation_id = old.operation_id and kept.kind = old.kind
            and kept.number = old.number and kept.digest = old.digest
            and kept.content is not distinct from old.content;
    end if;
    if not found then
        raise exception '%', tg_argv[0];
    end if;
    return old;
end
$$;

drop trigger evidence_never_deleted on evidence;
create trigger evidence_never_deleted before delete on evidence for each row
  execute function in_archive('evidence is only appended');
drop trigger journal_never_deleted on journal;
create trigger journal_never_deleted before delete on journal for each row
  execute function in_archive('the journal is only appended');
create trigger attempt_never_deleted before delete on attempt for each row
  execute function in_archive('an attempt is never forgotten');
create trigger body_never_deleted before delete on body for each row
  execute function in_archive('a body is emptied, and never deleted');

create trigger archived_journal_kept before update on archived_journal for each row
  execute function refuse('the journal is only appended');
create trigger archived_evidence_kept before update on archived_evidence for each row
  execute function refuse('evidence is only appended');

-- The way back, for an operation that is opened again: the same the other way round.
create function out_of_archive() returns trigger language plpgsql as $$
begin
    if tg_table_name like 'archived_journal%' then
        perform 1 from journal as back
          where back.tenant = old.tenant and back.operation_id = old.operation_id
            and back.seq = old.seq and back.entries = old.entries;
    else
        perform 1 from evidence as back
          where back.tenant = old.tenant and back.operation_id = old.operation_id
            and back.number = old.number and back.detail = old.detail
            and back.at_ms = old.at_ms;
    end if;
    if not found then
        raise exception '%', tg_argv[0];
    end if;
    return old;
end
$$;
create trigger archived_journal_never_deleted before delete on archived_journal for each row
  execute function out_of_archive('the journal is only appended');
create trigger archived_evidence_never_deleted before delete on archived_evidence for each row
  execute function out_of_archive('evidence is only appended');

-- What comes back keeps its number.
alter table journal alter column seq set generated by default;

-- Nothing is opened again of which half stands in the archive.
create function whole_again() returns trigger language plpgsql as $$
begin
    if exists (select 1 from archived
                where tenant = new.tenant and operation_id = new.id) then
        raise exception 'an operation is opened again only with all that is known of it';
    end if;
    return new;
end
$$;
create trigger operation_whole before update of open on operation for each row
  when (new.open = 1 and old.open = 0)
  execute function whole_again();
