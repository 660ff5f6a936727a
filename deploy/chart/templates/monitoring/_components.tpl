{{/*
JSON: the components that are installed and serve metrics: the port's name, the namespace, whether a Service has a port
`metrics` for it, whether it is served by TLS, whether its own labels win over the scrape's, labels of its pods beside ours,
and a pattern of the series that it also serves as /metrics/faults, for scrapes more often.
*/}}
{{- define "kopt.metrics" -}}
{{- include "kopt.renamed" . }}
{{- $own := .Release.Namespace -}}
{{- $all := dict -}}
{{- range $component, $key := dict "extender" "extender" "sizing" "sizing" "ledger" "evictions" "reallocation" "lending" "pairs" "pairwise" "ingest" "ingest" "runs" "runs" "gangs" "gangs" "reservations" "reservations" "meter" "meter" "partitions" "partitions" "health" "health" "rightsizing" "rightsizing" "queues" "queues" "autoscaling" "autoscaling" "staging" "staging" -}}
{{- if (get $.Values $key).enabled }}{{ $_ := set $all $component (dict "port" "probes" "namespace" $own) }}{{ end -}}
{{- end -}}
{{- range $component := list "webhook" "preemption" -}}
{{- if (get $.Values $component).enabled }}{{ $_ := set $all $component (dict "port" "metrics" "namespace" $own "service" true) }}{{ end -}}
{{- end -}}
{{- if .Values.logtail.enabled }}{{ $_ := set $all "logtail" (dict "port" "metrics" "namespace" (include "kopt.logtailNamespace" .)) }}{{ end -}}
{{- if .Values.topology.enabled }}{{ $_ := set $all "topology" (dict "port" "metrics" "namespace" (include "kopt.topologyNamespace" .)) }}{{ end -}}
{{- if .Values.telemetry.enabled }}{{ $_ := set $all "telemetry" (dict "port" "metrics" "namespace" .Values.telemetry.namespace "honor" true "faults" "kopt_gpu_(up|recent_xid_errors)") }}{{ end -}}
{{- if .Values.nodeExecutor.enabled }}{{ $_ := set $all "node-executor" (dict "port" "metrics" "namespace" .Values.nodeExecutor.namespace) }}{{ end -}}
{{- if .Values.pages.enabled }}{{ $_ := set $all "pages" (dict "port" "http" "namespace" $own) }}{{ end -}}
{{- if .Values.scheduler.deploy }}{{ $_ := set $all "scheduler" (dict "port" "metrics" "namespace" $own "tls" true) }}{{ end -}}
{{- /* The head of Ray passes requests on to workers: what it answered would count twice. */ -}}
{{- if .Values.predictions.deploy }}{{ $_ := set $all "predictions" (dict "port" "serve" "namespace" $own "labels" (dict "ray.io/node-type" "worker")) }}{{ end -}}
{{- toJson $all -}}
{{- end }}
