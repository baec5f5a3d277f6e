"""Function tools of a simulated process: they act on the world behind the gate, and may break."""

from collections.abc import Awaitable, Callable

from doubtless.core.contract import Contract, LookupRules
from doubtless.core.identity import canonical
from doubtless.core.model import Json
from doubtless.engine.lookups import Absent, CouldNotAsk, Operation, Present
from doubtless.engine.registry import Tool
from doubtless.engine.tools import Call
from doubtless.errors import NotSent, Rejected
from doubtless.testing.simulate_gaps import Gaps
from doubtless.testing.simulate_tools import Design
from doubtless.testing.world import World
from doubtless.testing.world_orders import Order
from doubtless.transports.function import Body

Found = Present | Absent | CouldNotAsk


def function_tool(
    design: Design, gaps: Gaps, world: World, *, first_byte: Callable[[Order], None]
) -> Tool:
    """Return a tool whose function sends one request to the world, and says what came of it."""
    contract, faults, loop = design.contract, gaps.faults, gaps.loop

    async def act(call: Call, **arguments: Json) -> Json:
        if faults.draw("function.not_sent"):
            raise NotSent("it changed its mind")
        order = Order(
            contract=contract,
            ref=call.ref,
            attempt=call.attempt,
            arguments=arguments,
            key=call.idempotency_key if contract.key is not None else None,
            content=canonical(arguments),
            answer=loop.create_future(),
        )
        gaps.tell(f"{order.name} is being written")
        first_byte(order)
        world.receive(order, deadline_s=loop.time() + contract.timeout_ms / 1000)
        await gaps.pass_("in_function")
        answer = await order.answer
        if answer.status == 402:
            raise Rejected("the provider refused it")
        if answer.status != 200 or not answer.complete or b"id" not in answer.body:
            raise RuntimeError("the provider's answer proves nothing")
        if faults.draw("function.applied"):
            call.applied("o")
        if faults.draw("function.breaks_after"):
            raise RuntimeError("the function broke after it had acted")
        return {"done": True}

    looks = {rules.name: _look(contract, rules, gaps, world) for rules in contract.lookups}
    return design.with_code(Body(function=act), looks)


def _look(
    contract: Contract, rules: LookupRules, gaps: Gaps, world: World
) -> Callable[[Operation], Awaitable[Found]]:
    faults = gaps.faults

    async def look(operation: Operation) -> Found:
        await gaps.turn()
        if faults.draw("lookup.hangs"):
            await gaps.never()
        if faults.draw("lookup.fails"):
            raise ConnectionError("the provider can't be asked")
        if faults.draw("lookup.part"):
            return CouldNotAsk(why="only a part came")
        _, things = world.look(contract, rules)
        for thing in things:
            if thing.ref == operation.ref:
                return Present(provider_operation_id=thing.id)
        return Absent()

    return look
