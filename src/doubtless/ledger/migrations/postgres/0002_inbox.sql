-- The inbox: what providers told by themselves, each event once and for ever.

create table event (
    position bigint generated always as identity primary key, -- the order of arrival
    tenant text collate "C" not null default 'main',
    source text collate "C" not null,
    event_id text collate "C" not null, -- the provider's
    type text collate "C",
    delivered_by text collate "C" not null, -- who handed it over
    received_ms bigint not null,
    occurred_ms bigint,                 -- by the provider's clock
    digest text collate "C" not null,
    size bigint not null,
    content bytea,                      -- retention empties it; the digest stays
    copy_of bigint,                     -- the event that told the same news first
    operation_id text collate "C",
    matched_ms bigint,
    matched_by text collate "C",
    reason text collate "C",            -- why it is not matched
    foreign key (copy_of) references event (position),
    foreign key (tenant, operation_id) references operation (tenant, id),
    check ((operation_id is null) = (matched_ms is null)),
    check (operation_id is null or copy_of is null),
    check ((reason is null) = (operation_id is not null or copy_of is not null))
);

create index event_unmatched on event (tenant, position)
 where operation_id is null and copy_of is null;
create index event_waiting on event (tenant, source, received_ms) where reason <> 'no_tool';
create index event_untold on event (tenant, source, type) where reason = 'no_tool';
create index event_source on event (source, position, tenant);
create index event_operation on event (operation_id, tenant) where operation_id is not null;

-- Made last: of indexes that seem to cost the same, the newest is taken.
alter table event add unique (event_id, source, tenant);

create trigger event_fixed before update of
    position, tenant, source, event_id, type, delivered_by, received_ms, occurred_ms, digest, size,
    copy_of on event for each row
  execute function refuse('what an event is never changes');
create trigger event_content_fixed before update of content on event for each row
  when (new.content is not null and new.content is distinct from old.content)
  execute function refuse('the content of an event is only emptied');
create trigger event_matched_once before update of operation_id on event for each row
  when (old.operation_id is not null and new.operation_id is distinct from old.operation_id)
  execute function refuse('an event is matched once');
create trigger event_never_deleted before delete on event for each row
  execute function refuse('an event is never forgotten');
create trigger event_never_emptied before truncate on event
  execute function refuse('an event is never forgotten');

-- By what an event that is not matched yet can be found: gone once it is.
create table event_value (
    tenant text collate "C" not null default 'main',
    source text collate "C" not null,
    tool text collate "C" not null,
    name text collate "C" not null check (name in (
        'ref', 'operation_id', 'provider_operation_id', 'idempotency_key')),
    value text collate "C" not null,
    event bigint not null,
    primary key (tenant, source, tool, name, value, event),
    foreign key (event) references event (position)
);
create index event_value_event on event_value (event);

-- The object and version that a tool's event spoke of, and the event that was first to do so.
create table event_news (
    tenant text collate "C" not null default 'main',
    source text collate "C" not null,
    tool text collate "C" not null,
    news text collate "C" not null,
    event bigint not null,
    primary key (tenant, source, tool, news),
    foreign key (event) references event (position)
);
