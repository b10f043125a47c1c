"""``tailrace watch``: what the page is sent is what the controller's view says, and nobody else can ask for it."""

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest

from tailrace import contracts as c
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.view import Whereabouts
from tailrace.pipeline.run.eventlog import LogFollower, read_log, take_over_log
from tailrace.pipeline.run.replay import controller_of, replayed, take_in
from tailrace.report.record import read_record
from tailrace.report.watch import frame as frames_of_pages
from tailrace.report.watch.following import FollowedRun
from tailrace.report.watch.frame import _WHERE, OVER, Cursor, Frames
from tailrace.report.watch.server import (
    MOST_CONNECTIONS,
    Guard,
    WatchError,
    again_s,
    build_app,
    hosts_of,
    is_loopback,
    listen,
    serve,
    url_of,
)

from .conftest import a_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run in which a driver died."""
    return a_run(tmp_path_factory.mktemp("runs") / "run", crash_at_step=3)[0]


def followed_to_the_end(directory, **options):
    followed = FollowedRun(directory, **options)
    followed.advance(3600)
    return followed


def get(app, path, query=None, *, method="GET", host="127.0.0.1:80", **headers):
    """Status, headers and body of a request to an ASGI application, without a socket."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": urlencode(query or {}).encode(),
        "headers": [(name.encode(), value.encode()) for name, value in pairs.items()], "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])


def asked(app, path, **query):
    status, _, body = get(app, path, query)
    return status, json.loads(body)


# ---- following


def test_following_in_small_pieces_ends_where_reading_at_once_does(run):
    at_once, slowly = followed_to_the_end(run), FollowedRun(run)
    while slowly.reading:
        slowly.advance(0.0)
    assert slowly.story.instants == at_once.story.instants == sum(1 for _ in read_log(run.events))
    one, other = (Frames(each).frame(Cursor()) for each in (at_once, slowly))
    for frame in (one, other):
        frame["cursor"].pop("generation")
    assert one == other


def test_pieces_of_frames_add_up_to_the_whole(run):
    followed, frames_of = FollowedRun(run), None
    frames_of = Frames(followed)
    cursor, spans, incidents = Cursor(), [], []
    while followed.reading:
        followed.advance(0.0)
        found = frames_of.frame(cursor)
        spans = found["lanes"]["ended"] if found["lanes"]["whole"] else spans + found["lanes"]["ended"]
        incidents += found["incidents"]
        cursor = cursor_of(found)
    whole = frames_of.frame(Cursor())
    assert spans == whole["lanes"]["ended"]
    assert incidents == whole["incidents"]
    assert len(spans) > 50
    assert "lanes" not in frames_of.frame(cursor)  # nothing is new


def test_the_controller_makes_the_commands_of_the_log_again(run):
    controller, follower, count = controller_of(run), LogFollower(run.events), 0
    for line, instant in enumerate(follower.instants(), 2):
        commands = take_in(controller, instant, run.events, line)
        assert list(commands) == instant.commands
        count += len(commands)
    assert count > 100


def test_where_very_many_trajectories_are_is_looked_at_seldom_and_is_right_in_the_end(run, monkeypatch):
    monkeypatch.setattr(frames_of_pages, "LOOKED_AT_PER_S", 0.5)  # as if each was thousands
    clock = iter_clock()
    followed = FollowedRun(run, speed=1.0, clock=clock)
    frames, cursor, looked = Frames(followed), Cursor(), 0
    while followed.held_back or not followed.story.instants:
        clock.at += 0.5
        followed.advance(1e9)
        before, found = frames._where, frames.frame(cursor)
        looked += frames._where is not before
        cursor = cursor_of(found)
        current = frames_of_pages._whereabouts(followed.story.run)
        if "whereabouts" in found:
            assert found["looked_s"] <= found["now_s"]
            if cursor.instants >= 0:
                assert (found["whereabouts"], found["looked_s"]) == (current, found["now_s"])
    assert 3 < looked < clock.at
    clock.at += 1000.0  # nothing is new, and the page is still told
    assert frames.frame(Cursor(cursor.generation, cursor.spans, instants=-1))["whereabouts"] == current


def cursor_of(found):
    return Cursor(**found["cursor"])


def test_of_many_steps_the_first_one_and_the_last_ones_are_told(run, monkeypatch):
    monkeypatch.setattr(frames_of_pages, "MOST_POINTS", 5)
    monkeypatch.setattr(frames_of_pages, "LAST_BATCHES", 3)
    learning = Frames(followed_to_the_end(run)).frame(Cursor())["learning"]
    assert [row[0] for row in learning["batches"]] == [1, 3, 4, 5, 6]


