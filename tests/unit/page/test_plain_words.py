"""What the page calls reasons and elections: a newer controller's are shown by their names, these in plain words."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from spark_replication.client.asking.groups import GroupState
from spark_replication.core.law.election import Reason
from spark_replication.model import How
from spark_replication.page.document import FOLDER
from spark_replication.view import table_lags
from spark_replication.view.conditions import WORDS
from spark_replication.view.groups import STATES


def test_conditions_are_called_as_everywhere_and_in_that_order() -> None:
    assert list(words_of("CONDITIONS").items()) == list(WORDS.items())


def test_states_of_groups_are_called_as_everywhere() -> None:
    assert words_of("GROUP_STATES") == STATES
    assert sorted(STATES) == sorted(get_args(GroupState))


def test_what_is_shown_of_tables_is_called_as_everywhere() -> None:
    assert words_of("TABLE_WORDS") == table_lags.WORDS


@pytest.mark.parametrize(("table", "names"), [("WAITS", get_args(Reason)), ("CHOSEN", get_args(How))])
def test_each_reason_and_each_election_has_words(table: str, names: tuple[str, ...]) -> None:
    assert sorted(words_of(table)) == sorted(names)


def words_of(table: str) -> dict[str, str]:
    text = (FOLDER / "words.js").read_text()
    (body,) = re.findall(rf"^const {table} = {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^  (\w+): '([^']+)',$", body, re.MULTILINE))
