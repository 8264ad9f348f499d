{{/*
Envoy as a native sidecar: started before the picker, and stopped after it, so that no response is cut. Its preStop hook
runs when the pod begins to end: from then on answers tell clients to open a new connection, which another pod gets.
*/}}
{{- define "epp.envoyContainer" -}}
- name: envoy
  image: {{ .Values.standaloneEnvoy.image }}
  imagePullPolicy: {{ .Values.standaloneEnvoy.pullPolicy }}
  restartPolicy: Always
  command: [envoy]
  args:
  - --config-path
  - /etc/envoy/envoy.yaml
  - --disable-hot-restart
  - --drain-strategy
  - immediate
  - --drain-time-s
  - {{ .Values.inferenceExtension.drain.preStopSeconds | max 1 | quote }}
  ports:
  - name: http
    containerPort: 8081
  startupProbe:
    tcpSocket:
      port: http
    periodSeconds: 1
    timeoutSeconds: 1
    failureThreshold: 60
  readinessProbe:
    tcpSocket:
      port: http
    periodSeconds: 2
    timeoutSeconds: 2
  lifecycle:
    preStop:
      exec:
        command:
        - bash
        - -c
        - >-
          exec 3<>/dev/tcp/127.0.0.1/19000 &&
          printf 'POST /drain_listeners?graceful&skip_exit HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n' >&3 &&
          cat <&3
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  resources:
    {{- toYaml .Values.standaloneEnvoy.resources | nindent 4 }}
  volumeMounts:
  - name: envoy
    mountPath: /etc/envoy
    readOnly: true
  - name: socket
    mountPath: /run/epp
{{- end -}}
