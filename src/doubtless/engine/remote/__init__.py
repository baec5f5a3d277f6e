"""The same application against a running service: no ledger and no secrets in this process."""
