"""Kubeconfig files, good and bad."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.discovery.kubernetes.kubeconfig import FILE_MAX_BYTES, read_kubeconfig
from epp.errors import ConfigError


def document(**changes: Any) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    } | changes


def write(folder: Path, found: Any, name: str = "config") -> Path:
    path = folder / name
    path.write_text(found if isinstance(found, str) else yaml.safe_dump(found))
    return path


def fault(folder: Path, found: Any) -> str:
    """The one problem, without the folder's name."""
    path = write(folder, found)
    with pytest.raises(ConfigError) as caught:
        read_kubeconfig([path])
    (problem,) = caught.value.problems
    assert "secret" not in problem
    return problem.replace(str(folder), "DIR")


def cluster(**values: Any) -> dict[str, Any]:
    return document(clusters=[{"name": "k", "cluster": {"server": "https://10.0.0.1:6443", **values}}])


def user(**values: Any) -> dict[str, Any]:
    return document(users=[{"name": "u", "user": values}])


def test_the_current_context_says_which_cluster_and_which_user(tmp_path: Path) -> None:
    found = read_kubeconfig([write(tmp_path, document())]).config
    assert found.cluster.server == "https://10.0.0.1:6443"
    assert found.user is not None
    assert found.user.token == "secret"
    assert found.namespace == "ns"


def test_a_context_without_user_and_namespace_has_an_empty_user_and_the_default_namespace(tmp_path: Path) -> None:
    bare = document(contexts=[{"name": "c", "context": {"cluster": "k"}}], users=None)
    found = read_kubeconfig([write(tmp_path, bare)]).config
    assert found.user is not None
    assert found.user.token is None
    assert found.namespace == "default"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"current-context": None}, 'DIR/config: current-context: expected one of "c", found nothing'),
        ({"current-context": ""}, 'DIR/config: current-context: expected one of "c", found nothing'),
        ({"current-context": "x"}, 'DIR/config: current-context: expected one of "c", found "x"'),
        ({"contexts": []}, 'DIR/config: current-context: expected one of (none is there), found "c"'),
        ({"contexts": {}}, 'DIR/config: current-context: expected one of (none is there), found "c"'),
        ({"contexts": "c"}, "DIR/config: contexts: expected a list, found a text"),
        ({"contexts": ["c"]}, "DIR/config: contexts[0]: expected a map with a name, found a text without"),
        ({"clusters": []}, 'DIR/config: contexts[0].context.cluster: expected one of (none is there), found "k"'),
        ({"users": []}, 'DIR/config: contexts[0].context.user: expected one of (none is there), found "u"'),
        ({"users": [{"name": "u", "user": 3}]}, "DIR/config: users[0].user: expected a map, found a number"),
        ({"contexts": [{"name": "c"}]}, 'DIR/config: contexts[0].context.cluster: expected one of "k", found nothing'),
        ({"clusters": [{"name": "k", "cluster": {}}]}, "DIR/config: clusters[0].cluster.server: expected a URL, found nothing"),
        (
            {"clusters": [{"name": "k", "cluster": {"server": 7}}]},
            "DIR/config: clusters[0].cluster: expected `str`, got `int` - at `$.server`",
        ),
    ],
)
def test_what_is_missing_or_unknown_is_told_with_what_is_there(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    assert fault(tmp_path, document(**changes)) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [secret", "DIR/config: expected YAML, found "),
        ("token: secret\n  b: c", "DIR/config: expected YAML, found something else in line 2"),
        ("\x00", "DIR/config: expected YAML, found "),
        ("just text", "DIR/config: expected a kubeconfig, found a text"),
        ("", "DIR/config: expected a kubeconfig, found nothing"),
        ("a:\n  token: !secret x", "DIR/config: expected YAML, found something else in line 2"),
        ("a:\n  token: *secret", "DIR/config: expected YAML, found something else in line 2"),
        ("[" * 100_000, "DIR/config: expected "),
        ("- " * 100_000, "DIR/config: expected "),
        ("#" * (FILE_MAX_BYTES + 1), f"DIR/config: expected a kubeconfig file, found more than {FILE_MAX_BYTES} bytes"),
    ],
)
def test_what_is_no_kubeconfig_is_told_without_its_contents(tmp_path: Path, text: str, problem: str) -> None:
    assert fault(tmp_path, text).startswith(problem)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none: expected a kubeconfig file, found: No such file"):
        read_kubeconfig([tmp_path / "none"])


@pytest.mark.parametrize(
    ("found", "where"),
    [
        (cluster(**{"certificate-authority": "ca.crt"}), "clusters[0].cluster.certificate-authority"),
        (user(tokenFile="token"), "users[0].user.tokenFile"),
        (user(**{"client-certificate": "c", "client-key": "k"}), "users[0].user.client-certificate"),
    ],
)
def test_a_file_that_is_named_must_be_there(tmp_path: Path, found: dict[str, Any], where: str) -> None:
    assert fault(tmp_path, found).startswith(f"DIR/config: {where}: expected a file, found none at DIR/")


@pytest.mark.parametrize(
    ("found", "where"),
    [
        (cluster(**{"certificate-authority-data": "s!ecret"}), "clusters[0].cluster.certificate-authority-data"),
        (user(**{"client-key-data": 7}), "users[0].user.client-key-data"),
    ],
)
def test_what_is_given_in_the_file_must_be_base64(tmp_path: Path, found: dict[str, Any], where: str) -> None:
    assert fault(tmp_path, found) == f"DIR/config: {where}: expected base64, found something else"