def test_the_control_that_comes_behind_the_runs_end_is_told_to_an_open_page(run, monkeypatch):
    control = EvaluationResult(99, "sampled", rewards=[1.0] * 64, correct=[True] * 64, tokens=[5] * 64)
    monkeypatch.setattr(frames_of_pages, "fine_tuned", lambda *_: [control])
    followed = followed_to_the_end(run)
    frames = Frames(followed)
    monkeypatch.setattr(followed, "alive", lambda: True)
    found = frames.frame(Cursor())
    assert found["life"]["state"] in ("live", "silent")
    assert "fine-tuning" not in found["answers"][0]["said"]
    cursor = cursor_of(found)
    monkeypatch.setattr(followed, "alive", lambda: False)
    found = frames.frame(cursor)
    assert "continued fine-tuning" in found["answers"][0]["said"]
    assert "answers" not in frames.frame(cursor_of(found))


def test_the_timeline_is_that_of_the_report(run):
    spans = read_record(run).folds.timeline.spans
    found = Frames(followed_to_the_end(run)).frame(Cursor())["lanes"]
    rows = {
        (role, member, doing, start, end) for role, member, doing, start, end, _ in (*found["ended"], *found["open"])
    }
    assert {(s.role, s.member, str(s.doing), round(s.start_s, 3), round(s.end_s, 3)) for s in spans} <= rows


def test_a_frame_says_what_the_view_says(run):
    """At each tenth instant, with an independent count of where trajectories are."""
    controller, followed = controller_of(run), FollowedRun(run)
    frames, started, gone = Frames(followed), {}, set()
    for number, instant in enumerate(replayed(controller, run.events)):
        followed.advance(0.0)
        view = controller.view
        for command in instant.commands:
            if isinstance(command, c.Route):
                started |= {ref.trajectory: ref.group for ref in command.trajectories if ref.purpose is c.Purpose.TRAIN}
        if number % 10:
            continue
        found = frames.frame(Cursor())
        places = {row["where"]: row for row in found["whereabouts"]}
        assert found["progress"]["version"] == view.version
        assert found["buffers"]["buffered_groups"] == view.buffered
        assert [row[:1] + row[2:3] + row[4:] for row in found["fleet"]] == [
            [row.id, row.doing, row.trajectories, row.kv] for row in view.replicas()
        ]
        assert sum(places.get("not started", {"behind": [], "new": 0})["behind"]) == 0
        counted = Counter(
            str(row.replica is not None)
            for name in started
            if name not in gone and (row := view.trajectory(name)) is not None and not row.finished
        )
        assert places.get("on replicas", {"trajectories": 0})["trajectories"] == counted["True"]
        assert sum(places.get("in the pool", {"trajectories": 0})[key] for key in ("trajectories",)) == counted["False"]
    assert number > 100
    assert {_WHERE[where] for where in Whereabouts} >= set(places) - {"not started"}


def test_tokens_in_flight_are_at_least_those_that_are_known(run):
    followed = FollowedRun(run)
    seen = 0
    while followed.reading:
        followed.advance(0.0)
        for held in followed.story.run.whereabouts():
            if held.where is Whereabouts.BUFFER:
                seen += 1
                assert held.tokens > 0
                assert held.version is not None
    assert seen


