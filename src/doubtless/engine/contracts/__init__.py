"""The contract file: read, judged and turned into `core.contract.Contract`."""

from doubtless.engine.contracts.code import Key, Lookup, ToolKeys, build_contract
from doubtless.engine.contracts.defaults import Default
from doubtless.engine.contracts.load import Contracts, load_contracts, parse_contracts
from doubtless.engine.contracts.snapshot import contract_digest, dump_contract, read_contract
from doubtless.engine.contracts.sources import WebhookRules

__all__ = [
    "Contracts",
    "Default",
    "Key",
    "Lookup",
    "ToolKeys",
    "WebhookRules",
    "build_contract",
    "contract_digest",
    "dump_contract",
    "load_contracts",
    "parse_contracts",
    "read_contract",
]
