-- outside a transaction
-- Pages of a list in their order, by whatever they are filtered: what comes last is the order of
-- creation, so that a page costs as much as it has rows. Indexes of few rows are partial.

-- Said as an expression: an index that begins with the tenant itself would be taken for anything,
-- as long as there are no statistics.
create index concurrently operation_listed on operation (lower(tenant), position);
create index concurrently operation_by_session on operation (session_id, principal, tenant, position);
create index concurrently operation_by_claim on operation (claim, source, tenant, position)
 where claim is not null;
create index concurrently operation_by_principal on operation (principal, tenant, position);
create index concurrently operation_by_tool on operation (tool, tenant, position);
create index concurrently operation_by_source on operation (source, tenant, position);
create index concurrently operation_by_correlation on operation (correlation_id, tenant, position)
 where correlation_id is not null;
create index concurrently operation_by_object on operation (business_key, tenant, position)
 where business_key is not null;
create index concurrently operation_open on operation (state, tenant, position) where open = 1;
create index concurrently operation_undone on operation (state, tenant, position)
 where state in ('failed', 'rejected', 'cancelled');
create index concurrently settlement_listed on settlement (tenant, seq);
create index concurrently event_listed on event (lower(tenant), position);
create index concurrently event_copy on event (copy_of) where copy_of is not null;
