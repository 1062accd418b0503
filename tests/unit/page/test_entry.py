"""Who is let in, and what browsers are told."""

from __future__ import annotations

import re
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spark_replication.messages.replication import COST_MIN, Salt
from spark_replication.page import entry
from spark_replication.page.document import FOLDER, SCRIPTS, Document
from spark_replication.page.entry import COOKIE, FORM_BYTES_MAX, LoginLink, is_loopback
from spark_replication.page.server import PageServer
from spark_replication.transport.proofs.salting import ROOTS, STRANGERS_MAX
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.proofs.verifier import Verifier
from spark_replication.transport.security.security import Security
from tests.unit.page.conftest import SECRET
from tests.unit.page.page_cluster import NO_READER, PageCluster
from tests.unit.page.viewer import Answer, Viewer, nobody_hears
from tests.unit.transport.certificates import Authority, tls_settings

LONG_SECRET = "the-secret-of-alice"
VERIFIER = Verifier.of(Token(LONG_SECRET, "alice"), Salt(value=b"s" * 16, cost=COST_MIN))
PATHS = ("/", "/api/view", "/healthz", "/metrics", "/none")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:80", True),
        ("127.9.9.9:80", True),
        ("localhost:80", True),
        ("LocalHost", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("", False),
        ("evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("localhost.evil.example", False),
        ("10.0.0.1:80", False),
        ("0.0.0.0:80", False),
    ],
)
def test_a_name_of_loopback_is_one_that_no_other_site_can_have(host: str, *, is_ours: bool) -> None:
    assert is_loopback(host) == is_ours


@pytest.mark.parametrize("path", PATHS)
def test_without_a_token_another_hosts_name_is_refused(viewer: Viewer, path: str) -> None:
    answer = viewer.ask(path, headers={"Host": "evil.example"})
    assert (answer.status, answer.json["error"]) == (403, "FORBIDDEN")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_changed(viewer: Viewer, stranger: Viewer, method: str) -> None:
    for asked in (viewer, stranger):
        for path in ("/api/view", "/login" if method != "POST" else "/"):
            answer = asked.ask(path, method, headers={"Authorization": f"Bearer {SECRET}"})
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert viewer.ask("/", "HEAD").body == b""
    assert viewer.ask("/login", "POST", "token=x").status == 405, "there is nothing to log in to"


@pytest.mark.parametrize("path", [*PATHS, "/login"])
def test_every_answer_says_what_a_browser_may_do_with_it(viewer: Viewer, stranger: Viewer, path: str) -> None:
    for asked in (viewer, stranger):
        headers = asked.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy.replace("'", "")
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert "server" not in headers


@pytest.mark.parametrize(
    "shown", [{}, {"Authorization": "Bearer other"}, {"Authorization": SECRET}, {"Authorization": f"Basic {SECRET}"}]
)
def test_without_the_token_nothing_is_told(stranger: Viewer, shown: dict[str, str]) -> None:
    for path in PATHS:
        answer = stranger.ask(path, headers=shown)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert SECRET.encode() not in answer.body
    assert b"<form" in stranger.ask("/", headers=shown).body


def test_with_the_token_everything_is_from_anywhere(stranger: Viewer) -> None:
    shown = {"Authorization": f"Bearer {SECRET}", "Host": "driver.example"}
    assert stranger.ask("/healthz", headers=shown).status == 200
    assert stranger.ask("/api/view", headers=shown).json["whole"]


def test_the_form_gives_a_cookie_that_holds_no_secret(stranger: Viewer) -> None:
    answer = stranger.ask("/login", "POST", f"token={SECRET}")
    cookie = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert SECRET not in cookie
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    shown = {"Cookie": cookie.partition(";")[0]}
    assert stranger.ask("/healthz", headers=shown).status == 200
    assert stranger.ask("/api/view", headers={**shown, "Authorization": "Bearer other"}).status == 401


def test_the_form_refuses_what_is_not_the_token(stranger: Viewer) -> None:
    for body in ("token=other", "", "token=", "%ff=%fe", "token=other&token=" + SECRET):
        answer = stranger.ask("/login", "POST", body)
        assert (answer.status, "set-cookie" in answer.headers) == (401, False)
    assert b"no token of" in stranger.ask("/login", "POST", "token=other").body
    assert stranger.ask("/login", "POST", "token=" + "x" * FORM_BYTES_MAX).status == 413


