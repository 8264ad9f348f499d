"""The trimmed protos against envoy-data-plane, the health protos against the gRPC health checking protocol."""

import importlib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from envoy_data_plane.envoy.service.ext_proc import v3 as full_ext_proc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from packaging.requirements import Requirement
from packaging.version import Version

from epp.pb.envoy.config.core.v3 import base_pb2
from epp.pb.envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2
from epp.pb.grpc.health.v1 import health_pb2
from tests.pb.second_opinion import enum_differences, enums_of, message_differences, messages_of

ROOT = Path(__file__).resolve().parents[2]
GENERATED = sorted(path.relative_to(ROOT) for path in (ROOT / "epp" / "pb").rglob("*_pb2.py"))
FILES: list[FileDescriptor] = [importlib.import_module(".".join(path.with_suffix("").parts)).DESCRIPTOR for path in GENERATED]
ENVOY_FILES = [file for file in FILES if file.package.startswith("envoy.")]


def named(descriptor: Descriptor | EnumDescriptor) -> str:
    return descriptor.full_name


def test_every_proto_has_its_generated_module() -> None:
    protos = {path.relative_to(ROOT / "protos").as_posix() for path in (ROOT / "protos").rglob("*.proto")}

    assert {file.name for file in FILES} == {f"epp/pb/{name}" for name in protos}
    assert len(ENVOY_FILES) == len(FILES) - 1


@pytest.mark.parametrize("message", [m for file in ENVOY_FILES for m in messages_of(file)], ids=named)
def test_a_trimmed_message_has_envoys_names_numbers_types_and_oneofs(message: Descriptor) -> None:
    assert message_differences(message) == []


@pytest.mark.parametrize("enum", [e for file in ENVOY_FILES for e in enums_of(file)], ids=named)
def test_an_enum_has_envoys_values(enum: EnumDescriptor) -> None:
    assert enum_differences(enum) == []


def test_the_service_has_envoys_method() -> None:
    service = external_processor_pb2.DESCRIPTOR.services_by_name["ExternalProcessor"]
    ((path, handler),) = full_ext_proc.ExternalProcessorBase().__mapping__().items()
    (method,) = service.methods

    assert f"/{service.full_name}/{method.name}" == path
    assert (method.client_streaming, method.server_streaming) == (
        handler.cardinality.value.client_streaming,
        handler.cardinality.value.server_streaming,
    )
    assert method.input_type.name == handler.request_type.__name__
    assert method.output_type.name == handler.reply_type.__name__


def test_a_request_of_ours_reads_the_same_in_the_full_messages() -> None:
    request = external_processor_pb2.ProcessingRequest(
        request_headers=external_processor_pb2.HttpHeaders(
            headers=base_pb2.HeaderMap(headers=[base_pb2.HeaderValue(key="x", raw_value=b"\xff")]), end_of_stream=True
        ),
        observability_mode=True,
        protocol_config=external_processor_pb2.ProtocolConfiguration(
            request_body_mode=processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
        ),
    )
    request.metadata_context.filter_metadata["envoy.lb"].update({"subset": ["10.0.0.1:8000"]})

    full = full_ext_proc.ProcessingRequest.parse(request.SerializeToString())

    assert full.request_headers is not None
    assert full.request_headers.headers is not None
    assert full.request_headers.headers.headers[0].raw_value == b"\xff"
    assert full.request_headers.end_of_stream
    assert full.observability_mode
    assert full.protocol_config is not None
    assert full.protocol_config.request_body_mode.name == "FULL_DUPLEX_STREAMED"
    assert full.metadata_context is not None
    assert full.metadata_context.filter_metadata["envoy.lb"].to_dict() == {"subset": ["10.0.0.1:8000"]}
    assert external_processor_pb2.ProcessingRequest.FromString(bytes(full)) == request


def change_number(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "CommonResponse", "clear_route_cache").number = 9


def change_type(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "HttpBody", "body").type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING


def change_message(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "ProcessingResponse", "request_body").type_name = ".envoy.service.ext_proc.v3.HeadersResponse"


def change_label(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "HeaderMutation", "remove_headers").label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL


def change_oneof(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "BodyMutation", "clear_body").ClearField("oneof_index")


def change_name(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "ImmediateResponse", "details").name = "detail"


def forget_reserved(file: descriptor_pb2.FileDescriptorProto) -> None:
    message_of(file, "ProcessingResponse").ClearField("reserved_range")


def message_of(file: descriptor_pb2.FileDescriptorProto, name: str) -> descriptor_pb2.DescriptorProto:
    return next(message for message in file.message_type if message.name == name)


