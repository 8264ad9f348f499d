{{/* What values.schema.json cannot say: how values depend on one another. */}}
{{- define "epp.checks" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- if include "epp.hasPool" . -}}
  {{- if and .Values.inferencePool.create (empty .Values.inferencePool.modelServers.matchLabels) -}}
    {{- fail "inferencePool.modelServers.matchLabels: expected the labels of the model servers' pods, such as {app: vllm-llama3}, found nothing" -}}
  {{- end -}}
  {{- if and (ne (include "epp.poolGroup" .) "inference.networking.k8s.io") (ne (len .Values.inferencePool.targetPorts) 1) -}}
    {{- fail (printf "inferencePool.targetPorts: expected one port with %s, found %d" .Values.inferencePool.apiVersion (len .Values.inferencePool.targetPorts)) -}}
  {{- end -}}
{{- else -}}
  {{- if not $epp.endpointsServer.endpointSelector -}}
    {{- fail "inferenceExtension.endpointsServer.endpointSelector: expected a label selector such as app=vllm-llama3, as createInferencePool is false, found nothing" -}}
  {{- end -}}
  {{- if .Values.experimentalHttpRoute.enabled -}}
    {{- fail "experimentalHttpRoute.enabled: expected false without an InferencePool, which the route leads to, found true" -}}
  {{- end -}}
  {{- if .Values.inferenceObjectives -}}
    {{- fail "inferenceObjectives: expected none without an InferencePool, which they belong to, found some" -}}
  {{- end -}}
{{- end -}}
{{- if and $epp.service.headless (ne (int $epp.extProcPort) 9002) -}}
  {{- fail (printf "inferenceExtension.extProcPort: expected 9002 with a headless Service, found %v" $epp.extProcPort) -}}
{{- end -}}
{{- if and (or $epp.tls.secretName $epp.tls.clientCaSecretName) (not $epp.tls.enabled) -}}
  {{- fail "inferenceExtension.tls.enabled: expected true, as tls names a Secret, found false" -}}
{{- end -}}
{{- if and .Values.standaloneEnvoy.enabled (contains "distroless" .Values.standaloneEnvoy.image) -}}
  {{- fail (printf "standaloneEnvoy.image: expected an image with bash, which its preStop hook runs, found %s" .Values.standaloneEnvoy.image) -}}
{{- end -}}
{{- if hasKey .Values.provider.istio.destinationRule.trafficPolicy "tls" -}}
  {{- fail "provider.istio.destinationRule.trafficPolicy: expected no tls, as inferenceExtension.tls decides it, found tls" -}}
{{- end -}}
{{- end -}}
