"""What a release says about itself agrees: version, changelog, citation, and what hosted CI runs."""

import re
from pathlib import Path

import yaml

import lerope

ROOT = Path(__file__).parents[1]


def test_the_version_is_in_changelog_and_citation():
    released = lerope.__version__.partition(".dev")[0]
    assert f"\n## {released}\n" in (ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["cff-version"]) == (released, "1.2.0")


def test_hosted_ci_runs_ours_on_every_supported_version():
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    project = (ROOT / "pyproject.toml").read_text()
    assert set(matrix["python"]) == set(re.findall(r"Python :: (3\.\d+)", project))
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    oldest = re.search(r'"torch>=([\d.]+)"', project)
    assert pinned
    assert oldest
    versions = [each["version"] for each in matrix["torch"]]
    assert pinned.group(1) in versions
    assert f"{oldest.group(1)}.0" in versions
    assert any(step.get("run") == ".ci/run" for step in job["steps"])


def test_forms_and_hooks_are_yaml():
    for path in [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")]:
        assert yaml.safe_load(path.read_text()), path
