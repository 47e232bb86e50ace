{{/* What values.schema.json cannot say: relations between values. Each refusal is a sentence that names the values. */}}
{{- define "diptych.validate" -}}
{{- include "diptych.validateToken" .Values.token -}}
{{- include "diptych.validateNats" .Values.nats -}}
{{- $pods := 0 -}}
{{- range $name, $facts := include "diptych.facts" . | fromYaml -}}
  {{- $component := include "diptych.component" (list $ $name) | fromJson -}}
  {{- include "diptych.validateGrace" (list $name $component) -}}
  {{- include "diptych.validateAutoscaler" (list $name $component) -}}
  {{- include "diptych.validateStrategy" (list $name $component.strategy) -}}
  {{- if $facts.model -}}
    {{- $pods = add $pods (include "diptych.greatest" $component) -}}
  {{- end -}}
{{- end -}}
{{- include "diptych.validateModels" (list .Values.models $pods) -}}
{{- include "diptych.validateSplit" . -}}
{{- end }}

{{- define "diptych.validateToken" -}}
{{- if not (or .existingSecret .value) -}}
  {{- fail "token: name a Secret in token.existingSecret or give token.value; without one, anyone in the cluster could call the workers." -}}
{{- end -}}
{{- end }}

{{- define "diptych.validateNats" -}}
{{- if not (or .enabled .url .urlSecret) -}}
  {{- fail "nats: with nats.enabled false, give nats.url or nats.urlSecret; otherwise no process finds another." -}}
{{- end -}}
{{- if and .enabled (or .url .urlSecret) -}}
  {{- fail "nats: nats.url and nats.urlSecret are for a server of your own; set nats.enabled to false to use them." -}}
{{- end -}}
{{- end }}

{{- define "diptych.validateGrace" -}}
{{- $component := index . 1 -}}
{{- $grace := include "diptych.grace" $component | int -}}
{{- $needed := addf $component.preStopSeconds $component.settings.drain_seconds -}}
{{- if le (float64 $grace) (float64 $needed) -}}
  {{- fail (printf "%s: graceSeconds %d must be greater than preStopSeconds + settings.drain_seconds = %v, or streams are cut off before the drain is over." (index . 0) $grace $needed) -}}
{{- end -}}
{{- end }}

{{- define "diptych.validateAutoscaler" -}}
{{- $name := index . 0 -}}
{{- with (index . 1).autoscaler -}}
{{- if .enabled -}}
  {{- if gt (int .min) (int .max) -}}
    {{- fail (printf "%s: autoscaler.min %d must not be greater than autoscaler.max %d." $name (int .min) (int .max)) -}}
  {{- end -}}
  {{- if not .metric -}}
    {{- fail (printf "%s: autoscaler.metric is empty; an autoscaler without a metric that grows with the load does nothing." $name) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "diptych.validateStrategy" -}}
{{- $strategy := index . 1 -}}
{{- if and (has (toString $strategy.maxSurge) (list "0" "0%")) (has (toString $strategy.maxUnavailable) (list "0" "0%")) -}}
  {{- fail (printf "%s: strategy.maxSurge and strategy.maxUnavailable must not both be 0; a rolling update could never begin." (index . 0)) -}}
{{- end -}}
{{- end }}

{{- define "diptych.validateModels" -}}
{{- $models := index . 0 -}}
{{- $pods := index . 1 | int -}}
{{- if eq $models.volume "pod" -}}
  {{- if not $models.reference -}}
    {{- fail "models: models.volume pod starts empty; give models.reference, or use a claim that holds a prepared model." -}}
  {{- end -}}
{{- else -}}
  {{- if and (hasPrefix "ReadWriteOnce" $models.claim.accessMode) (gt $pods 1) -}}
    {{- fail (printf "models: a claim with access mode %s cannot serve the %d pods of gateway, prefill and decode; use ReadWriteMany or ReadOnlyMany, or models.volume pod." $models.claim.accessMode $pods) -}}
  {{- end -}}
  {{- if and (eq $models.claim.accessMode "ReadOnlyMany") $models.reference -}}
    {{- fail "models: models.reference is pulled into the claim, which ReadOnlyMany forbids; fill the claim beforehand and leave models.reference empty, or use ReadWriteMany." -}}
  {{- end -}}
  {{- if not (or $models.claim.existing $models.reference) -}}
    {{- fail "models: a claim that the chart makes is empty; give models.reference to fill it, or name a filled one in models.claim.existing." -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "diptych.validateSplit" -}}
{{- $prefill := include "diptych.component" (list . "prefill") | fromJson -}}
{{- $decode := include "diptych.component" (list . "decode") | fromJson -}}
{{- $kvstore := include "diptych.component" (list . "kvstore") | fromJson -}}
{{- if ne (get $prefill.settings "block_size" | toString) (get $decode.settings "block_size" | toString) -}}
  {{- fail "prefill, decode: settings.block_size must be the same in both; blocks of different sizes cannot be handed over." -}}
{{- end -}}
{{- if and (gt (include "diptych.greatest" $prefill | int) 0) (eq (int $kvstore.replicas) 0) -}}
  {{- fail "kvstore: prefill hands its blocks over through the kvstore; give kvstore.replicas at least 1, or set prefill.replicas to 0." -}}
{{- end -}}
{{- end }}
