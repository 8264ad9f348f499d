"""Kubeconfig files: which cluster, with which user; every fault in one sentence.

The values become lightkube's (`lightkube.config.models`); what it would pass over in silence is added here or refused.
Several files are merged as kubectl does: the first one that names something wins. No sentence shows a value that may be a
secret, nor a line of a file that cannot be read.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, Context, NameValue, User, UserExec

from epp.config.wording import quote, type_of
from epp.discovery.kubernetes.credentials import UNFIT, clean_token
from epp.discovery.kubernetes.urls import is_host, url_fault
from epp.errors import ConfigError

FILE_MAX_BYTES = 4 << 20
"""A file that is longer is no kubeconfig."""

EXEC_API_GROUP = "client.authentication.k8s.io/"
EXEC_API_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's stops at deep nesting, the other one would take minutes for it."""

_REFUSED_OF_USERS = ("auth-provider", "as", "as-uid", "as-groups", "as-user-extra")
_FILES_OF_USERS = ("client-certificate", "client-key", "tokenFile")

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """One context of the files, resolved.

    Attributes:
        config: In lightkube's form; paths in it are absolute, and there is always a user, be it an empty one.
        proxy_url: The cluster's `proxy-url`.
        tls_server_name: The cluster's `tls-server-name`: the name in the certificate, when it is not that in the URL.
    """

    config: SingleConfig = field(repr=False)
    proxy_url: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    where: str
    values: Mapping[str, Any]
    folder: Path


class _Merged:
    """What all files together name."""

    def __init__(self) -> None:
        self.current: str | None = None
        self.contexts: dict[str, _Entry] = {}
        self.clusters: dict[str, _Entry] = {}
        self.users: dict[str, _Entry] = {}

    def add(self, path: Path) -> None:
        """Read a file.

        Raises:
            ConfigError: It cannot be read, or is no kubeconfig.
        """
        found = _read(path)
        current = found.get("current-context")
        if self.current is None and current not in (None, ""):
            if not isinstance(current, (str, int)):
                raise ConfigError(f"{path}: current-context: expected a name, found {type_of(current)}")
            self.current = str(current)
        for key, name, into in (
            ("contexts", "context", self.contexts),
            ("clusters", "cluster", self.clusters),
            ("users", "user", self.users),
        ):
            for entry in _entries(path, found, key, name):
                into.setdefault(*entry)


def read_kubeconfig(paths: Iterable[Path]) -> Kubeconfig:
    """The current context of these files, which must be at least one.

    Raises:
        ConfigError: Something is missing or wrong.
    """
    merged, read = _Merged(), []
    for path in paths:
        merged.add(path)
        read.append(str(path))
    where = ", ".join(read)
    if merged.current is None:
        raise ConfigError(f"{where}: current-context: expected one of {_known(merged.contexts)}, found nothing")
    context = _named(merged.contexts, merged.current, f"{where}: current-context")
    cluster_name = context.values.get("cluster")
    cluster = _named(merged.clusters, cluster_name, f"{context.where}.cluster")
    user_name = context.values.get("user")
    user = _named(merged.users, user_name, f"{context.where}.user") if user_name else None
    config = SingleConfig(
        context_name=merged.current,
        context=_convert(context, context.values, Context),
        cluster=_cluster(cluster),
        user=User() if user is None else _user(user),
    )
    return Kubeconfig(
        config=config,
        proxy_url=_proxy_url(cluster),
        tls_server_name=_tls_server_name(cluster),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX_BYTES + 1)
        if len(text) > FILE_MAX_BYTES:
            raise ConfigError(f"{path}: expected a kubeconfig file, found more than {FILE_MAX_BYTES} bytes")
        found = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one
    except OSError as error:
        raise ConfigError(f"{path}: expected a kubeconfig file, found: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        # Nothing of the error's own text: it shows the line, or a word of it, and there may be a token in it.
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise ConfigError(f"{path}: expected YAML, found something else{line}") from None
    except RecursionError:
        raise ConfigError(f"{path}: expected a kubeconfig, found values that are nested too deep") from None
    except ValueError:
        raise ConfigError(f"{path}: expected YAML, found values that cannot be read") from None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: expected a kubeconfig, found {type_of(found)}")
    return found


def _entries(path: Path, found: Mapping[str, Any], key: str, name: str) -> Iterable[tuple[str, _Entry]]:
    entries = found.get(key) or []
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: {key}: expected a list, found {type_of(entries)}")
    for index, entry in enumerate(entries):
        where = f"{path}: {key}[{index}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), (str, int)):
            raise ConfigError(f"{where}: expected a map with a name, found {type_of(entry)} without")
        values = entry.get(name) or {}
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}.{name}: expected a map, found {type_of(values)}")
        yield str(entry["name"]), _Entry(f"{where}.{name}", values, path.parent)


