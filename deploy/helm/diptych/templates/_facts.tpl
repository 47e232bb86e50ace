{{/* What the program fixes and no value changes. Ports: the metrics port is 9464 everywhere, the gateway's HTTP port 8000. */}}
{{- define "diptych.facts" -}}
gateway: {port: 50051, image: control, model: true, headless: false}
scheduler: {port: 50052, image: control, model: false, headless: true}
prefill: {port: 50053, image: worker, model: true, headless: true}
decode: {port: 50054, image: worker, model: true, headless: true}
kvstore: {port: 50055, image: control, model: false, headless: true}
{{- end }}

{{/* A component as it is rendered: the defaults, overlaid. Takes (list root name). */}}
{{- define "diptych.component" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $own := index $root.Values.components $name -}}
{{- mergeOverwrite (deepCopy $root.Values.defaults) (deepCopy $own) | toJson -}}
{{- end }}

{{/* Seconds from the start of a pod's end to its SIGKILL. Takes a component. */}}
{{- define "diptych.grace" -}}
{{- if hasKey . "graceSeconds" -}}{{ .graceSeconds | int }}
{{- else -}}{{ add (.preStopSeconds | int) (.settings.drain_seconds | ceil | int) 10 }}
{{- end -}}
{{- end }}

{{/* Pods of a component at most. */}}
{{- define "diptych.greatest" -}}
{{- ternary .autoscaler.max .replicas .autoscaler.enabled | int -}}
{{- end }}

{{- define "diptych.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "diptych.labels" -}}
{{- $root := index . 0 -}}
{{ include "diptych.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* Takes (list root "control"|"worker"). */}}
{{- define "diptych.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- define "diptych.tokenSecret" -}}
{{ .Values.token.existingSecret | default (printf "%s-token" .Release.Name) }}
{{- end }}

{{- define "diptych.claim" -}}
{{ .Values.models.claim.existing | default (printf "%s-models" .Release.Name) }}
{{- end }}
