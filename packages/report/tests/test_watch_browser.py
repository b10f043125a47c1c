"""The page in a real browser: opens, follows, survives, works without a mouse. Skipped without Chromium."""

import json
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from tailrace.pipeline.run.directory import write_json
from tailrace.report.testing import NAMES, Browser, chromium

from .conftest import a_run

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(chromium() is None, reason=f"found no browser ({', '.join(NAMES)})"),
]
SERVE = """
import sys
from pathlib import Path
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.report.watch import server
from tailrace.report.watch.following import FollowedRun
with server.listen("127.0.0.1", int(sys.argv[2])) as listener:
    print(server.url_of("127.0.0.1", listener.getsockname()[1]), flush=True)
    server.serve(FollowedRun(RunDirectory.open(Path(sys.argv[1]))), listener, host="127.0.0.1")
"""
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
STEP = "document.querySelector('#tiles dd')?.textContent"


MEDIA = {"prefers-color-scheme": "dark", "prefers-reduced-motion": "reduce"}


class Server:
    """The page's server in a process of its own."""

    def __init__(self, directory, port=0):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(directory.root), str(port)], stdout=subprocess.PIPE, text=True
        )
        self.url = self.process.stdout.readline().strip()
        self.port = int(re.search(r":(\d+)/", self.url).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory, _ = a_run(tmp_path_factory.mktemp("runs") / "run", crash_at_step=3)
    return directory, directory.events.read_bytes().splitlines(keepends=True)


@pytest.mark.deep
def test_it_follows_a_run_over_its_end_its_resume_and_a_death_of_the_server(whole):
    directory, lines = whole
    cut = next(number for number, line in enumerate(lines) if b'"Resumed"' in line)
    directory.events.write_bytes(b"".join(lines[: cut // 2]))
    with Server(directory) as server, Browser() as page:
        page.open(server.url)
        page.until("document.querySelector('#lanes rect') !== null")
        first = page.script(STEP)
        directory.events.write_bytes(b"".join(lines[:cut]))
        page.until(f"{STEP} !== {first!r}")
        middle = page.script(STEP)
        server.end(signal.SIGKILL)
        page.until("!document.querySelector('#trouble').hidden")
        assert "does nothing to the run" in page.script("document.querySelector('#trouble').textContent")
        directory.events.write_bytes(b"".join(lines))
        with Server(directory, server.port):
            page.until(f"{STEP} === '6 of 6'")
            assert middle != "6 of 6"
            page.until("document.querySelector('#trouble').hidden")
            page.until("document.querySelector('#incidents-list').textContent.includes('goes on after its driver')")
        assert page.script("window.pwned") is None


@pytest.mark.deep
def test_what_a_model_wrote_is_text(whole):
    directory, lines = whole
    directory.events.write_bytes(b"".join(lines))
    write_json(directory.status, {"phase": EVIL, "detail": EVIL})
    with Server(directory) as server, Browser() as page:
        page.open(server.url)
        page.until("document.querySelector('#found button') !== null")
        text = {"prompt": EVIL, "response": [[EVIL, True]], "turns": 1, "tokens": 1, "versions": [0], "finish": EVIL}
        answer = json.dumps({"entry": None, "why": "", "story": [[1, 0, EVIL]], "text": text})
        page.script(
            "fetch = ((real) => async (path, ...more) => path.startsWith('/api/trajectory?') "
            f"? new Response({json.dumps(answer)}) : real(path, ...more))(fetch)"
        )
        page.script("document.querySelector('#found button').click()")
        page.until("document.querySelector('#one-prompt').textContent.length > 0")
        for part in ("one-prompt", "one-response", "one-story", "one-facts"):
            assert EVIL in page.script(f"document.querySelector('#{part}').textContent")
        assert page.script("document.querySelectorAll('main img, main script').length") == 0
        assert page.script("window.pwned") is None
        assert page.errors == []


@pytest.mark.deep
def test_it_can_be_used_without_a_mouse_and_fits_a_phone(whole):
    directory, lines = whole
    directory.events.write_bytes(b"".join(lines))
    with (
        Server(directory) as server,
        Browser(390, 800, {"prefers-color-scheme": "dark", "prefers-reduced-motion": "reduce"}) as page,
    ):
        page.open(server.url)
        page.until("document.querySelector('#found button') !== null")
        for width in (390, 800, 1440):
            page.resize(width, 900)
            time.sleep(0.5)
            assert page.script("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        reached = set()
        for _ in range(60):
            page.press("Tab", 9)
            reached.add(page.script("document.activeElement.id || document.activeElement.className"))
        assert {"skip", "window", "lanes", "like", "fate"} <= reached
        page.script("document.querySelector('#lanes').focus()")
        said = page.script("document.querySelector('#lane-said').textContent")
        for key, code in (("ArrowDown", 40), ("ArrowDown", 40), ("ArrowDown", 40), ("ArrowLeft", 37)):
            page.press(key, code)
        now = page.script("document.querySelector('#lane-said').textContent")
        assert now != said
        assert re.match(r"(relay|replica|trainer|scorer|data) \S+: \w+", now)
        assert page.script("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        landmarks = page.script("[...document.querySelectorAll('header, nav, main, footer')].length")
        assert landmarks == 4
        controls = "[...document.querySelectorAll('button, input, select, progress, svg[role=img]')]"
        named = "one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length"
        unnamed = page.script(f"{controls}.filter(one => !({named})).map(one => one.outerHTML.slice(0, 80))")
        assert unnamed == []
        levels = page.script("[...document.querySelectorAll('h1, h2, h3, h4')].map(one => Number(one.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_page_loads_nothing_that_is_not_its_own(whole):
    directory, lines = whole
    directory.events.write_bytes(b"".join(lines))
    with Server(directory) as server, Browser() as page:
        page.open(server.url)
        page.until("document.querySelector('#found button') !== null")
        loaded = page.script("performance.getEntriesByType('resource').map(one => one.name)")
        assert loaded
        assert page.errors == []
        assert all(name.startswith(server.url) for name in loaded)
        refused = page.script("fetch('https://example.org/').then(() => 'let through', () => 'refused')")
        assert refused == "refused"


@pytest.mark.deep
def test_of_very_many_spans_and_marks_it_is_seen_where_they_begin(whole):
    directory, lines = whole
    directory.events.write_bytes(b"".join(lines))
    with Server(directory) as server, Browser() as page:
        page.open(server.url)
        page.until("page.frame !== null && !page.reading")
        first = page.script("clearTimeout(page.timer), page.asking = true, page.spans[0]")
        page.script(
            "take({...page.frame, about: null, marks: null, incidents: [], lanes: {...page.frame.lanes, whole: false, "
            "ended: Array.from({length: 7000}, (_, at) => ['trainer', '0', 'waiting', 300 + at, 301 + at, ''])}})"
        )
        assert page.script("page.spans[0]") == first
        assert page.script("page.cursor.spans") == 0  # so that all are asked for anew, coarser
        note = "document.querySelector('#earlier').textContent"
        assert page.script(note) == ""
        page.script("take({...page.frame, about: null, incidents: [], marks: page.marks.slice(-3)})")
        assert page.script(note) == page.script("` Of these, ${page.cursor.marks - 3} earlier ones are not drawn.`")
        live = page.script(  # a screen reader says again what is put there again
            "window.again = []; document.querySelectorAll('[aria-live], [role=log], [role=status], [role=alert]').forEach("
            "one => new MutationObserver(() => again.push(one.id)).observe(one, {childList: true, subtree: true})); "
            "page.incidents = []; draw(), find(0).then(() => { again.length = 0; draw(); return find(0); }).then(() => again)"
        )
        assert live == []
        added = page.script(
            "page.incidents = Array.from({length: 50}, (_, at) => [at, 'it went']); draw(); "
            "window.added = []; new MutationObserver(all => all.forEach(one => added.push(...one.addedNodes)))"
            ".observe($('incidents-list'), {childList: true}); page.incidents.push([50, 'it came']); draw(); "
            "new Promise(done => setTimeout(done)).then("
            "() => [added.map(one => one.textContent), $('incidents-list').children.length])"
        )
        assert added == [["50 sit came"], 40]
