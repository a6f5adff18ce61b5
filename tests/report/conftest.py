"""The example's page, and a browser."""

import pytest

from lerope.report.collect import collect
from lerope.report.page import render
from lerope.report.payload import payload
from tests.report.browser import Browser
from tests.report.example import write_example


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """The example's folder, which no test may change."""
    folder = tmp_path_factory.mktemp("example") / "runs"
    write_example(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(example):
    return collect([example])


@pytest.fixture(scope="session")
def shown(bundle):
    """What the page shows of the example."""
    return payload(bundle)


@pytest.fixture(scope="session")
def file(shown, tmp_path_factory):
    """The example's page on the disk."""
    path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(render(shown), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def one_browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser):
    """The browser with a plain desktop window; a test fails if the page complained."""
    one_browser.complaints.clear()
    one_browser.requests.clear()
    one_browser.screen(1280)
    one_browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    yield one_browser
    assert one_browser.complaints == []
