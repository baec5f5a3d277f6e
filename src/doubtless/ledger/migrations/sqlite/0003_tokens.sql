-- Bearer tokens of the service. A token itself is stored nowhere: only its SHA-256.
create table token (
    tenant text not null default 'main',
    id text not null,
    name text not null,                  -- the principal's
    role text not null check (role in ('agent', 'operator', 'auditor', 'worker')),
    digest text not null,
    created_ms integer not null,
    expires_ms integer,                  -- null: never
    revoked_ms integer,
    primary key (tenant, id),
    unique (tenant, digest)
) without rowid, strict;

create trigger token_identity before update of
    tenant, id, name, role, digest, created_ms, expires_ms on token
begin
    select raise(abort, 'what a token is never changes');
end;
create trigger token_revoked before update of revoked_ms on token
when old.revoked_ms is not null
begin
    select raise(abort, 'a token is revoked for ever');
end;