def cookie(page: Viewer, ends: str, secret: str = SECRET, said: str | None = None) -> dict[str, str]:
    seal = Token(secret).sealed(f"page until {said or ends}")
    return {"Cookie": f"other=1; {name_at(page)}={ends}.{seal}"}


def name_at(page: Viewer) -> str:
    return f"{COOKIE}{urlsplit(page.url).port}"


def test_a_cookie_ends_and_is_of_this_token_and_of_its_time_alone(stranger: Viewer) -> None:
    later, before = str(int(time.time()) + 60), str(int(time.time()) - 1)
    assert stranger.ask("/healthz", headers=cookie(stranger, later)).status == 200
    forged = (
        cookie(stranger, before),
        cookie(stranger, later, secret="another"),
        cookie(stranger, later, said=before),
        cookie(stranger, "²", said="²"),
        {"Cookie": f"{name_at(stranger)}={later}"},
        {"Cookie": f"{name_at(stranger)}="},
        {"Cookie": "other=1"},
        {"Cookie": f"{name_at(stranger)}=\x01"},
    )
    for shown in forged:
        sent = {name: value.encode().decode("latin-1") for name, value in shown.items()}
        assert stranger.ask("/healthz", headers=sent).status == 401, shown


@pytest.fixture
def salted(cluster: PageCluster) -> Iterator[Viewer]:
    """Of a page whose file of tokens has a verifier alone."""
    security = Security(mode="token", tokens=Tokens.of(VERIFIER))
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=security, say=nobody_hears)
    yield Viewer(server.url)
    server.stop()


def test_a_page_knows_a_token_by_its_verifier(salted: Viewer) -> None:
    answer = salted.ask("/login", "POST", f"token={LONG_SECRET}")
    shown = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert salted.ask("/healthz", headers=shown).status == 200
    assert salted.ask("/healthz", headers={"Authorization": f"Bearer {LONG_SECRET}"}).status == 200


def test_what_is_in_the_file_opens_no_page(salted: Viewer) -> None:
    """As a token, and as what seals a cookie."""
    *_, server_key = VERIFIER.text.split(":")
    for secret in (VERIFIER.text, server_key, "another-secret-of-hers"):
        assert salted.ask("/login", "POST", f"token={secret}").status == 401
        assert salted.ask("/healthz", headers={"Authorization": f"Bearer {secret}"}).status == 401
    later = str(int(time.time()) + 60)
    raw = urlsafe_b64decode(f"{server_key}=").decode("latin-1")
    assert salted.ask("/healthz", headers=cookie(salted, later, secret=server_key)).status == 401
    assert salted.ask("/healthz", headers={"Cookie": f"{name_at(salted)}={later}.{raw.encode().hex()}"}).status == 401


def test_a_page_that_looks_at_too_many_tokens_says_so(salted: Viewer) -> None:
    for _ in range(STRANGERS_MAX):
        assert ROOTS._strangers.acquire(blocking=False)
    try:
        for answer in (
            salted.ask("/login", "POST", "token=a-guess-of-somebody"),
            salted.ask("/healthz", headers={"Authorization": "Bearer a-guess-of-somebody"}),
        ):
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.json["error"] == "THROTTLING_QUOTA_EXCEEDED"
    finally:
        for _ in range(STRANGERS_MAX):
            ROOTS._strangers.release()


def test_what_was_refused_is_shown_as_text() -> None:
    assert "&lt;b&gt;" in Document().login("<b>")
    assert "&lt;b&gt;" in Document().linked("<b>")


def test_a_browser_is_logged_in_to_the_pages_of_two_clusters_of_a_host(cluster: PageCluster) -> None:
    """It keeps one cookie of a name, whichever port it came from."""
    secrets = ("the-secret-of-one", "the-secret-of-another")
    pages, kept = [], SimpleCookie()
    for secret in secrets:
        security = Security(mode="token", tokens=Tokens.of(Token(secret)))
        pages.append(
            PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=security, say=nobody_hears)
        )
        kept.load(Viewer(pages[-1].url).ask("/login", "POST", f"token={secret}").headers["set-cookie"])
    shown = {"Cookie": "; ".join(f"{each.key}={each.value}" for each in kept.values())}
    try:
        assert [Viewer(page.url).ask("/healthz", headers=shown).status for page in pages] == [200, 200]
    finally:
        for page in pages:
            page.stop()


# The link


