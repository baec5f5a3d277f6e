-- Approvals of a whole session, what an operator's retry authorises, and who waits for an object.

alter table approval add column retry bigint not null default 0;

-- A person's authorisation of all calls of one tool in one session. It binds no payload.
create table session_approval (
    tenant text collate "C" not null default 'main',
    id text collate "C" not null,
    session_id text collate "C" not null,
    tool text collate "C" not null,
    contract_digest text collate "C" not null,
    principal text collate "C" not null,
    by text collate "C" not null,
    at_ms bigint not null,
    expires_ms bigint not null,
    digest text collate "C" not null,
    note text collate "C" not null,
    revoked_ms bigint,
    revoked_by text collate "C",
    primary key (tenant, session_id, id),
    check ((revoked_ms is null) = (revoked_by is null))
);

create trigger session_approval_kept before update on session_approval for each row
  when (old.revoked_ms is not null
        or (new.tenant, new.id, new.session_id, new.tool, new.contract_digest, new.principal,
            new.by, new.at_ms, new.expires_ms, new.digest, new.note)
        is distinct from (old.tenant, old.id, old.session_id, old.tool, old.contract_digest,
            old.principal, old.by, old.at_ms, old.expires_ms, old.digest, old.note))
  execute function refuse('a session-wide approval can only be revoked, once');
create trigger session_approval_never_deleted before delete on session_approval for each row
  execute function refuse('a session-wide approval is only revoked');

-- Few operations rest here: one that is sent at once never enters it.
create index operation_waiting on operation (claim, source, tenant)
 where state in ('prepared', 'awaiting_approval') and claim is not null;
