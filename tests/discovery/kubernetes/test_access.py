"""Where access to an API server is looked for, and what is told when it is not there."""

import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lightkube.config.client_adapter import verify_cluster

from epp.discovery.kubernetes import access as access_module
from epp.discovery.kubernetes.access import Access, Trust, find_access
from epp.errors import ConfigError
from tests.kubernetes.certificates import server_keys

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def config(path: Path, server: str = "http://127.0.0.1:1", user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    context = {"cluster": "k", "namespace": path.name} | ({} if user is None else {"user": "u"})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": context}],
                "clusters": [{"name": "k", "cluster": {"server": server, **cluster}}],
                "users": [] if user is None else [{"name": "u", "user": user}],
            }
        )
    )
    return path


def service_account(folder: Path) -> Path:
    folder.mkdir()
    (folder / "token").write_text("t")
    (folder / "namespace").write_text("pods-own\n")
    (folder / "ca.crt").write_bytes(server_keys().authority)
    return folder


def find(tmp_path: Path, kubeconfig: Path | None = None, environ: Mapping[str, str] | None = None) -> Access:
    return find_access(
        None if kubeconfig is None else str(kubeconfig),
        environ or {},
        service_account=tmp_path / "account",
        home=tmp_path / "home",
    )


def fault(tmp_path: Path, kubeconfig: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        find(tmp_path, kubeconfig, environ)
    return str(caught.value).replace(str(tmp_path), "DIR")


def test_the_order_is_flag_variable_service_account_home(tmp_path: Path) -> None:
    flag, variable = config(tmp_path / "flag"), config(tmp_path / "variable")
    config(tmp_path / "home/.kube/config")
    service_account(tmp_path / "account")
    assert find(tmp_path, flag, {"KUBECONFIG": str(variable), **IN_CLUSTER}).origin == f"kubeconfig file {flag} (--kubeconfig)"
    assert (
        find(tmp_path, environ={"KUBECONFIG": str(variable), **IN_CLUSTER}).origin == f"kubeconfig file {variable} (KUBECONFIG)"
    )
    assert find(tmp_path, environ=IN_CLUSTER).origin == "service account of this pod"
    assert find(tmp_path).origin == f"kubeconfig file {tmp_path}/home/.kube/config (~/.kube/config)"


def test_nothing_at_all_names_the_choices(tmp_path: Path) -> None:
    assert fault(tmp_path) == (
        "Kubernetes: expected --kubeconfig, the environment variable KUBECONFIG, or a pod with a service account; "
        "found none of them, and no file DIR/home/.kube/config"
    )


def test_a_pod_knows_its_server_and_its_namespace(tmp_path: Path) -> None:
    service_account(tmp_path / "account")
    access = find(tmp_path, environ=IN_CLUSTER)
    assert (access.server, access.namespace) == ("https://10.96.0.1:443", "pods-own")
    access = find(tmp_path, environ={"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert access.server == "https://[fd00::1]:6443"


@pytest.mark.parametrize("name", ["token", "ca.crt", "namespace"])
def test_a_pod_without_its_service_account_is_told_what_to_do(tmp_path: Path, name: str) -> None:
    (service_account(tmp_path / "account") / name).unlink()
    problem = fault(tmp_path, environ=IN_CLUSTER)
    assert problem.startswith(f"service account: expected a file DIR/account/{name}, found none")
    assert "automountServiceAccountToken" in problem


def test_a_shell_in_a_pod_without_service_account_uses_the_file_at_home(tmp_path: Path) -> None:
    config(tmp_path / "home/.kube/config")
    assert "~/.kube/config" in find(tmp_path, environ=IN_CLUSTER).origin


@pytest.mark.parametrize("port", ["", "tcp://10.0.0.1:443"])
def test_a_port_that_is_none_is_told(tmp_path: Path, port: str) -> None:
    service_account(tmp_path / "account")
    assert "KUBERNETES_SERVICE_PORT: expected a port, found" in fault(
        tmp_path, environ={"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": port}
    )


def test_a_plain_server_without_user_works(tmp_path: Path) -> None:
    access = find(tmp_path, config(tmp_path / "plain"))
    assert (access.server, access.namespace) == ("http://127.0.0.1:1", "plain")
    assert access.client().headers["user-agent"] == "inference-epp/0"


def test_several_files_in_the_variable_are_merged_and_missing_ones_passed_over(tmp_path: Path) -> None:
    second = config(tmp_path / "second")
    assert find(tmp_path, environ={"KUBECONFIG": f"{tmp_path}/none:{second}:"}).namespace == "second"
    assert fault(tmp_path, environ={"KUBECONFIG": f"{tmp_path}/none:{tmp_path}/neither"}) == (
        "KUBECONFIG: DIR/none: expected a kubeconfig file, found: No such file or directory"
    )


def test_a_fault_names_who_named_the_file(tmp_path: Path) -> None:
    assert fault(tmp_path, tmp_path / "none").startswith("--kubeconfig: DIR/none: expected a kubeconfig file")


@pytest.mark.parametrize("server", ["127.0.0.1:8080", "https://", "https://h:99999", "https://[::1", "http://a b"])
def test_a_server_must_be_a_url(tmp_path: Path, server: str) -> None:
    problem = fault(tmp_path, config(tmp_path / "c", server))
    assert "cluster.server: expected a URL such as https://10.0.0.1:6443, found" in problem


def test_the_server_is_shown_without_credentials(tmp_path: Path) -> None:
    assert find(tmp_path, config(tmp_path / "c", "http://me:secret@h:1/k8s")).server == "http://h:1/k8s"
    for server in ("ftp://me:secret@h", "http://h?token=secret", "http://h#secret", "http://me:1/secret@h", "me:secret@h"):
        assert "secret" not in fault(tmp_path, config(tmp_path / "c", server))


@pytest.mark.parametrize(
    "cluster",
    [
        {"certificate-authority-data": "bm8gY2VydGlmaWNhdGU="},
    ],
)
def test_certificates_that_cannot_be_used_are_told_at_the_start(tmp_path: Path, cluster: dict[str, Any]) -> None:
    problem = fault(tmp_path, config(tmp_path / "c", "https://10.0.0.1", **cluster))
    assert problem.startswith("kubeconfig file DIR/c (--kubeconfig): expected usable certificates and credentials, found: ")


def test_a_client_key_that_is_missing_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "crt").write_bytes(server_keys().certificate)
    problem = fault(tmp_path, config(tmp_path / "c", "https://10.0.0.1", {"client-certificate": "crt"}))
    assert problem.startswith("--kubeconfig: DIR/c: users[0].user.client-key: expected both")


def test_a_client_certificate_is_loaded(tmp_path: Path) -> None:
    keys = server_keys()
    (tmp_path / "crt").write_bytes(keys.certificate)
    (tmp_path / "key").write_bytes(keys.key)
    user = {"client-certificate": "crt", "client-key": "key"}
    find(tmp_path, config(tmp_path / "c", "https://10.0.0.1", user))
    (tmp_path / "key").write_bytes(server_keys().key)
    assert "expected usable certificates" in fault(tmp_path, config(tmp_path / "c", "https://10.0.0.1", user))


def test_the_scheme_may_be_written_in_capitals_and_is_still_safe(tmp_path: Path) -> None:
    no_certificate: dict[str, Any] = {"certificate-authority-data": "bm8gY2VydGlmaWNhdGU="}
    assert "expected usable certificates" in fault(tmp_path, config(tmp_path / "c", "HTTPS://10.0.0.1", **no_certificate))


def test_certificates_are_read_again_only_when_a_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []

    def verify(*args: Any) -> ssl.SSLContext:
        made.append(verify_cluster(*args))
        return made[-1]

    monkeypatch.setattr(access_module, "verify_cluster", verify)
    folder = service_account(tmp_path / "account")
    access = find(tmp_path, environ=IN_CLUSTER)
    access.client()
    (folder / "token").write_text("another")
    access.client()
    assert len(made) == 1
    (folder / "ca.crt").write_bytes(server_keys().authority)
    access.client()
    access.client()
    assert len(made) == 2


def test_the_certificates_of_the_system_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authorities = tmp_path / "authorities"
    authorities.write_bytes(server_keys().authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    access = find(tmp_path, config(tmp_path / "c", "https://10.0.0.1"))
    trusted = access.trust.context(access._trust_stamps(), lambda: pytest.fail("read again"))
    authorities.write_bytes(server_keys().authority)
    os.utime(authorities, ns=(1, 1))
    access.client()
    assert access.trust.context(access._trust_stamps(), lambda: pytest.fail("read again")) is not trusted


def test_trust_without_any_file_is_made_each_time() -> None:
    trust = Trust()
    contexts = [trust.context((None, None), lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) for _ in range(2)]
    assert contexts[0] is not contexts[1]


def test_the_stamps_change_with_a_file_and_with_a_link(tmp_path: Path) -> None:
    folder = service_account(tmp_path / "account")
    access = find(tmp_path, environ=IN_CLUSTER)
    first = access.stamps()
    assert access.stamps() == first
    (folder / "token").write_text("longer")
    second = access.stamps()
    (folder / "token").unlink()
    third = access.stamps()
    (folder / "linked").write_text("longer")
    (folder / "token").symlink_to("linked")
    assert len({first, second, third, access.stamps()}) == 4


def test_loopback_is_never_behind_a_proxy_and_other_servers_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    assert not find(tmp_path, config(tmp_path / "c")).client().trust_env
    assert find(tmp_path, config(tmp_path / "c", "http://api.example")).client().trust_env


@pytest.mark.parametrize("value", ["socks5://me:secret@h:1", "me:secret@:x"])
def test_a_proxy_of_the_environment_that_cannot_be_used_is_told_without_who_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    server = config(tmp_path / "c", "http://api.example")
    problem = fault(tmp_path, server)
    assert problem.startswith("ALL_PROXY: expected ")
    assert "secret" not in problem
    find(tmp_path, config(tmp_path / "loopback"))
    monkeypatch.setenv("NO_PROXY", "*")
    find(tmp_path, server)
