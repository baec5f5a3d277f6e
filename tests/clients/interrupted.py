"""A blocking program that is interrupted while it waits: `python -m tests.clients.interrupted`."""

import sys
import time

from doubtless import Call, Doubtless

app = Doubtless.sync(f"sqlite:///{sys.argv[1]}")


@app.tool(effect="write", timeout="30s")
def slow(call: Call, seconds: float) -> str:
    print("begun", flush=True)
    time.sleep(seconds)
    return "done"


if __name__ == "__main__":
    try:
        with app:
            app.call("slow", {"seconds": float(sys.argv[2])}, operation_id="o1")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
