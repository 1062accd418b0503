"""The guide at /docs: every page, links that lead on, and nothing that a page could run."""

from __future__ import annotations

import re
from typing import get_args
from urllib.parse import urljoin, urlsplit

import pytest

from spark_replication.page import guide
from spark_replication.page.guide import GuidePage, guide_pages
from spark_replication.view.problem import GuidePlace
from tests.unit.page.viewer import Viewer

HTML = "text/html; charset=utf-8"


def test_the_list_leads_to_every_page(viewer: Viewer) -> None:
    answer = viewer.ask("/docs")
    assert (answer.status, answer.headers["content-type"]) == (200, HTML)
    listed = re.findall(r'<li><a href="(/docs/[^"]+)"', answer.body.decode())
    assert listed == [f"/docs/{page.name}.md" for page in guide_pages()]


def test_links_within_the_guide_lead_on(viewer: Viewer) -> None:
    seen, left = set[str](), ["/docs"]
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = viewer.ask(path)
        assert answer.status == 200, path
        for link in re.findall(r'href="([^"]*)"', answer.body.decode()):
            target = urlsplit(urljoin(path, link))
            if not target.scheme:
                left.append(target.path)
    assert seen == {"/", "/docs", *(f"/docs/{page.name}.md" for page in guide_pages())}


def test_a_heading_is_found_by_its_link(viewer: Viewer) -> None:
    assert b'<h2 id="zookeeper">' in viewer.ask("/docs/deploy").body


@pytest.mark.parametrize("place", get_args(GuidePlace))
def test_what_a_mend_links_to_is_there(viewer: Viewer, place: str) -> None:
    page, _, section = place.partition("#")
    assert f'id="{section}"' in viewer.ask(f"/docs/{page}.md").body.decode()


def test_a_table_is_one(viewer: Viewer) -> None:
    assert b"<table>" in viewer.ask("/docs/reference/errors.md").body


@pytest.mark.parametrize(
    "path", ["/docs/", "/docs/none", "/docs/..%2f..%2fsetup.cfg", "/docs/../app.py", "/docs/reference"]
)
def test_what_is_no_page_is_not_there(viewer: Viewer, path: str) -> None:
    answer = viewer.ask(path)
    assert (answer.status, answer.json["error"]) == (404, "NOT_FOUND")


def test_html_in_a_page_does_nothing(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# <b>X</b>\n\n<script>alert(1)</script> [go](javascript:alert(1)) `<i>`"
    monkeypatch.setattr(guide, "guide_pages", lambda: [GuidePage("odd", "<b>X</b>", "<i>y</i>", text)])
    guide.guide_html.cache_clear()
    try:
        body = viewer.ask("/docs/odd").body.decode()
    finally:
        guide.guide_html.cache_clear()
    assert [each for each in ("<script", "<b>", "<i>", 'href="javascript:') if each in body] == []
    assert "&lt;script&gt;" in body


def test_whoever_may_not_see_the_page_sees_no_guide(stranger: Viewer) -> None:
    assert stranger.ask("/docs/start").status in (302, 303, 401)
    assert b"first hour" not in stranger.ask("/docs/start").body


def test_the_page_links_to_the_guide(viewer: Viewer) -> None:
    assert b'href="/docs"' in viewer.ask("/").body