def test_a_log_that_another_controller_took_over_is_read_anew(tmp_path):
    directory, _ = a_run(tmp_path / "run", until_step=3)
    followed = followed_to_the_end(directory)
    before = followed.generation
    lines = directory.events.read_bytes().splitlines(keepends=True)
    directory.events.write_bytes(
        b"".join(lines[: len(lines) // 2])
    )  # the old controller's last instants are not the run's
    take_over_log(directory.events)
    followed.advance(3600)
    assert followed.generation > before
    assert followed.story.instants == len(lines) // 2 - 1
    found = Frames(followed).frame(Cursor(before, spans=10_000, instants=1))
    assert found["about"]["app"] == "laminar"
    assert found["lanes"]["whole"]


def test_a_run_that_is_resumed_goes_on_in_the_same_reading(tmp_path):
    whole, _ = a_run(tmp_path / "whole", crash_at_step=3)
    lines = whole.events.read_bytes().splitlines(keepends=True)
    resumed = next(number for number, line in enumerate(lines) if b'"Resumed"' in line or b"resumed" in line)
    content = b"".join(lines)
    cut = len(b"".join(lines[:resumed]))
    whole.events.write_bytes(content[: cut + 7])  # half a line, which a reader does not take
    followed = followed_to_the_end(whole)
    assert followed.story.instants == resumed - 1
    before = followed.generation
    with whole.events.open("ab") as file:
        file.write(content[cut + 7 :])
    followed.advance(3600)
    assert (followed.generation, followed.story.instants, followed.trouble) == (before, len(lines) - 1, "")
    assert any("goes on after its driver" in each.said for each in followed.story.incidents)


def test_a_page_is_told_when_a_run_has_no_process_any_more(tmp_path, monkeypatch):
    directory, _ = a_run(tmp_path / "run", until_step=1)
    followed = followed_to_the_end(directory)
    monkeypatch.setattr(followed, "status", lambda: {"phase": "training"})
    frames, cursor, states = Frames(followed), Cursor(), []
    for alive in (True, True, False, False):
        monkeypatch.setattr(followed, "alive", lambda alive=alive: alive)
        found = frames.frame(cursor)
        cursor = replace(cursor, **found["cursor"])
        states.append((found["life"]["state"] in OVER, "trainer" in found))
    assert states == [(False, True), (False, False), (True, True), (True, False)]


def test_a_run_without_a_log_yet_waits_for_it(tmp_path):
    directory, _ = a_run(tmp_path / "run", until_step=1)
    content = directory.events.read_bytes()
    directory.events.unlink()
    followed = FollowedRun(directory)
    followed.advance(1)
    assert Frames(followed).frame(Cursor())["progress"]["step"] == 0
    directory.events.write_bytes(content)
    followed.advance(3600)
    assert Frames(followed).frame(Cursor())["progress"]["step"] == 1


def test_a_log_of_another_version_is_one_line_on_the_page(tmp_path):
    directory, _ = a_run(tmp_path / "run", until_step=1)
    lines = directory.events.read_bytes().splitlines(keepends=True)
    directory.events.write_bytes(
        b"".join((lines[0], lines[1].replace(b'"commands":[{', b'"commands":[{"is":"finish","seq":0},{')))
    )
    followed = followed_to_the_end(directory)
    assert "line 2" in followed.trouble
    assert not followed.reading
    assert Frames(followed).frame(Cursor())["trouble"] == followed.trouble


def test_a_replay_goes_as_fast_as_it_is_told(run):
    clock = iter_clock()
    followed = FollowedRun(run, speed=10.0, clock=clock)
    followed.advance(1e9)
    assert followed.held_back
    times = [instant.now for instant in read_log(run.events)]
    for at in (0.5, 1.0, 7.25):
        clock.at = at
        followed.advance(1e9)
        assert followed.story.instants == sum(time <= 10 * at for time in times)
    clock.at = 1e9
    followed.advance(1e12)
    assert followed.story.instants == len(times)
    assert not followed.held_back


def iter_clock():
    class Clock:
        at = 0.0

        def __call__(self):
            return self.at

    return Clock()


# ---- the paths


@pytest.fixture(scope="module")
def app(run):
    return build_app(followed_to_the_end(run))


def test_the_page_is_three_files_without_anything_from_elsewhere(app):
    for path, kind in (("/", "text/html"), ("/watch.js", "text/javascript"), ("/watch.css", "text/css")):
        status, headers, body = get(app, path)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "//cdn" not in text
    script = get(app, "/watch.js")[2].decode()
    for door in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert door not in script


def test_trajectories_come_in_pages_newest_first(app, run):
    status, first = asked(app, "/api/trajectories")
    assert status == 200
    names, offset = [row["name"] for row in first["rows"]], 0
    while first["more"]:
        offset += len(first["rows"])
        _, first = asked(app, "/api/trajectories", offset=offset)
        names += [row["name"] for row in first["rows"]]
    routed = dict.fromkeys(
        ref.trajectory
        for instant in read_log(run.events)
        for command in instant.commands
        if isinstance(command, c.Route)
        for ref in command.trajectories
    )
    assert names == list(reversed(routed))
    assert first["known"] == len(routed)


def test_fates_are_those_of_the_log(app, run):
    stepped = {
        name
        for instant in read_log(run.events)
        for command in instant.commands
        if isinstance(command, c.Step)
        for part in command.mini_batches
        for name in part
    }
    _, found = asked(app, "/api/trajectories", fate="trained")
    assert found["rows"]
    assert all(row["name"] in stepped and row["reward"] is not None for row in found["rows"])
    status, found = asked(app, "/api/trajectories", fate="eaten")
    assert (status, "fate 'eaten'" in found["error"]) == (400, True)


def test_a_trajectory_is_told_as_explain_tells_it(app, run):
    from tailrace.report.explain import explain

    name = asked(app, "/api/trajectories", fate="trained")[1]["rows"][0]["name"]
    status, found = asked(app, "/api/trajectory", name=name)
    assert status == 200
    assert found["story"] == [[line.at_s, line.version, line.text] for line in explain(run, name)]
    assert (found["text"], bool(found["why"])) == (None, True)
    status, found = asked(app, "/api/trajectory", name="no.such")
    assert (status, "found no trajectory 'no.such'" in found["error"]) == (400, True)


@pytest.mark.parametrize("wrong", ["x", "1e9", "٣", "1" * 40, "1.5"])
def test_a_number_that_is_none_is_refused(app, wrong):
    status, found = asked(app, "/api/frame", spans=wrong)
    if wrong == "٣":  # a digit to Python, and 3
        assert status == 200
    else:
        assert (status, "expected a whole number" in found["error"]) == (400, True)


def test_a_page_asks_more_seldom_where_a_frame_is_dear():
    def found(state, reading=None):
        return {"life": {"state": state}, "reading": reading}

    assert again_s(found("live"), 0.001) == 2.0
    assert again_s(found("done"), 0.001) == 5.0
    assert again_s(found("replay"), 0.001) == 1.0
    assert again_s(found("replay"), 0.05) == 5.0
    assert again_s(found("live"), 0.5) == 50.0  # 1 % of a core
    assert again_s(found("live", {"read": 1, "of": 2}), 0.5) == 0.0


# ---- who may ask


def guarded(app, host="127.0.0.1", token=""):
    return Guard(app, hosts=hosts_of(host, 80), token=token)


def test_its_own_page_is_answered_with_a_strict_policy(app):
    status, headers, _ = get(guarded(app), "/api/frame", sec_fetch_site="same-origin", origin="http://127.0.0.1:80")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1:81", "localhost.evil.example:80", "", "10.0.0.1:80"]
)
def test_a_name_that_was_bound_to_this_machine_is_not_answered(app, host):
    status, _, body = get(guarded(app), "/api/frame", host=host)
    assert status == 421
    assert b"generation" not in body


@pytest.mark.parametrize("host", ["localhost:80", "LOCALHOST:80", "[::1]:80", "127.0.0.1:80", "127.0.0.1", "[::1]"])
def test_names_of_loopback_are(app, host):
    """Browsers leave out port 80, and no other."""
    assert get(guarded(app), "/api/frame", host=host)[0] == 200
    assert hosts_of("127.0.0.1", 81).isdisjoint({"127.0.0.1", "[::1]", "localhost"})


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:80"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"},
    ],
)
def test_another_site_is_not_answered(app, headers):
    status, _, body = get(guarded(app), "/api/frame", **headers)
    assert status == 403
    assert b"generation" not in body


