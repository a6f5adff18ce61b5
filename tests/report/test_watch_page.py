"""The page of `lerope watch`: live, of this machine alone, read as it changes."""

import http.client
import json
import re
import shutil
import threading
from contextlib import contextmanager

import pytest

from lerope.core.locks import locked
from lerope.report.collect import collect
from lerope.report.payload import payload
from lerope.report.watch import Source, open_server
from tests.report.pages import box_of, in_browser, picture, text, ticked
from tests.train.runs import edit

pytestmark = pytest.mark.slow


@contextmanager
def watching(folder):
    with open_server([folder], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def training(example, tmp_path):
    """A run that is on its way, beside one that is finished; records by name."""
    for name in ("52M-rope-42", "52M-lerope-42"):
        shutil.copytree(example / name, tmp_path / "runs" / name)
    run = tmp_path / "runs" / "52M-lerope-42"
    edit(run / "run.json", finished=False)
    shutil.rmtree(run / "results")
    records = {}
    for name, count in (("metrics.jsonl", 60), ("frequencies.jsonl", 5)):
        records[name] = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(records[name][:count]))
    with locked(run):
        yield run, records


@in_browser
def test_watch_follows_a_run_without_a_reload(browser, training):
    run, records = training
    with watching(run.parent) as server:
        browser.open(server.url)
        assert text(browser, "#state") == "live"
        now = text(browser, "#verdict .now")
        assert re.search(r"step \d+ of 3,840", now)
        assert "min" in now
        browser.click(box_of(browser, "52M-rope-42"))
        browser.run("document.querySelector('#slider').focus()")
        browser.press("Home")
        browser.run(
            "document.querySelector('#frequencies h2').scrollIntoView({ behavior: 'instant' }); window.kept = true"
        )
        place = "document.querySelector('#frequencies h2').getBoundingClientRect().top"
        before, top = picture(browser, "losses"), browser.run(place)
        (run / "metrics.jsonl").write_text("".join(records["metrics.jsonl"][:90]))
        (run / "frequencies.jsonl").write_text("".join(records["frequencies.jsonl"][:15]))
        browser.wait(f"document.querySelector('#verdict .now').innerText !== {json.dumps(now)}")
        assert picture(browser, "losses") != before
        assert browser.run("window.kept")
        assert ticked(browser) == ["52M-lerope-42"]
        assert browser.run("document.activeElement.id") == "slider"
        assert browser.run("Number(document.querySelector('#slider').value)") == 0
        assert browser.run(place) == pytest.approx(top, abs=1)
        edit(run / "run.json", finished=True)
        browser.wait("!document.querySelector('#verdict .now').checkVisibility()")
    assert set(browser.requests) == {server.url, f"{server.url}data.json"}
    browser.wait("document.querySelector('#state').innerText.includes('has ended')")
    refused = [complaint for complaint in browser.complaints if "ERR_CONNECTION_REFUSED" in complaint]
    assert browser.complaints == refused
    browser.complaints.clear()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_watch_answers_this_machine_alone(training):
    run, _ = training
    with watching(run.parent) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server)[0] == 200
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
            assert ask(server, "/data.json", Host=host)[0] == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "", "[::1", "a:b"):
            assert ask(server, "/data.json", Host=host)[0] == 403, host
        assert ask(server, "/run.json")[0] == 404
        assert ask(server, "/../run.json")[0] == 404
        assert ask(server, "/", "POST")[0] == 501


def test_watch_gives_the_same_data_as_the_report_and_new_runs(training, example):
    run, _ = training
    with watching(run.parent) as server:
        found = json.loads(ask(server, "/data.json")[1])
        wanted = json.loads(json.dumps(payload(collect([run.parent]))))
        assert {**found, "made": None, "live": None} == {**wanted, "made": None, "live": None}
        shutil.copytree(example / "52M-rope-43", run.parent / "52M-rope-43")
        found = json.loads(ask(server, "/data.json")[1])
        assert [each["id"] for each in found["runs"]] == ["52M-rope-42", "52M-rope-43", "52M-lerope-42"]
        shutil.rmtree(run.parent)
        status, content = ask(server, "/data.json")
        assert (status, b"holds no run" in content) == (503, True)


def test_watch_reads_only_what_has_changed(training, monkeypatch):
    run, records = training
    source = Source([run.parent])
    source.read()
    calls = []
    real = collect
    monkeypatch.setattr("lerope.report.watch.collect", lambda paths: calls.append(paths) or real(paths))
    (run / "metrics.jsonl").write_text("".join(records["metrics.jsonl"][:70]))
    step = json.loads(records["metrics.jsonl"][69])["step"]
    (found,) = [each for each in source.read()["runs"] if each["id"] == run.name]
    assert found["progress"]["step"] == step
    assert calls == []
    edit(run / "run.json", finished=True)
    source.read()
    assert len(calls) == 1


def test_a_port_that_is_taken_or_wrong_is_one_sentence(training):
    run, _ = training
    with watching(run.parent) as server, pytest.raises(ValueError, match="is in use by another program; name another"):
        open_server([run.parent], server.server_address[1])
    with pytest.raises(ValueError, match="port must be from 0 to 65535; got 70000"):
        open_server([run.parent], 70000)
