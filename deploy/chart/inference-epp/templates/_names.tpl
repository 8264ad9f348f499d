{{/* Name of everything that belongs to the picker; as the charts of the reference picker call it. */}}
{{- define "epp.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}-epp
{{- end -}}

{{/* Name of the Service by which the replicas find one another; "" with one. */}}
{{- define "epp.replicasService" -}}
{{- if gt (int .Values.inferenceExtension.replicas) 1 }}{{ include "epp.name" . }}-replicas{{ end }}
{{- end -}}

{{- define "epp.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "epp.name" .) }}
{{- end -}}

{{- define "epp.selectorLabels" -}}
app.kubernetes.io/name: inference-epp
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "epp.labels" -}}
{{ include "epp.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "epp.metadata" -}}
name: {{ include "epp.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "epp.labels" . | nindent 2 }}
{{- end -}}

{{- define "epp.image" -}}
{{- $image := .Values.inferenceExtension.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* Whether the pods come from an InferencePool; else from a label selector. "true" or "". */}}
{{- define "epp.hasPool" -}}
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool }}true{{ end }}
{{- end -}}

{{- define "epp.poolGroup" -}}
{{ (split "/" .Values.inferencePool.apiVersion)._0 }}
{{- end -}}

{{/* "true" or "". */}}
{{- define "epp.leaderElection" -}}
{{- $wanted := .Values.inferenceExtension.enableLeaderElection -}}
{{- if kindIs "invalid" $wanted -}}
{{- if and (include "epp.hasPool" .) (gt (int .Values.inferenceExtension.replicas) 1) }}true{{ end }}
{{- else if $wanted }}true{{ end }}
{{- end -}}

{{/* As the picker calls it. */}}
{{- define "epp.leaseName" -}}
{{ if include "epp.hasPool" . }}epp-{{ .Release.Name }}{{ else }}epp-selector{{ end }}
{{- end -}}

{{/* Ports of the model servers, separated by commas. */}}
{{- define "epp.targetPorts" -}}
{{- if include "epp.hasPool" . -}}
{{- $ports := list -}}
{{- range .Values.inferencePool.targetPorts }}{{ $ports = append $ports (toString .number) }}{{ end -}}
{{ join "," $ports }}
{{- else -}}
{{ .Values.inferenceExtension.endpointsServer.targetPorts | toString | replace " " "" }}
{{- end -}}
{{- end -}}

{{/* Name of the file of pluginsCustomConfig that counts, or "". */}}
{{- define "epp.configFile" -}}
{{- $files := .Values.inferenceExtension.pluginsCustomConfig -}}
{{- $wanted := .Values.inferenceExtension.pluginsConfigFile -}}
{{- if hasKey $files $wanted -}}
{{ $wanted }}
{{- else if $wanted -}}
{{- /* The reference chart names a file that it makes itself; here its place is taken by the defaults. */ -}}
{{- if ne $wanted "default-plugins.yaml" -}}
{{- fail (printf "inferenceExtension.pluginsConfigFile: expected a file of pluginsCustomConfig (%s), found %s" (keys $files | sortAlpha | join ", " | default "none") $wanted) -}}
{{- end -}}
{{- else if eq (len $files) 1 -}}
{{ first (keys $files) }}
{{- else if gt (len $files) 1 -}}
{{- fail (printf "inferenceExtension.pluginsConfigFile: expected the file of pluginsCustomConfig that counts (%s), found nothing" (keys $files | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
