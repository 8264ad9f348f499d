{{/* Where Secrets, configuration and the socket are, in the container. */}}
{{- define "epp.volumeMounts" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $mounts := list -}}
{{- if include "epp.configFile" . -}}
{{- $mounts = append $mounts (dict "name" "config" "mountPath" "/etc/epp/config" "readOnly" true) -}}
{{- end -}}
{{- if $epp.tls.secretName -}}
{{- $mounts = append $mounts (dict "name" "tls" "mountPath" "/etc/epp/tls" "readOnly" true) -}}
{{- end -}}
{{- if $epp.tls.clientCaSecretName -}}
{{- $mounts = append $mounts (dict "name" "client-ca" "mountPath" "/etc/epp/client-ca" "readOnly" true) -}}
{{- end -}}
{{- if $epp.adminToken.secretName -}}
{{- $mounts = append $mounts (dict "name" "admin-token" "mountPath" "/etc/epp/admin" "readOnly" true) -}}
{{- end -}}
{{- if .Values.standaloneEnvoy.enabled -}}
{{- $mounts = append $mounts (dict "name" "socket" "mountPath" "/run/epp") -}}
{{- end -}}
{{- with concat $mounts $epp.volumeMounts -}}
volumeMounts:
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{- define "epp.volumes" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $volumes := list -}}
{{- if include "epp.configFile" . -}}
{{- $volumes = append $volumes (dict "name" "config" "configMap" (dict "name" (include "epp.name" .))) -}}
{{- end -}}
{{- if $epp.tls.secretName -}}
{{- $volumes = append $volumes (dict "name" "tls" "secret" (dict "secretName" $epp.tls.secretName)) -}}
{{- end -}}
{{- if $epp.tls.clientCaSecretName -}}
{{- $volumes = append $volumes (dict "name" "client-ca" "secret" (dict "secretName" $epp.tls.clientCaSecretName "items" (list (dict "key" "ca.crt" "path" "ca.crt")))) -}}
{{- end -}}
{{- if $epp.adminToken.secretName -}}
{{- $volumes = append $volumes (dict "name" "admin-token" "secret" (dict "secretName" $epp.adminToken.secretName "items" (list (dict "key" "token" "path" "token")))) -}}
{{- end -}}
{{- if .Values.standaloneEnvoy.enabled -}}
{{- $volumes = append $volumes (dict "name" "socket" "emptyDir" (dict "medium" "Memory" "sizeLimit" "1Mi")) -}}
{{- $volumes = append $volumes (dict "name" "envoy" "configMap" (dict "name" (printf "%s-envoy" (include "epp.name" .)))) -}}
{{- end -}}
{{- with concat $volumes $epp.volumes -}}
volumes:
{{ toYaml . }}
{{- end -}}
{{- end -}}
