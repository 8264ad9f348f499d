"""gRPC over HTTP/2, server side, without I/O: bytes in, bytes out. Knows nothing of ext_proc.

RFC 9113 (HTTP/2), RFC 7541 (HPACK, by the `hpack` package), and gRPC's "PROTOCOL-HTTP2" document.
"""
