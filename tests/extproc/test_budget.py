"""Bytes that are held, over all sessions."""

import pytest

from epp.extproc.budget import LEAST_OVERDRAFT_BYTES, BufferBudget, Overdraft


def test_bodies_stop_at_the_limit() -> None:
    budget = BufferBudget(100)
    assert budget.take(100)
    assert not budget.take(1)
    budget.give_back(1)
    assert budget.take(1)


@pytest.mark.parametrize("limit", [100, LEAST_OVERDRAFT_BYTES * 3])
def test_half_messages_pass_by_full_buffers_and_then_stop_too(limit: int) -> None:
    """Field report 25."""
    budget = BufferBudget(limit)
    account = Overdraft(budget)
    assert budget.take(limit)
    beyond = max(limit, LEAST_OVERDRAFT_BYTES)
    assert account.take(beyond)
    assert not account.take(1)
    assert not budget.take(1), "bodies give way meanwhile"
    account.give_back(beyond)
    assert budget.held_bytes == limit
