{{/*
Names are fixed and not derived from the release: webhook configurations and custom resources exist once in a cluster,
so there is one installation, and `kopt off` and runbooks find it by these names.
*/}}

{{/* The labels of every object; call with a list of the root and the component's name. */}}
{{- define "kopt.labels" -}}
{{- $root := index . 0 -}}
{{ include "kopt.selector" (index . 1) }}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* The two labels that never change: selectors of Deployments, Services and policies, and of `kopt off`. */}}
{{- define "kopt.selector" -}}
app.kubernetes.io/part-of: kaiwo-optimizer
app.kubernetes.io/component: {{ . | quote }}
{{- end }}

{{/* The image of an extra; call with a list of the root and the extra. */}}
{{- define "kopt.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $extra := index . 1 -}}
{{- if not $images.registry -}}
{{- fail "images.registry is not set: name the registry that you pushed the images to, e.g. --set images.registry=registry.example.com/gpu" -}}
{{- end -}}
{{- $name := printf "%s/kopt-%s" $images.registry $extra -}}
{{- $digest := get $images.digests $extra -}}
{{- if $digest -}}{{ $name }}@{{ $digest }}{{- else -}}{{ $name }}:{{ $images.tag | default (index . 0).Chart.AppVersion }}{{- end -}}
{{- end }}

{{/* Where the extender's Service listens, and how it is called. */}}
{{- define "kopt.extenderPort" -}}{{ ternary 443 80 .Values.extender.tls.enabled }}{{- end }}
{{- define "kopt.extenderUrl" -}}
{{ ternary "https" "http" .Values.extender.tls.enabled }}://kopt-extender.{{ .Release.Namespace }}.svc:{{ include "kopt.extenderPort" . }}
{{- end }}

{{/* Where predictions come from; empty where there are none. */}}
{{- define "kopt.predictions" -}}
{{- if .Values.predictions.url -}}
{{ .Values.predictions.url }}
{{- else if .Values.predictions.deploy -}}
http://kopt-predictions-serve-svc.{{ .Release.Namespace }}.svc:8000
{{- end -}}
{{- end }}

{{/* JSON: earlier keys of values, and what they are called now. */}}
{{- define "kopt.earlierKeys" -}}
{{- dict "ledger" "evictions" "pairs" "pairwise" "reallocation" "lending" | toJson -}}
{{- end }}

{{/*
Puts values under earlier keys where the templates read them; templates that read a renamed key include it first. A
component is on if either key says so: with `--reuse-values` the earlier one has the defaults of the release before.
*/}}
{{- define "kopt.renamed" -}}
{{- range $earlier, $key := include "kopt.earlierKeys" . | fromJson -}}
{{- with get $.Values $earlier -}}
{{- $now := get $.Values $key | deepCopy -}}
{{- $enabled := or $now.enabled .enabled -}}
{{- include "kopt.overlay" (list $now .) -}}
{{- $_ := set $now "enabled" $enabled -}}
{{- $_ := set $.Values $key $now -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Sets in the first mapping what the second has, key by key. Sprig's merge would take false and 0 for unset. */}}
{{- define "kopt.overlay" -}}
{{- $target := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $target $key)) -}}
{{- include "kopt.overlay" (list (get $target $key) $value) -}}
{{- else -}}
{{- $_ := set $target $key $value -}}
{{- end -}}
{{- end -}}
{{- end }}
