"""The guide: the pages in spark_replication/guide, which the command `guide` prints and the page serves at /docs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

FOLDER = Path(__file__).parents[1] / "guide"
#: The order in which they are read. Those of the reference, which `guide --write-reference` writes, come after them.
ORDER = (
    *("start", "concepts", "from-kafka", "python", "groups", "spark", "notebooks", "topic-tables", "tables"),
    *("operate", "moves", "metrics", "deploy", "security", "measured"),
)


class GuidePage(NamedTuple):
    #: As in ORDER, or reference/….
    name: str
    title: str
    #: One sentence about it.
    summary: str
    #: Markdown.
    text: str


def guide_pages() -> list[GuidePage]:
    """All pages, in the order in which they are read."""
    found = [(str(path.relative_to(FOLDER).with_suffix("")), path) for path in FOLDER.rglob("*.md")]
    places = {name: place for place, name in enumerate(ORDER)}
    return [_read(name, path) for name, path in sorted(found, key=lambda each: (places.get(each[0], len(ORDER)), each))]


def place_in_guide(place: str, pages: Sequence[GuidePage] | None = None) -> tuple[GuidePage, str]:
    """A page by its name, and its text; of `PAGE#SECTION` the text of that section alone, which ends where the next of
    its level begins. A page of the reference may be named without its folder, where no other page has that name. Raises
    LookupError if there is none, with the name of one that is nearly so, or empty."""
    known = guide_pages() if pages is None else pages
    name, _, section = place.partition("#")
    wanted = name.removesuffix(".md")
    page = next((each for asked in (wanted, f"reference/{wanted}") for each in known if each.name == asked), None)
    if page is None:
        raise LookupError(*get_close_matches(wanted, [each.name for each in known], n=1))
    if not section:
        return page, page.text
    sections = _sections(page.text)
    if section not in sections:
        raise LookupError(*(f"{page.name}#{near}" for near in get_close_matches(section, sections, n=1)))
    return page, sections[section]


def _sections(text: str) -> dict[str, str]:
    """The sections of a page by their anchors, each with those below it."""
    lines = text.splitlines(keepends=True)
    tokens = _markdown().parse(text)
    headings = [
        (token.map[0], int(token.tag[1:]), anchor_of(inline.content))
        for token, inline in pairwise(tokens)
        if token.type == "heading_open" and token.map is not None
    ]
    found: dict[str, str] = {}
    for place, (begin, level, anchor) in enumerate(headings):
        end = next((at for at, other, _ in headings[place + 1 :] if other <= level), len(lines))
        found.setdefault(anchor, "".join(lines[begin:end]).rstrip("\n") + "\n")
    return found


@cache
def guide_html(name: str) -> tuple[str, str] | None:
    """The title of a page, and its text as HTML. None if there is no such page. Links between pages are as they are
    stored (`security.md`), so a name may end in `.md`."""
    found = next((page for page in guide_pages() if page.name == name.removesuffix(".md")), None)
    return None if found is None else (found.title, _html(found.text))


@cache
def contents_html() -> str:
    """A list of all pages."""
    items = "\n".join(
        f'<li><a href="/docs/{page.name}.md">{escape(page.title)}</a>: {_markdown().renderInline(page.summary)}</li>'
        for page in guide_pages()
    )
    return f"<h1>The guide</h1>\n<ul>\n{items}\n</ul>"


def anchor_of(heading: str) -> str:
    """What a link names a heading by, as GitHub has it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _html(text: str) -> str:
    markdown = _markdown()
    tokens = markdown.parse(text)
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", anchor_of(inline.content))
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _markdown() -> MarkdownIt:
    """HTML that stands in a page is shown, and does nothing."""
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _read(name: str, path: Path) -> GuidePage:
    text = path.read_text(encoding="utf-8")
    title, summary, *_ = text.split("\n\n")
    return GuidePage(name, title.removeprefix("# "), " ".join(summary.split()), text)