def test_a_link_from_elsewhere_opens_the_page_and_no_data(app):
    way = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert get(guarded(app), "/", **way)[0] == 200
    assert get(guarded(app), "/api/frame", **way)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(app, method):
    assert get(guarded(app), "/api/frame", method=method)[0] == 405


def test_with_a_token_it_is_asked_for_once_and_kept_in_a_cookie(app):
    secret = guarded(app, token="s3cret")
    assert get(secret, "/api/frame")[0] == 401
    assert get(secret, "/", {"token": "other"})[0] == 401
    status, headers, _ = get(secret, "/", {"token": "s3cret"})
    assert (status, headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
    cookie = headers["set-cookie"].partition(";")[0]
    assert get(secret, "/api/frame", cookie=f"other=1; {cookie}")[0] == 200
    assert get(secret, "/api/frame", cookie=cookie + "x")[0] == 401


def test_a_host_that_others_reach_needs_a_token(run):
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "a.b"))
    with socket.socket() as closed, pytest.raises(WatchError, match=r"found no token for the host 0\.0\.0\.0"):
        serve(FollowedRun(run), closed, host="0.0.0.0")
    assert url_of("::1", 8, "t") == "http://[::1]:8/?token=t"


def test_a_port_in_use_is_one_line():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WatchError, match=rf"cannot listen at 127\.0\.0\.1:{port}: .*; expected a free port"):
            listen("127.0.0.1", port)


IMPATIENT = """
import sys
from pathlib import Path
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.report.watch import server
from tailrace.report.watch.following import FollowedRun
server.HEADERS_S = 1.0
with server.listen("127.0.0.1", 0) as listener:
    print(server.url_of("127.0.0.1", listener.getsockname()[1]), flush=True)
    server.serve(FollowedRun(RunDirectory.open(Path(sys.argv[1]))), listener, host="127.0.0.1")
"""


def test_connections_that_ask_nothing_give_their_places_back(run):
    with ExitStack() as held:
        command = [sys.executable, "-c", IMPATIENT, str(run.root)]
        process = held.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        held.callback(process.kill)
        url = process.stdout.readline().strip()
        urlopen(url, timeout=60).close()
        at = urlsplit(url)
        idle = [held.enter_context(socket.create_connection((at.hostname, at.port))) for _ in range(MOST_CONNECTIONS)]
        idle[0].sendall(b"GET / HT")
        for connection in idle:
            connection.settimeout(60)
            assert connection.recv(1) == b"", "it was not closed"
        assert urlopen(url, timeout=60).status == 200


def test_unknown_kinds_of_connections_are_closed(app):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(guarded(app)({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
