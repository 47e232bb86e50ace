{{/* The same for every pod: nothing runs as root, nothing writes outside the volumes it declares. */}}
{{- define "diptych.podSecurity" -}}
automountServiceAccountToken: false
# The variables Kubernetes makes of Services would begin like ours.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "diptych.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The token and the URL of NATS as environment variables. Takes (list root prefix). */}}
{{- define "diptych.natsEnv" -}}
{{- $root := index . 0 -}}
{{- $prefix := index . 1 -}}
- name: {{ $prefix }}TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "diptych.tokenSecret" $root }}, key: {{ $root.Values.token.key }}}
- name: {{ $prefix }}NATS_URL
{{- if $root.Values.nats.enabled }}
  value: nats://$({{ $prefix }}TOKEN)@{{ $root.Release.Name }}-nats:4222
{{- else if $root.Values.nats.urlSecret }}
  valueFrom:
    secretKeyRef: {name: {{ $root.Values.nats.urlSecret }}, key: url}
{{- else }}
  value: {{ $root.Values.nats.url | quote }}
{{- end }}
{{- end }}

{{/* The environment of a component: the chart's own fields, then `settings` one to one. Takes (list root name facts component). */}}
{{- define "diptych.env" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $facts := index . 2 -}}
{{- $prefix := printf "DIPTYCH_%s__" (upper $name) -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: {{ $prefix }}NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: {{ $prefix }}LISTEN
  value: "0.0.0.0:{{ $facts.port }}"
- name: {{ $prefix }}ADVERTISE
  value: "$(POD_IP):{{ $facts.port }}"
- name: {{ $prefix }}METRICS_PORT
  value: "9464"
{{- if eq $name "gateway" }}
- name: {{ $prefix }}HTTP_LISTEN
  value: "0.0.0.0:8000"
{{- end }}
{{- if $facts.model }}
- name: {{ $prefix }}MODEL
  value: /models/{{ $root.Values.models.directory }}
{{- end }}
{{- if eq $name "kvstore" }}
- name: {{ $prefix }}ARENA_DIRECTORY
  value: /arena
{{- end }}
{{ include "diptych.natsEnv" (list $root $prefix) }}
{{- range $field, $value := (index . 3).settings }}
- name: {{ $prefix }}{{ upper $field }}
  value: {{ kindIs "string" $value | ternary $value ($value | toJson) | quote }}
{{- end }}
{{- with $root.Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Memory for blocks: the pod's own, or the node's, which other pods see too. Takes (list root component). */}}
{{- define "diptych.arenaVolume" -}}
{{- $root := index . 0 -}}
- name: arena
  {{- if $root.Values.arena.nodePath }}
  hostPath: {path: {{ $root.Values.arena.nodePath }}, type: Directory}
  {{- else }}
  emptyDir: {medium: Memory, sizeLimit: {{ add (int64 (index . 1).settings.capacity_bytes) 1048576 | toString | quote }}}
  {{- end }}
{{- end }}

{{/* Startup covers the load, liveness does not depend on it, readiness is the service's own word. Takes (list port startupSeconds). */}}
{{- define "diptych.probes" -}}
{{- $port := index . 0 -}}
startupProbe:
  grpc: {port: {{ $port }}, service: ""}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ divf (index . 1) 5 | ceil | int }}
livenessProbe:
  grpc: {port: {{ $port }}, service: ""}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  grpc: {port: {{ $port }}, service: ready}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* Pulls and prepares the model, and links what was prepared to where the service looks for it. The link appears at
once, for pods that share a claim may do this side by side. Takes (list root image). */}}
{{- define "diptych.pull" -}}
{{- $root := index . 0 -}}
{{- $models := $root.Values.models -}}
- name: model
  image: {{ include "diptych.image" . }}
  imagePullPolicy: {{ $root.Values.images.pullPolicy }}
  command:
    - sh
    - -ec
    - |
      prepared=$(python -m services.cli model pull "$0")
      mkdir -p "$(dirname "$1")"
      ln -sfn "$prepared" "$1.$HOSTNAME"
      mv -T "$1.$HOSTNAME" "$1"
  args: [{{ $models.reference | quote }}, /models/{{ $models.directory }}]
  {{- include "diptych.containerSecurity" $root | nindent 2 }}
  env:
    - {name: DIPTYCH_CACHE, value: /models/cache}
    {{- range $key, $value := $models.env }}
    - name: {{ $key }}
      value: {{ $value | quote }}
    {{- end }}
  {{- with $models.envSecret }}
  envFrom:
    - secretRef: {name: {{ . }}}
  {{- end }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: models, mountPath: /models}
{{- end }}

{{- define "diptych.modelVolume" -}}
- name: models
  {{- if eq .Values.models.volume "claim" }}
  persistentVolumeClaim:
    claimName: {{ include "diptych.claim" . }}
    readOnly: {{ empty .Values.models.reference }}
  {{- else }}
  emptyDir: {sizeLimit: {{ .Values.models.size }}}
  {{- end }}
{{- end }}
