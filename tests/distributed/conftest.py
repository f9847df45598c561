"""Teams of processes on this machine, one torch thread each."""

from __future__ import annotations

import pytest

from .team import Team


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
