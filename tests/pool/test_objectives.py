from epp.pool.objectives import Objectives


def test_a_request_has_the_priority_of_the_objective_that_it_names() -> None:
    objectives = Objectives()
    objectives.replace({"chat": 10, "batch": -5})

    assert (objectives.priority("chat"), objectives.priority("batch")) == (10, -5)


def test_without_an_objective_or_with_one_that_is_not_known_the_priority_is_0() -> None:
    objectives = Objectives()

    assert (objectives.priority(None), objectives.priority("chat")) == (0, 0)
    objectives.replace({"chat": 10})
    assert (objectives.priority(None), objectives.priority("other"), objectives.priority("")) == (0, 0, 0)


def test_a_new_table_replaces_the_old_one_as_a_whole() -> None:
    objectives = Objectives()
    objectives.replace({"chat": 10})

    objectives.replace({"batch": 1})

    assert (objectives.priority("chat"), objectives.priority("batch")) == (0, 1)


def test_the_table_is_not_the_callers_any_more() -> None:
    objectives, priorities = Objectives(), {"chat": 10}
    objectives.replace(priorities)

    priorities["chat"] = 3

    assert objectives.priority("chat") == 10
