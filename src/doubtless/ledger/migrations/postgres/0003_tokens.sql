-- Bearer tokens of the service. A token itself is stored nowhere: only its SHA-256.
create table token (
    tenant text collate "C" not null default 'main',
    id text collate "C" not null,
    name text collate "C" not null,     -- the principal's
    role text collate "C" not null check (role in ('agent', 'operator', 'auditor', 'worker')),
    digest text collate "C" not null,
    created_ms bigint not null,
    expires_ms bigint,                  -- null: never
    revoked_ms bigint,
    primary key (id, tenant),
    unique (digest, tenant)
);

create trigger token_identity before update of
    tenant, id, name, role, digest, created_ms, expires_ms on token for each row
  execute function refuse('what a token is never changes');
create trigger token_revoked before update of revoked_ms on token for each row
  when (old.revoked_ms is not null)
  execute function refuse('a token is revoked for ever');
