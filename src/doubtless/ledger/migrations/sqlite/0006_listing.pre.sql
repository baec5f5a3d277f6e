-- Pages of a list in their order, by whatever they are filtered. The order of creation is the
-- row's number, which stands at the end of every index. Indexes of few rows are partial.

create index operation_listed on operation (lower(tenant));
create index operation_by_session on operation (tenant, session_id, principal);
create index operation_by_claim on operation (tenant, source, claim) where claim is not null;
create index operation_by_principal on operation (tenant, principal);
create index operation_by_tool on operation (tenant, tool);
create index operation_by_source on operation (source);
create index operation_by_correlation on operation (tenant, correlation_id)
 where correlation_id is not null;
create index operation_by_object on operation (tenant, business_key)
 where business_key is not null;
create index operation_open on operation (tenant, state) where open = 1;
create index operation_undone on operation (tenant, state)
 where state in ('failed', 'rejected', 'cancelled');
create index settlement_listed on settlement (tenant);
create index event_listed on event (lower(tenant));
create index event_copy on event (copy_of) where copy_of is not null;
