"""The promised behaviours: an id and one sentence each.

An id is an area and a number (`LEDGER-3`) and never changes its meaning. A test says
`@pytest.mark.proves("LEDGER-3")`; tests/test_requirements.py checks that every promise is proven
and that every id exists.
"""

from typing import Final

REQUIREMENTS: Final[dict[str, str]] = {
    # What can be imported.
    "API-1": "The public names are these, and each can be imported.",
    # Incidents that other systems had, told with ours: each leads to one effect at most.
    "CASE-A-3": "What is not settled is not sent under an id that the caller makes up meanwhile.",
    "CASE-A-11": "A repeat with its id is told the result; a new id, or none, is a new intent.",
    "CASE-C-1": "A process that crashes after every restart makes one effect.",
    "CASE-C-9": "A refusal that our own first attempt caused is attributed to that attempt.",
    "CASE-M-6": "A status that is known to lie is unknown, and no refusal.",
    "CASE-P-1": "That the first request under a key still runs is no failure.",
    "CASE-P-2": "A variant of what is not settled is refused, and not sent.",
    "CASE-P-7": "Equal content is neither identity nor proof: two ids are two effects.",
    "CASE-T-1": "A 500 after the effect is never answered by a second send.",
    "CASE-T-2": "A look-up that trails is not believed before its lag is over.",
    "CASE-T-4": "Three processes with one business key make one effect.",
    "CASE-T-5": "An effect that comes after an early absence is waited for.",
    "CASE-T-7": "A look-up that failed, or was cut short, is not taken for an absence.",
    "CLI-1": "`call` exits with 0, 3, 4 or 5, by its outcome.",
    "CLI-2": "`call` prints the outcome as JSON; the same call again joins, and sends nothing.",
    "CLI-3": "Bad input is refused with its place and its mend, before anything is sent.",
    "CLI-4": "Commands that read ask no provider, change nothing and create no ledger.",
    "CLI-5": "`operations show` explains an operation, and offers only decisions that are possible.",
    "CLI-6": "`operations list` finds operations by state, tool, session and age.",
    "CLI-7": "`resolve` records an operator's decision and carries it out.",
    "CLI-8": "Settings come from flags, then variables, then doubtless.toml; a wrong one is an error.",
    "CLI-9": "`contracts check` tells every error of a file at once and exits with 2.",
    "CLI-10": "`migrate` concerns existing ledgers only; others are refused with what to do.",
    "CLI-11": "Text for people fits 100 columns, and nothing in it steers the terminal.",
    "CLI-12": "An interruption or an unexpected error is told in a line, without a traceback.",
    "CLI-13": "Help is printed without importing what is slow.",
    "CLI-14": "`sessions show` tells what a principal did, what is open first.",
    "CLI-15": "Tools in code are reached through the application that `--app` names.",
    "DEMO-1": "The demonstration runs on loopback and shows the provider's own counts.",
    "DEMO-2": "The demonstration fits one screen of 100 columns.",
    "DEMO-3": "The demonstration fails if a figure differs from what is claimed.",
    "DEMO-4": "The demonstration leaves no file and no process behind.",
    "DOCS-1": "What the README shows was run: its examples work as they are written.",
    "DOCS-2": "The generated pages say what the code says.",
    # Rows of the scenario table: what a provider does, and what it must lead to by its own count.
    "ROW-A-1": "An answer lost after the effect is unknown, looked up, succeeded; sent once.",
    "ROW-A-2": "A request dropped before the effect is sent again only after confirmed absence.",
    "ROW-B-1": "A 5xx after the effect is unknown, looked up, succeeded; sent once.",
    "ROW-B-2": "A body written in part is unknown until its absence is confirmed.",
    "ROW-C-1": "An answer after our time-out is evidence, and may settle the operation.",
    "ROW-D-1": "What provably never left is sent again within its budget, and takes effect once.",
    "ROW-D-2": "A reset before the request was read never leads to two effects.",
    "ROW-E-1": "A process killed around its send is followed by look-ups, never by a blind send.",
    "ROW-F-1": "Eight callers in two processes make one effect and are told the same.",
    "ROW-G-1": "The same id with another payload is refused, and nothing is sent.",
    "ROW-H-1": "Absence is not believed before lag and horizon are over.",
    "ROW-I-1": "A request that takes effect after we gave up is waited for up to the horizon.",
    "ROW-J-1": "Nothing is sent again under a key that the provider may have forgotten.",
    "ROW-K-1": "A key that is in progress is waited for.",
    "ROW-L-1": "A refusal because of our first attempt is attributed by a look-up.",
    "ROW-M-1": "What exists but may be somebody else's is never taken for success.",
    "ROW-N-1": "A look-up that could not be asked sends nothing, and leads to a person in time.",
    "ROW-O-1": "A success that can't be read is unknown, with its status as evidence.",
    "ROW-P-1": "Accepted work is pending until it ends, and an error inside a 200 is none.",
    "ROW-Q-1": "Not processed permits a send only where no earlier attempt is in doubt.",
    "ROW-T-1": "A caller that is cancelled doesn't stop the attempt, and a repeat joins it.",
    "ROW-U-1": "A worker that slept through its lease writes no byte when it wakes.",
    "ROW-W-1": "Where the ledger can't be written nothing is sent, and the error says so.",
    "ROW-Y-1": "Work busy for too long goes to a person, and its late end settles it.",
    "ROW-Z-1": "Who resumes after a person's decision is told it, and nothing is sent.",
}