@pytest.fixture
def links() -> list[str]:
    """What whoever started the page was told."""
    return []


@pytest.fixture
def mutual(tmp_path: Path) -> Security:
    """Of a cluster that knows people by their certificates."""
    authority = Authority(tmp_path)
    return Security.of(tls_settings(authority, authority.issue("root"), mutual=True))


@pytest.fixture
def linked(cluster: PageCluster, links: list[str], mutual: Security) -> Iterator[Viewer]:
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=mutual, say=links.append)
    yield Viewer(server.url)
    server.stop()


def opened(link: str, method: str = "GET") -> Answer:
    address = urlsplit(link)
    return Viewer(link).ask(f"{address.path}?{address.query}", method)


def test_without_the_link_a_page_of_certificates_tells_nothing(linked: Viewer, links: list[str]) -> None:
    (link,) = links
    for path in PATHS:
        assert linked.ask(path).status == 401
    for key in ("", "?key=", "?key=another", "?key=%ff"):
        assert linked.ask(f"/login{key}").status == 401
    assert linked.ask("/login", "POST", "token=x").status == 405, "there is no token"
    assert b"<form" not in linked.ask("/").body
    assert urlsplit(link).query.partition("=")[2].encode() not in linked.ask("/").body
    assert links == [link], "and it works still"


def test_the_link_lets_one_browser_in_and_the_next_one_is_told(linked: Viewer, links: list[str]) -> None:
    first = links[0]
    assert opened(first, "HEAD").status == 401, "who looks ahead opens nothing"
    answer = opened(first)
    cookie = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    shown = {"Cookie": cookie.partition(";")[0]}
    assert linked.ask("/api/view", headers=shown).json["whole"]
    again = opened(first)
    assert (again.status, "set-cookie" in again.headers) == (401, False)
    assert b"was used before" in again.body
    assert len(links) == 2
    assert opened(links[1]).status == 303
    assert linked.ask("/healthz", headers=shown).status == 200, "the first one stays in"


def test_a_page_of_certificates_is_for_its_own_host(linked: Viewer, links: list[str]) -> None:
    address = urlsplit(links[0])
    answer = linked.ask(f"{address.path}?{address.query}", headers={"Host": "evil.example"})
    assert (answer.status, len(links)) == (403, 1)


def test_before_a_link_is_told_nothing_opens(links: list[str]) -> None:
    link = LoginLink("/login", links.append)
    assert not link.spent("")
    assert links == []


def test_a_cookie_of_another_page_opens_nothing(linked: Viewer) -> None:
    assert linked.ask("/healthz", headers=cookie(linked, str(int(time.time()) + 60))).status == 401


def test_with_tokens_beside_certificates_there_is_no_link(
    cluster: PageCluster, links: list[str], mutual: Security
) -> None:
    security = replace(mutual, tokens=Tokens.of(Token(SECRET)))
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=security, say=links.append)
    server.stop()
    assert links == [server.url]


# The document


def test_only_this_very_script_and_style_may_run_and_nothing_is_fetched(viewer: Viewer) -> None:
    answer = viewer.ask("/")
    html, policy = answer.body.decode(), answer.headers["content-security-policy"]
    for element, kind in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{element}[^>]*>(.*?)</{element}>", html, re.DOTALL)
        assert f"{kind} 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy
    assert "{{" not in html
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", html)


def test_what_comes_from_the_cluster_is_never_markup() -> None:
    source = "".join((FOLDER / name).read_text() for name in SCRIPTS)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert word not in source
    assert sorted(path.name for path in FOLDER.glob("*.js")) == sorted(SCRIPTS)


def test_no_cookie_outlives_half_a_day() -> None:
    assert entry.COOKIE_S <= 12 * 3_600


def test_with_super_users_the_page_is_for_them(cluster: PageCluster) -> None:
    """It shows everything, which others may not see."""
    tokens = Tokens.of(Token(SECRET, "root"), Token("of-alice", "alice"))
    security = Security(mode="token", tokens=tokens, super_users=frozenset({"root"}))
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=security, say=nobody_hears)
    try:
        viewer = Viewer(server.url)
        for secret, status, logged_in in ((SECRET, 200, 303), ("of-alice", 401, 401)):
            assert viewer.ask("/api/view", headers={"Authorization": f"Bearer {secret}"}).status == status
            assert viewer.ask("/login", "POST", f"token={secret}").status == logged_in
    finally:
        server.stop()
