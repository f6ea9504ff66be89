"""Opens every page of the built documentation in headless Chromium, at the width of a desktop and of a phone.

python -m tools.docs_check build/docs

A page fails by a message on its console, a request that is not served from the folder, a picture that does not load, a
link to a page or heading that is not there, or content that is wider than the window. The search must find a page too.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, TimeoutError, sync_playwright
from rich.console import Console
from rich.progress import track

WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root a browser has no sandbox. The others keep it from asking its maker's hosts, which a network may refuse.
FLAGS = ("--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update")
SEARCHED = "mask"
PATIENCE = 10_000  # milliseconds until the first result

# Loads those pictures too that a reader would have to scroll to.
PICTURES = """() => Promise.all([...document.images].map(i => {
  i.loading = "eager";
  return i.decode().catch(() => null);
}))"""
# What only the browser knows of a page: names of headings, links, pictures that did not load, what sticks out.
FACTS = """() => ({
  names: [...document.querySelectorAll("[id]")].map(e => e.id),
  links: [...document.querySelectorAll("a[href]")].map(e => e.href),
  broken: [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def browser_path() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def opened(page: Page, address: str, root: str) -> list[str]:
    """Opens the address; what went wrong meanwhile."""
    wrong: list[str] = []

    def console(message: ConsoleMessage) -> None:  # of what does not load too
        if message.type in ("error", "warning"):
            wrong.append(f"console: {message.text} ({message.location['url']})")

    def request(request: Request) -> None:
        if not request.url.startswith((root, "data:")):
            wrong.append(f"asks for {request.url}")

    listeners: dict[Any, Any] = {
        "console": console,
        "pageerror": lambda error: wrong.append(f"script: {error}"),
        "request": request,
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address, wait_until="load")
    page.evaluate(PICTURES)
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return wrong


def broken_links(links: dict[str, list[str]], names: dict[str, set[str]], folder: Path, root: str) -> list[str]:
    """Links within the folder whose file or heading is not there. Other hosts are not asked."""
    wrong = []
    for page, found in links.items():
        for link in found:
            if not link.startswith(root):
                continue
            address, name = urldefrag(link)
            path = unquote(urlsplit(address).path).lstrip("/") or "index.html"
            if not (folder / path).is_file():
                wrong.append(f"{page}: link to {path}, which is not there")
            elif name and path in names and unquote(name) not in names[path]:
                wrong.append(f"{page}: link to {path}#{name}, which has no such heading")
    return wrong


def confined(browser: Browser, root: str, **options: Any) -> Page:
    """A window whose requests to other hosts end at once: a network may let them wait."""
    window = browser.new_page(**options)
    window.route(lambda url: not url.startswith((root, "data:")), lambda route: route.abort())
    return window


def check_pages(browser: Browser, folder: Path, root: str) -> list[str]:
    wrong: list[str] = []
    links: dict[str, list[str]] = {}
    names: dict[str, set[str]] = {}
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    for device, (width, height) in WIDTHS.items():
        window = confined(browser, root, viewport={"width": width, "height": height})
        for page in track(pages, device, console=Console(stderr=True)):
            found = opened(window, root + page, root)
            facts = window.evaluate(FACTS)
            found += [f"picture does not load: {source}" for source in facts["broken"]]
            if facts["overflow"] > 0:
                found.append(f"{facts['overflow']} pixels wider than the window")
            wrong += [f"{page} ({device}): {text}" for text in found]
            links[page], names[page] = facts["links"], set(facts["names"])
        window.close()
    return wrong + broken_links(links, names, folder, root)


def check_search(browser: Browser, root: str) -> list[str]:
    window = confined(browser, root)
    wrong = opened(window, f"{root}search.html?q={SEARCHED}", root)
    try:
        window.wait_for_selector("#search-results li a", timeout=PATIENCE)
    except TimeoutError:
        wrong.append(f"finds nothing for {SEARCHED!r}")
    window.close()
    return [f"search: {text}" for text in wrong]


def check(folder: Path) -> list[str]:
    """What is wrong with the pages of the folder."""
    if not any(folder.rglob("*.html")):
        return [f"{folder} has no pages"]
    with served(folder) as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        wrong = check_pages(browser, folder, root)
        if (folder / "search.html").is_file():
            wrong += check_search(browser, root)
        browser.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if not browser_path():
        sys.exit(f"docs_check needs a browser, one of {', '.join(BROWSERS)}: for example apt-get install chromium")
    wrong = check(folder.resolve())
    print("\n".join(wrong) or f"every page of {folder} is whole, at {' and '.join(WIDTHS)} width")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
