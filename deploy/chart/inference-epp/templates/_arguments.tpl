{{/* What follows `epp serve`. */}}
{{- define "epp.arguments" -}}
{{- $epp := .Values.inferenceExtension -}}
- serve
{{- if include "epp.hasPool" . }}
- --pool-name={{ .Release.Name }}
{{- if ne (include "epp.poolGroup" .) "inference.networking.k8s.io" }}
- --pool-group={{ include "epp.poolGroup" . }}
{{- end }}
{{- else }}
- {{ printf "--endpoint-selector=%s" $epp.endpointsServer.endpointSelector | quote }}
- --endpoint-target-ports={{ include "epp.targetPorts" . }}
{{- end }}
{{- if ne $epp.endpointIpFamily "auto" }}
- --endpoint-ip-family={{ $epp.endpointIpFamily }}
{{- end }}
{{- if include "epp.leaderElection" . }}
- --ha-enable-leader-election
{{- end }}
- --drain-timeout={{ $epp.drain.timeoutSeconds }}s
{{- with include "epp.replicasService" . }}
- --peers-dns={{ . }}:9090
{{- end }}
{{- if $epp.adminToken.secretName }}
- --admin-token-file=/etc/epp/admin/token
{{- end }}
{{- with include "epp.configFile" . }}
- --config-file=/etc/epp/config/{{ . }}
{{- end }}
{{- if not $epp.tls.enabled }}
- --secure-serving=false
{{- end }}
{{- if $epp.tls.secretName }}
- --cert-path=/etc/epp/tls
- --enable-cert-reload
{{- end }}
{{- if $epp.tls.clientCaSecretName }}
- --client-ca=/etc/epp/client-ca/ca.crt
{{- end }}
{{- if .Values.standaloneEnvoy.enabled }}
- --grpc-socket=/run/epp/grpc.sock
{{- end }}
{{- with $epp.metricsDataSource.scheme }}
- --model-server-metrics-scheme={{ . }}
{{- end }}
{{- with $epp.metricsDataSource.path }}
- --model-server-metrics-path={{ . }}
{{- end }}
{{- if hasKey $epp.metricsDataSource "insecureSkipVerify" }}
- --model-server-metrics-https-insecure-skip-verify={{ $epp.metricsDataSource.insecureSkipVerify }}
{{- end }}
{{- range $flag, $value := $epp.flags }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end -}}