def test_files_are_named_from_the_folder_of_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    found = read_kubeconfig([write(tmp_path, user(tokenFile="token"))]).config
    assert found.user is not None
    assert found.user.token_file == str(tmp_path / "token")


@pytest.mark.parametrize("key", ["auth-provider", "as", "as-groups"])
def test_credentials_that_cannot_be_used_are_refused(tmp_path: Path, key: str) -> None:
    assert f"found {key}, which is not supported" in fault(tmp_path, user(**{key: ["x"]}))


def test_a_plugin_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    problem = fault(tmp_path, user(exec={"apiVersion": "client.authentication.k8s.io/v9", "command": "x"}))
    assert "users[0].user.exec.apiVersion: expected one of client.authentication.k8s.io/v1, " in problem


def test_a_plugin_with_a_path_is_named_from_the_folder_and_one_without_from_the_path_variable(tmp_path: Path) -> None:
    for command, runs in (("bin/x", str(tmp_path / "bin/x")), ("aws", "aws")):
        found = read_kubeconfig(
            [write(tmp_path, user(exec={"apiVersion": "client.authentication.k8s.io/v1", "command": command}))]
        )
        assert found.config.user is not None
        assert found.config.user.exec is not None
        assert found.config.user.exec.command == runs


@pytest.mark.parametrize("text", ["secret\n", " secret", "secret\r\n\n"])
def test_white_space_around_a_token_is_no_part_of_it(tmp_path: Path, text: str) -> None:
    found = read_kubeconfig([write(tmp_path, user(token=text))]).config
    assert found.user is not None
    assert found.user.token == "secret"


@pytest.mark.parametrize("text", ["secret\nsecret", "secret\0", "secret secret", "secrét", " \n"])
def test_a_token_that_cannot_stand_in_a_header_is_told_without_it(tmp_path: Path, text: str) -> None:
    assert fault(tmp_path, user(token=text)) == (
        "DIR/config: users[0].user.token: expected a token of printable ASCII characters without spaces, found something else"
    )


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("me:secret@10.0.0.1", "expected a URL such as http://proxy.example:3128, found something else"),
        ("ftp://me:secret@10.0.0.1", 'expected http or https, found "ftp"'),
        ("socks5://me:secret@10.0.0.1", 'expected http or https, found "socks5"'),
        ("http://me:secret@", "expected a URL such as http://proxy.example:3128, found something else"),
        ("http://[::1", 'expected a URL such as http://proxy.example:3128, found "http://[::1"'),
    ],
)
def test_a_proxy_that_cannot_be_used_is_told_without_who_uses_it(tmp_path: Path, url: str, found: str) -> None:
    assert fault(tmp_path, cluster(**{"proxy-url": url})) == f"DIR/config: clusters[0].cluster.proxy-url: {found}"


@pytest.mark.parametrize("name", ["a b", "a\0", "x" * 300, "é", "a..b"])
def test_a_server_name_that_is_none_is_told(tmp_path: Path, name: str) -> None:
    problem = fault(tmp_path, cluster(**{"tls-server-name": name}))
    assert problem.startswith("DIR/config: clusters[0].cluster.tls-server-name: expected a DNS name or an IP address, found")


@pytest.mark.parametrize(
    "values",
    [{"args": ["secret\0"]}, {"env": [{"name": "A", "value": "secret\0"}]}, {"env": [{"name": "A=secret", "value": "x"}]}],
)
def test_a_plugin_that_cannot_be_started_so_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", **values}
    assert fault(tmp_path, user(exec=plugin)).startswith("DIR/config: users[0].user.exec")


def test_names_that_are_no_names_are_told_by_their_type(tmp_path: Path) -> None:
    assert fault(tmp_path, document(**{"current-context": ["secret"]})).endswith(
        "current-context: expected a name, found a list"
    )
    odd = [{"name": "c", "context": {"cluster": ["secret"]}}]
    assert fault(tmp_path, document(contexts=odd)).endswith('contexts[0].context.cluster: expected one of "k", found a list')


def test_credentials_are_not_in_what_a_kubeconfig_looks_like(tmp_path: Path) -> None:
    proxied = cluster(**{"proxy-url": "http://me:secret@h"})
    assert "secret" not in repr(read_kubeconfig([write(tmp_path, proxied)]))


def test_given_data_beats_a_named_file(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("")
    found = read_kubeconfig([write(tmp_path, cluster(**{"certificate-authority": "ca", "certificate-authority-data": "AA=="}))])
    assert found.config.cluster.certificate_auth is None


def test_proxy_and_server_name_are_read(tmp_path: Path) -> None:
    found = read_kubeconfig([write(tmp_path, cluster(**{"proxy-url": "http://p:1", "tls-server-name": "n"}))])
    assert (found.proxy_url, found.tls_server_name) == ("http://p:1", "n")


def test_of_several_files_the_first_one_that_names_something_wins(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "token").write_text("t")
    first = write(tmp_path, {"current-context": "c", "clusters": [{"name": "k", "cluster": {"server": "http://first"}}]})
    second = write(
        tmp_path / "other", document(users=[{"name": "u", "user": {"tokenFile": "token"}}]) | {"current-context": "x"}
    )
    found = read_kubeconfig([first, second]).config
    assert found.cluster.server == "http://first"
    assert found.user is not None
    assert found.user.token_file == str(tmp_path / "other" / "token")
