"""Which tests `make test` leaves to `make proofs`: the run before a commit has six minutes.

Of each file below it runs what `SLICE` names: of every kind of action, engine and upgrade the main
story, and the worst interruption. `make proofs` runs all the others.
"""

import re
from typing import Final

FILES: Final = re.compile(
    r"tests/(actions/(?!test_(examples|sdks|mcp_contracts))"
    r"|integrations/"
    r"|previous/"
    r"|testing/test_(campaign|failover|scale|throughput)"
    r"|engine/test_(outbox_foreign|outbox_statements_postgres|sharing|doctor|retention)"
    r"|ledger/test_(installed_postgres|migrating|steps|archive)"
    r"|service/test_(upkeep|tenants)"
    r"|scenarios/test_outbox_postgres)"
)
SLICE: Final = re.compile(
    r"once_whole_and_a_repeat|before_the_dot_has|pushed_once|whose_report_was_lost|one_effect_and_without_us"
    r"|is_sent_once|sent_once_and_its|takes_its_browser|ran_once|runs_once|is_written_once|killed_at_any_stage"
    r"|killed_anywhere.*Gate|link_breaks|in_step_2|three_primaries|processes_that_are_killed"
    r"|is_upgraded_while_it_works.sqlite|committed_with_the_users_change|every_route_and|no_route"
    r"|emptied|settled_operation|moves|never_gets_its_locks|forced|post_step|looked_at_as_it_is"
    r"|without_the_gateway|gives_up_interrupts|accepts_approves_nothing|service_killed_in_a_call"
    r"|please_try_again|stored_run_acts_once|wherever_it_stands|hook_stops_the_repeat"
    r"|while_the_first_may_still_act|takes_no_other_calls_place|is_not_executed_by_another"
    r"|says_more_than_is_known|models.*(one_effect_where.*splits|gateway.*asks|told_before.*turn[02])"
    r"|in_words_over_a_restart|task_of_the_extension_and_a_short"
    r"|url_is_called_once|lost_on_the_way_back|was_killed_is_started_again"
    r"|fifty_at_once.*refunds|an_atomic_route_has.*between|lost_on_the_wire|step_is_the_row_of_what"
    r"|share_what_is_due.*postgres|killed_process|test_store|unknown_commit|first_to_open"
)

LONGEST: Final = re.compile(r"tests/testing/test_(failover|campaign)\.py")
"""What waits half a minute for other processes."""

WHOLE: Final = re.compile(
    r"tests/(actions/test_(files_paths|ssh_block|ssh_steps)"
    r"|engine/test_outbox_statements_postgres"
    r"|integrations/test_(asgi_idempotency_(frameworks|shared)|carrying|temporal|wsgi_idempotency"
    r"|idempotency_(page|stores))"
    r"|scenarios/test_outbox_postgres"
    r"|service/test_upkeep"
    r"|testing/test_(scale|throughput))\.py"
)
"""Files of which it runs nothing, and which it need not import."""


def is_left_out(node_id: str) -> bool:
    """Whether a test belongs to `make proofs` alone."""
    return FILES.match(node_id) is not None and SLICE.search(node_id) is None
