"""Scripts as users write them. The tests copy this file beside their contracts."""

from pathlib import Path

from playwright.async_api import Page

from doubtless.core.model import Json
from doubtless.transports.browser_form import Form


async def send(page: Page, form: Form) -> Json:
    """Fill the form in, send it, and wait until the page confirms it."""
    await page.fill("#name", str(form.arguments.get("name", "Ann")))
    async with form.act(confirmation="#done"):
        await page.click("#send", no_wait_after=True)
    return {"receipt": await form.confirmed()}


async def send_hastily(page: Page, form: Form) -> Json:
    """Click twice, as people do."""
    async with form.act(confirmation="#done"):
        await page.dblclick("#send")
    return {"receipt": await form.confirmed()}


async def send_with_password(page: Page, form: Form) -> Json:
    """Log in first, which acts on nothing."""
    await page.fill("#word", "typed by hand")
    await page.evaluate("fetch('/login', {method: 'POST', body: 'me'})")
    await form.fill_secret("#token")
    if form.arguments["mode"] == "echo":
        await page.evaluate("document.body.append('You said ' + token.value)")
    async with form.act(confirmation="#done"):
        await page.click("#send", no_wait_after=True)
    return {"receipt": await form.confirmed()}


async def attach(page: Page, form: Form) -> Json:
    """Send a file."""
    await page.set_input_files("#file", str(Path(__file__)))
    async with form.act(confirmation="#done"):
        await page.click("#send", no_wait_after=True)
    return await form.confirmed()


async def stay_before(page: Page, form: Form) -> Json:
    """Wait before acting until the page says so."""
    await page.wait_for_selector("#go")
    return await send(page, form)


async def stay_within(page: Page, form: Form) -> Json:
    """Wait after the gate was opened, before the click."""
    async with form.act(confirmation="#done"):
        await page.wait_for_selector("#go")
        await page.click("#send", no_wait_after=True)
    return {"receipt": await form.confirmed()}


async def fail(page: Page, form: Form) -> Json:
    """Send too soon, then break."""
    await page.evaluate("fetch('/early', {method: 'POST'}).catch(() => 0)")
    raise RuntimeError("the page is not as it was")


async def never_act(page: Page, form: Form) -> Json:
    """Click without saying so."""
    await page.click("#send", no_wait_after=True)
    return {"attempt": form.attempt, "operation_id": form.operation_id, "ref": form.ref}
