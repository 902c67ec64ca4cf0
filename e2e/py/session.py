"""Runs one session with the Python SDK's client and prints a JSON line for each
check: {"check", "ok", "detail"}.

    python session.py URL PREFIX [NASTY]

PREFIX stands before the names of server-everything's tools and prompts. NASTY
stands before those of a nasty server, if there is one at URL. The session is one of
the era with sessions.
"""

import json
import sys
import time
import traceback
import warnings

import anyio
import mcp_types as types
from mcp import Client

warnings.filterwarnings("ignore")  # of methods that newer revisions do without

URL, PREFIX = sys.argv[1:3]
NASTY = sys.argv[3] if len(sys.argv) > 3 else None


async def sample(_context, params):
    return types.CreateMessageResult(
        model="none", role="assistant", content=types.TextContent(type="text", text="sampled: " + params.messages[0].content.text)
    )


async def elicit(_context, _params):
    return types.ElicitResult(action="accept", content={"name": "Ada Lovelace"})


async def roots(_context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///srv/root-of-py", name="root-of-py")])


class Inbox:
    """Keeps what came and lets a check wait for it."""

    def __init__(self):
        self.got = []

    async def until(self, match):
        with anyio.fail_after(20):
            while not any(match(x) for x in self.got):
                await anyio.sleep(0.02)


logged, notes = Inbox(), Inbox()


async def on_log(params):
    logged.got.append(params)


async def on_message(message):
    notes.got.append(message)


client = Client(
    URL,
    mode="legacy",
    sampling_callback=sample,
    elicitation_callback=elicit,
    list_roots_callback=roots,
    logging_callback=on_log,
    message_handler=on_message,
)


async def call(name, args=None, **options):
    return await client.call_tool(name, args or {}, **options)


def text(result):
    return "\n".join(getattr(c, "text", "") for c in result.content)


def must(ok, what):
    if not ok:
        raise AssertionError(f"got {what!r}")


async def initialize():
    must(client.server_info and client.server_info.name, client.server_info)
    must("Everything" in (client.instructions or ""), client.instructions)


async def tools():
    names = [t.name for t in (await client.list_tools()).tools]
    for name in ("get-sum", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"):
        must(PREFIX + name in names, names)


async def plain_call():
    result = await call(PREFIX + "get-sum", {"a": 2, "b": 40})
    must("42" in text(result), result)


async def structured():
    got = (await call(PREFIX + "get-structured-content", {"location": "Chicago"})).structured_content
    must(got["temperature"] == 36 and got["humidity"] == 82, got)


async def progress():
    steps = []

    async def on_progress(done, _total, _message):
        steps.append(done)

    await call(PREFIX + "trigger-long-running-operation", {"duration": 0.5, "steps": 5}, progress_callback=on_progress)
    must(steps == [1, 2, 3, 4, 5], steps)


async def cancellation():
    steps, begun = [], anyio.Event()

    async def on_progress(done, _total, _message):
        steps.append(done)
        begun.set()

    async with anyio.create_task_group() as group:
        group.start_soon(
            lambda: call(
                PREFIX + "trigger-long-running-operation", {"duration": 20, "steps": 200}, progress_callback=on_progress
            )
        )
        with anyio.fail_after(20):
            await begun.wait()
        group.cancel_scope.cancel()
    seen = len(steps)
    await anyio.sleep(0.5)
    must(len(steps) == seen, f"{len(steps) - seen} steps after the cancellation")


async def cancellation_stops_the_server():
    async def running():
        return "-sleeper 124s" in text(await call(NASTY + "processes"))

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call(NASTY + "child", {"seconds": 124}))
        with anyio.fail_after(20):
            while not await running():
                pass
        group.cancel_scope.cancel()
    with anyio.fail_after(20):
        while await running():
            pass
    cancelled = json.loads(text(await call(NASTY + "cancelled")))
    must(len(cancelled) == 1 and cancelled[0]["call"] == "child", cancelled)


async def sampling():
    result = await call(PREFIX + "trigger-sampling-request", {"prompt": "who are you"})
    must("sampled: Resource trigger-sampling-request context: who are you" in text(result), result)


async def elicitation():
    result = await call(PREFIX + "trigger-elicitation-request")
    must("Ada Lovelace" in text(result), result)


async def roots_list():
    result = await call(PREFIX + "get-roots-list")
    must("file:///srv/root-of-py" in text(result), result)


async def resource():
    resources = (await client.list_resources()).resources
    uri = next(str(r.uri) for r in resources if str(r.uri).startswith("demo://resource/static/"))
    contents = (await client.read_resource(uri)).contents
    must(str(contents[0].uri) == uri and contents[0].text, contents)


async def template():
    templates = (await client.list_resource_templates()).resource_templates
    must(any(t.uri_template == "demo://resource/dynamic/text/{resourceId}" for t in templates), templates)
    contents = (await client.read_resource("demo://resource/dynamic/text/7")).contents
    must(contents[0].text.startswith("Resource 7:"), contents)


async def subscription():
    uri = "demo://resource/dynamic/text/1"
    await client.subscribe_resource(uri)
    await call(PREFIX + "toggle-subscriber-updates")
    await notes.until(lambda m: isinstance(m, types.ResourceUpdatedNotification) and str(m.params.uri) == uri)
    await call(PREFIX + "toggle-subscriber-updates")
    await client.unsubscribe_resource(uri)


async def prompt():
    prompts = (await client.list_prompts()).prompts
    must(any(p.name == PREFIX + "args-prompt" for p in prompts), prompts)
    got = await client.get_prompt(PREFIX + "args-prompt", {"city": "Paris"})
    must("Paris" in got.messages[0].content.text, got)


async def completion():
    got = await client.complete(
        types.PromptReference(type="ref/prompt", name=PREFIX + "completable-prompt"), {"name": "department", "value": "S"}
    )
    must(got.completion.values == ["Sales", "Support"], got)


async def logging():
    await client.set_logging_level("debug")
    await call(PREFIX + "toggle-simulated-logging")
    await logged.until(lambda p: "essage" in str(p.data) or "level" in str(p.data))
    await call(PREFIX + "toggle-simulated-logging")


CHECKS = {
    "initialize": initialize,
    "tools": tools,
    "call": plain_call,
    "structured": structured,
    "progress": progress,
    "cancellation": cancellation,
    "cancellation stops the server": cancellation_stops_the_server,
    "sampling": sampling,
    "elicitation": elicitation,
    "roots": roots_list,
    "resource": resource,
    "template": template,
    "subscription": subscription,
    "prompt": prompt,
    "completion": completion,
    "logging": logging,
}


if NASTY is None:
    del CHECKS["cancellation stops the server"]


def say(check, detail=""):
    print(json.dumps({"check": check, "ok": not detail, "detail": detail}), flush=True)


async def main():
    try:
        async with client:
            for name, run in CHECKS.items():
                try:
                    with anyio.fail_after(60):
                        await run()
                except Exception:
                    say(name, traceback.format_exc())
                else:
                    say(name)
            began = time.monotonic()
    except BaseException:
        say("close", traceback.format_exc())
        raise
    say("close", "" if time.monotonic() - began < 10 else "it took more than ten seconds")


anyio.run(main)