def field_of(file: descriptor_pb2.FileDescriptorProto, message: str, name: str) -> descriptor_pb2.FieldDescriptorProto:
    return next(field for field in message_of(file, message).field if field.name == name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_number, "CommonResponse.clear_route_cache: number: expected 5, found 9"),
        (change_type, "HttpBody.body: type: expected bytes, found string"),
        (change_message, "ProcessingResponse.request_body: class: expected .*BodyResponse.*, found .*HeadersResponse"),
        (change_label, "HeaderMutation.remove_headers: repeated: expected True, found False"),
        (change_oneof, "BodyMutation.clear_body: oneof: expected mutation, found None"),
        (change_name, "ImmediateResponse.detail: not in the full message"),
        (forget_reserved, "ProcessingResponse.request_drain = 12: left out without being reserved"),
    ],
)
def test_a_mistake_in_a_proto_is_found(change: Callable[[descriptor_pb2.FileDescriptorProto], None], sentence: str) -> None:
    pool = descriptor_pool.DescriptorPool()
    add_with_imports(pool, external_processor_pb2.DESCRIPTOR, change)
    changed = pool.FindFileByName(external_processor_pb2.DESCRIPTOR.name)

    found = "\n".join(line for message in messages_of(changed) for line in message_differences(message))

    assert re.search(sentence, found)


def add_with_imports(
    pool: descriptor_pool.DescriptorPool,
    file: FileDescriptor,
    change: Callable[[descriptor_pb2.FileDescriptorProto], None] = lambda _: None,
    added: set[str] | None = None,
) -> None:
    """Put a file, changed, into a pool of its own; what it imports first, each once and as it is."""
    added = set() if added is None else added
    for dependency in file.dependencies:
        if dependency.name not in added:
            add_with_imports(pool, dependency, added=added)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    change(proto)
    pool.Add(proto)
    added.add(file.name)


HEALTH_FIELDS = {
    "HealthCheckRequest": {"service": (1, FieldDescriptor.TYPE_STRING, None)},
    "HealthCheckResponse": {"status": (1, FieldDescriptor.TYPE_ENUM, "grpc.health.v1.HealthCheckResponse.ServingStatus")},
    "HealthListRequest": {},
    "HealthListResponse": {"statuses": (1, FieldDescriptor.TYPE_MESSAGE, "grpc.health.v1.HealthListResponse.StatusesEntry")},
}
"""Field number, type, and name of the message or enum, as the gRPC health checking protocol writes them."""


def test_the_health_messages_are_those_of_the_protocol() -> None:
    messages = {message.name: message for message in messages_of(health_pb2.DESCRIPTOR)}

    assert {
        name: {
            field.name: (field.number, field.type, getattr(field.message_type or field.enum_type, "full_name", None))
            for field in message.fields
        }
        for name, message in messages.items()
    } == HEALTH_FIELDS
    entry = messages["HealthListResponse"].nested_types_by_name["StatusesEntry"]
    assert entry.GetOptions().map_entry
    assert entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
    assert entry.fields_by_name["value"].message_type is messages["HealthCheckResponse"]
    assert dict(health_pb2.HealthCheckResponse.ServingStatus.items()) == {
        "UNKNOWN": 0,
        "SERVING": 1,
        "NOT_SERVING": 2,
        "SERVICE_UNKNOWN": 3,
    }


def test_the_health_service_has_the_methods_of_the_protocol() -> None:
    service = health_pb2.DESCRIPTOR.services_by_name["Health"]

    assert service.full_name == "grpc.health.v1.Health"
    assert {
        method.name: (method.input_type.name, method.output_type.name, method.client_streaming, method.server_streaming)
        for method in service.methods
    } == {
        "Check": ("HealthCheckRequest", "HealthCheckResponse", False, False),
        "List": ("HealthListRequest", "HealthListResponse", False, False),
        "Watch": ("HealthCheckRequest", "HealthCheckResponse", False, True),
    }


def test_the_oldest_protobuf_that_may_be_installed_loads_the_generated_code() -> None:
    """Generated code refuses a runtime that is older than its generator."""
    texts = [(ROOT / path).read_text() for path in GENERATED]
    generators = [re.search(r"^# Protobuf Python Version: (\S+)$", text, re.MULTILINE) for text in texts]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (protobuf,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "protobuf")
    (oldest,) = (Version(bound.version) for bound in protobuf.specifier if bound.operator == ">=")

    assert oldest >= max(Version(generator[1]) for generator in generators if generator is not None)