def _named(entries: Mapping[str, _Entry], name: object, where: str) -> _Entry:
    entry = entries.get(str(name)) if isinstance(name, (str, int)) else None
    if entry is None:
        found = quote(str(name)) if isinstance(name, (str, int)) else type_of(name)
        raise ConfigError(f"{where}: expected one of {_known(entries)}, found {found}")
    return entry


def _known(entries: Mapping[str, _Entry]) -> str:
    return ", ".join(quote(name) for name in entries) or "(none is there)"


def _cluster(entry: _Entry) -> Cluster:
    _check_base64(entry)
    cluster = _convert(entry, _absolute(entry, ("certificate-authority",)), Cluster)
    if "server" not in entry.values:
        raise ConfigError(f"{entry.where}.server: expected a URL, found nothing")
    if cluster.certificate_auth_data:
        cluster.certificate_auth = None  # as kubectl; lightkube would take the file
    return cluster


def _user(entry: _Entry) -> User:
    _check_base64(entry)
    for key in _REFUSED_OF_USERS:
        if entry.values.get(key):
            raise ConfigError(
                f"{entry.where}.{key}: expected token, tokenFile, a client certificate, exec, or username and password; "
                f"found {key}, which is not supported"
            )
    user = _convert(entry, _absolute(entry, _FILES_OF_USERS), User)
    if user.token is not None:
        user.token = clean_token(user.token)
        if user.token is None:
            raise ConfigError(f"{entry.where}.token: {UNFIT}")
    has_certificate = bool(user.client_cert or user.client_cert_data)
    if has_certificate != bool(user.client_key or user.client_key_data):
        missing = "client-key" if has_certificate else "client-certificate"
        raise ConfigError(f"{entry.where}.{missing}: expected both client-certificate and client-key, found no {missing}")
    if user.exec is not None:
        user.exec = _exec(entry, user.exec)
    return user


def _exec(entry: _Entry, plugin: UserExec) -> UserExec:
    """The plugin as it is run; it is told the version that its entry names."""
    group, _, version = plugin.apiVersion.rpartition("/")
    if f"{group}/" != EXEC_API_GROUP or version not in EXEC_API_VERSIONS:
        known = ", ".join(EXEC_API_GROUP + each for each in EXEC_API_VERSIONS)
        raise ConfigError(f"{entry.where}.exec.apiVersion: expected one of {known}, found {quote(plugin.apiVersion)}")
    request = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    names = [each.name for each in plugin.env or ()]
    values = [each.value for each in plugin.env or ()]
    if any("\0" in each for each in (plugin.command, *(plugin.args or ()), *names, *values)):
        raise ConfigError(f"{entry.where}.exec: expected texts without NUL, found one with")
    if any(not name or "=" in name for name in names):
        raise ConfigError(f"{entry.where}.exec.env: expected names of environment variables, found something else")
    command = plugin.command
    if "/" in command:  # without, it is looked up on the PATH
        command = str(entry.folder.absolute() / command)
    return UserExec(
        apiVersion=plugin.apiVersion,
        command=command,
        args=plugin.args,
        env=[*(plugin.env or ()), NameValue(name="KUBERNETES_EXEC_INFO", value=json.dumps(request))],
    )


def _absolute(entry: _Entry, keys: Iterable[str]) -> dict[str, Any]:
    """The values, with files named from the folder of the kubeconfig; a file must be there."""
    values = dict(entry.values)
    for key in keys:
        name = values.get(key)
        if isinstance(name, str) and name:
            path = entry.folder.absolute() / name
            if not path.is_file():
                raise ConfigError(f"{entry.where}.{key}: expected a file, found none at {path}")
            values[key] = str(path)
    return values


def _check_base64(entry: _Entry) -> None:
    for key, value in entry.values.items():
        if key.endswith("-data") and value:
            try:
                base64.b64decode(value, validate=True)
            except (TypeError, ValueError):
                raise ConfigError(f"{entry.where}.{key}: expected base64, found something else") from None


def _convert(entry: _Entry, values: Mapping[str, Any], kind: type[S]) -> S:
    try:
        return msgspec.convert({key: value for key, value in values.items() if value not in (None, "")}, kind)
    except msgspec.ValidationError as error:  # tells types, not values
        raise ConfigError(f"{entry.where}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _proxy_url(entry: _Entry) -> str | None:
    value = _text(entry, "proxy-url")
    if value is not None and (fault := url_fault(value, "http://proxy.example:3128")) is not None:
        raise ConfigError(f"{entry.where}.proxy-url: {fault}")
    return value


def _tls_server_name(entry: _Entry) -> str | None:
    value = _text(entry, "tls-server-name")
    if value is not None and not is_host(value):
        raise ConfigError(f"{entry.where}.tls-server-name: expected a DNS name or an IP address, found {quote(value)}")
    return value


def _text(entry: _Entry, key: str) -> str | None:
    value = entry.values.get(key)
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{entry.where}.{key}: expected a text, found {type_of(value)}")
    return value
