"""Teams of processes on this machine, one torch thread each."""

from __future__ import annotations

import pytest

from .team import HERE, Team


@pytest.fixture(scope="session")
def two():
    team = Team(2)
    yield team
    team.stop()


@pytest.fixture(scope="session")
def four():
    team = Team(4)
    yield team
    team.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker has the teams: another would start teams of its own."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.xdist_group("teams"))
