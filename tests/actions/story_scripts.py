"""The script of the story: it says by itself where what it sends may be there twice."""

from playwright.async_api import Page

from doubtless.core.model import Json
from doubtless.transports.browser_form import Form


async def submit(page: Page, form: Form) -> Json:
    """Send the form. With mode `held` it waits for the page, between the gate and the click."""
    name = str(form.arguments["name"])
    if form.duplicate_of is not None:
        name += f" (possible duplicate of {form.duplicate_of})"
    await page.fill("#name", name)
    async with form.act(confirmation="#done"):
        if form.arguments["mode"] == "held":
            await page.wait_for_selector("#go")
        await page.click("#send", no_wait_after=True)
    return {"receipt": await form.confirmed()}
