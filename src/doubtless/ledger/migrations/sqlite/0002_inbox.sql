-- The inbox: what providers told by themselves, each event once and for ever.

create table event (
    position integer primary key,        -- the order of arrival; never used again
    tenant text not null default 'main',
    source text not null,
    event_id text not null,              -- the provider's
    type text,
    delivered_by text not null,          -- who handed it over
    received_ms integer not null,
    occurred_ms integer,                 -- by the provider's clock
    digest text not null,
    size integer not null,
    content blob,                        -- retention empties it; the digest stays
    copy_of integer,                     -- the event that told the same news first
    operation_id text,
    matched_ms integer,
    matched_by text,
    reason text,                         -- why it is not matched
    unique (tenant, source, event_id),
    foreign key (copy_of) references event (position),
    foreign key (tenant, operation_id) references operation (tenant, id),
    check ((operation_id is null) = (matched_ms is null)),
    check (operation_id is null or copy_of is null),
    check ((reason is null) = (operation_id is not null or copy_of is not null))
) strict;

create index event_unmatched on event (tenant, position)
 where operation_id is null and copy_of is null;
create index event_waiting on event (tenant, source, received_ms) where reason <> 'no_tool';
create index event_untold on event (tenant, source, type) where reason = 'no_tool';
create index event_source on event (tenant, source, position);
create index event_operation on event (tenant, operation_id) where operation_id is not null;

create trigger event_fixed before update of
    position, tenant, source, event_id, type, delivered_by, received_ms, occurred_ms, digest, size,
    copy_of on event
begin
    select raise(abort, 'what an event is never changes');
end;
create trigger event_content_fixed before update of content on event
when new.content is not null and new.content is not old.content
begin
    select raise(abort, 'the content of an event is only emptied');
end;
create trigger event_matched_once before update of operation_id on event
when old.operation_id is not null and new.operation_id is not old.operation_id
begin
    select raise(abort, 'an event is matched once');
end;
create trigger event_never_deleted before delete on event
begin
    select raise(abort, 'an event is never forgotten');
end;

-- By what an event that is not matched yet can be found: gone once it is.
create table event_value (
    tenant text not null default 'main',
    source text not null,
    tool text not null,
    name text not null check (name in (
        'ref', 'operation_id', 'provider_operation_id', 'idempotency_key')),
    value text not null,
    event integer not null,
    primary key (tenant, source, tool, name, value, event),
    foreign key (event) references event (position)
) without rowid, strict;
create index event_value_event on event_value (event);

-- The object and version that a tool's event spoke of, and the event that was first to do so.
create table event_news (
    tenant text not null default 'main',
    source text not null,
    tool text not null,
    news text not null,
    event integer not null,
    primary key (tenant, source, tool, news),
    foreign key (event) references event (position)
) without rowid, strict;
