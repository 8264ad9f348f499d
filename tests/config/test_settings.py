"""The declarations of the settings."""

from epp.config.settings import declared


def test_every_setting_can_be_given_somewhere_and_says_what_it_does() -> None:
    for group, attribute, setting, _ in declared():
        assert setting.flag or setting.key, f"{group}.{attribute}"
        assert setting.sentence.endswith("."), f"{group}.{attribute}"


def test_flags_variables_and_keys_are_unique() -> None:
    for names in (
        [s.flag for _, _, s, _ in declared() if s.flag],
        [s.variable for _, _, s, _ in declared() if s.variable],
        [s.key for _, _, s, _ in declared() if s.key],
    ):
        assert len(names) == len(set(names))


def test_a_variable_is_the_flag_in_upper_case() -> None:
    assert "EPP_REFRESH_METRICS_INTERVAL" in {s.variable for _, _, s, _ in declared()}


def test_defaults_are_values_of_their_kind() -> None:
    for group, attribute, setting, default in declared():
        if isinstance(default, (bool, int, str)) and default != "":
            assert setting.kind.read(default) == default, f"{group}.{attribute}"
