"""A graph with two calls in one node, whose second tool ends the process after its effect."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from doubtless import Doubtless
from doubtless.integrations.langgraph import DurableTools

CALLS = [
    {"name": "charge", "args": {"amount": 5}, "id": "call_1"},
    {"name": "ship", "args": {"parcel": "p7"}, "id": "call_2"},
]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def tools(effects: Path, *, ends: bool) -> list[Any]:
    def note(line: str) -> None:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    @tool
    def charge(amount: int) -> str:
        """Charge an amount."""
        note(f"charge {amount}")
        return f"charged {amount}"

    @tool
    def ship(parcel: str) -> str:
        """Ship a parcel."""
        note(f"ship {parcel}")
        if ends:
            os._exit(9)
        return f"shipped {parcel}"

    return [charge, ship]


def graph(node: ToolNode, saver: SqliteSaver) -> Any:
    made = StateGraph(State)
    made.add_node("model", lambda _: {"messages": [AIMessage(content="", tool_calls=CALLS)]})
    made.add_node("tools", node)
    made.add_edge(START, "model")
    made.add_edge("model", "tools")
    made.add_edge("tools", END)
    return made.compile(checkpointer=saver)


def run(options: dict[str, Any]) -> None:
    """Run the graph, or go on with it; what its messages say in the end is written down."""
    folder = Path(options["folder"])
    kind, first = options["kind"], options["first"]
    made = tools(folder / f"{kind}.effects", ends=first)
    with (
        SqliteSaver.from_conn_string(str(folder / f"{kind}.graph.db")) as saver,
        Doubtless.sync(f"sqlite:///{folder / 'ledger.db'}") as app,
    ):
        durable = DurableTools(app)
        hooks: Any = {"wrap_tool_call": durable.wrap_tool_call} if kind == "ours" else {}
        found = graph(ToolNode(made, **hooks), saver).invoke(
            {"messages": [("user", "pay and ship")]} if first else None,
            # One after the other, so that the first has finished when the second ends it all.
            {"configurable": {"thread_id": "t1"}, "max_concurrency": 1},
            durability="sync",
        )
        told = [message.content for message in found["messages"]]
        (folder / f"{kind}.told").write_text(json.dumps(told))
