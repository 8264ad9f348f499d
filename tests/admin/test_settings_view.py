"""Settings without secrets."""

import pytest

from epp.admin.settings_view import HIDDEN, EffectiveSetting, settings_as_json, without_secrets


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("scrape.headers", {"x-api-key": "s3cret"}, {"x-api-key": HIDDEN}),
        ("scrape.headers", (("a", "s3cret"), ("b", "s3cret")), {"a": HIDDEN, "b": HIDDEN}),
        ("scrape.headers", (), {}),
        ("scrape.headers", "authorization: s3cret", {HIDDEN: HIDDEN}),
        ("adminToken", "s3cret", HIDDEN),
        ("--api-key", "s3cret", HIDDEN),
        ("--admin-token-file", "/etc/epp/token", "/etc/epp/token"),
        ("token", None, None),
        ("kubeconfig", "https://me:s3cret@api.example:6443", f"https://{HIDDEN}@api.example:6443"),
        ("plugins", [{"parameters": {"password": "s3cret", "weight": 2}}], [{"parameters": {"password": HIDDEN, "weight": 2}}]),
        ("requests.models", ("a", "b"), ["a", "b"]),
        ("scrape.enabled", True, True),
        ("limits.maxBufferedBytes", 536870912, 536870912),
    ],
)
def test_what_may_be_a_credential_is_hidden_and_the_rest_is_shown(name: str, value: object, shown: object) -> None:
    assert without_secrets(name, value) == shown
    assert "s3cret" not in str(without_secrets(name, value))


def test_settings_are_sorted_by_their_key() -> None:
    settings = [EffectiveSetting(key=key, value=1, source="default") for key in ("b", "a")]

    assert list(settings_as_json(settings)["settings"]) == ["a", "b"]
