"""What identifies a run."""

from lerope.core.run import Identity, Run, now
from tests.made_runs import made_recipe


def test_two_runs_of_one_recipe_are_two_runs(tmp_path):
    """However short the time between them: a checkpoint of one must not pass for the other's."""
    identity = Identity(recipe=made_recipe("52M", "rope", 42), data="d", initial_frequencies="rope")
    found = {Run(tmp_path, identity, False, now(), []).digest for _ in range(20)}
    assert len(found) > 1
