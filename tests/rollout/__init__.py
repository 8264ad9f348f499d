"""Rollouts and crashes of whole pools under load: real Envoy, real `epp serve`, the hook as the kubelet runs it."""
