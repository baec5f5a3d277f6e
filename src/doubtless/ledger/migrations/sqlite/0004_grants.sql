-- Approvals of a whole session, what an operator's retry authorises, and who waits for an object.

alter table approval add column retry integer not null default 0;

-- A person's authorisation of all calls of one tool in one session. It binds no payload.
create table session_approval (
    tenant text not null default 'main',
    id text not null,
    session_id text not null,
    tool text not null,
    contract_digest text not null,
    principal text not null,
    by text not null,
    at_ms integer not null,
    expires_ms integer not null,
    digest text not null,
    note text not null,
    revoked_ms integer,
    revoked_by text,
    primary key (tenant, session_id, id),
    check ((revoked_ms is null) = (revoked_by is null))
) without rowid, strict;

create trigger session_approval_kept before update on session_approval
when old.revoked_ms is not null
  or (new.tenant, new.id, new.session_id, new.tool, new.contract_digest, new.principal, new.by,
      new.at_ms, new.expires_ms, new.digest, new.note)
  is not (old.tenant, old.id, old.session_id, old.tool, old.contract_digest, old.principal, old.by,
          old.at_ms, old.expires_ms, old.digest, old.note)
begin
    select raise(abort, 'a session-wide approval can only be revoked, once');
end;
create trigger session_approval_never_deleted before delete on session_approval
begin
    select raise(abort, 'a session-wide approval is only revoked');
end;

-- Few operations rest here: one that is sent at once never enters it.
create index operation_waiting on operation (tenant, source, claim)
 where state in ('prepared', 'awaiting_approval') and claim is not null;
