{{/* Flows that several components share. Probes of the kubelet are let through by network plugins themselves. */}}

{{- define "kopt.apiServerPeers" -}}
{{- range .Values.networkPolicy.apiServer.cidrs }}
- ipBlock: {cidr: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* Who may send reviews: API servers, and none of the pods that an open range would let in. */}}
{{- define "kopt.reviewPeers" -}}
{{- $pods := .Values.networkPolicy.apiServer.podCidrs }}
{{- range .Values.networkPolicy.apiServer.reviewCidrs | default .Values.networkPolicy.apiServer.cidrs }}
- ipBlock:
    cidr: {{ . | quote }}
    {{- $inside := list }}
    {{- $range := . }}
    {{- range $pod := $pods }}
    {{- if eq $range (ternary "::/0" "0.0.0.0/0" (contains ":" $pod)) }}
    {{- $inside = append $inside $pod }}
    {{- end }}
    {{- end }}
    {{- with $inside }}
    except: {{ toJson . }}
    {{- end }}
{{- end }}
{{- end }}

{{/* The CA of those who may send reviews. */}}
{{- define "kopt.callersArgument" -}}
{{- if .Values.webhook.clientCaSecret }}
- --client-ca=/etc/kopt/callers/ca.crt
{{- end }}
{{- end }}

{{- define "kopt.callersMount" -}}
{{- if .Values.webhook.clientCaSecret }}
- {name: callers, mountPath: /etc/kopt/callers, readOnly: true}
{{- end }}
{{- end }}

{{- define "kopt.callersVolume" -}}
{{- with .Values.webhook.clientCaSecret }}
- {name: callers, secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- end }}

{{- define "kopt.monitoringPeer" -}}
- {{ toYaml .Values.networkPolicy.monitoring | nindent 2 | trim }}
{{- end }}

{{- define "kopt.egressToApiServer" -}}
- to: {{- include "kopt.apiServerPeers" . | nindent 4 }}
  ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}

{{- define "kopt.egressToDns" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    # The node-local cache.
    - ipBlock: {cidr: 169.254.20.10/32}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}

{{/* Of those who call the endpoint. Names have to be looked up only where something other than the API server is asked. */}}
{{- define "kopt.egressToPredictions" -}}
{{- if include "kopt.predictions" . }}
{{ include "kopt.egressToDns" . }}
{{- end }}
{{- if and .Values.predictions.deploy (not .Values.predictions.url) }}
- to:
    # Named, as the log agent calls from another namespace.
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace }}}}
      podSelector:
        matchLabels: {{- include "kopt.selector" "predictions" | nindent 10 }}
  ports: [{port: 8000}]
{{- end }}
{{- with .Values.predictions.url }}
- ports: [{port: {{ include "kopt.port" . }}}]
{{- end }}
{{- end }}

{{/* Of those who call it for the audit log alone. */}}
{{- define "kopt.egressToAudit" -}}
{{- if include "kopt.audit" . }}
{{ include "kopt.egressToPredictions" . }}
{{- end }}
{{- end }}

{{/* Whether the audit log is kept: not empty where it is. */}}
{{- define "kopt.audit" -}}
{{- if and .Values.audit.enabled (include "kopt.predictions" .) }}yes{{ end -}}
{{- end }}

{{/* JSON: the components whose records the audit log has, by the name of their account, with the namespace of each. */}}
{{- define "kopt.auditors" -}}
{{- include "kopt.renamed" . }}
{{- $auditors := dict -}}
{{- if include "kopt.audit" . -}}
{{- range $component, $key := dict "webhook" "webhook" "extender" "extender" "preemption" "preemption" "sizing" "sizing" "reallocation" "lending" "pairs" "pairwise" "staging" "staging" "ledger" "evictions" "gangs" "gangs" "queues" "queues" "autoscaling" "autoscaling" "runs" "runs" "reservations" "reservations" "meter" "meter" "partitions" "partitions" "health" "health" "rightsizing" "rightsizing" "ingest" "ingest" -}}
{{- if (get $.Values $key).enabled }}{{ $_ := set $auditors $component $.Release.Namespace }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $auditors -}}
{{- end }}

{{/* Of those who trace. */}}
{{- define "kopt.egressToTracing" -}}
{{- if .Values.tracing.endpoint }}
{{ include "kopt.egressToDns" . }}
- ports: [{port: {{ include "kopt.port" .Values.tracing.endpoint }}}]
{{- end }}
{{- end }}

{{/*
JSON: the components that call the prediction endpoint, with the namespace of each. Whoever mounts the token
(`kopt.predictionsMount`) stands here: the endpoint's network policy and the rights to call it follow.
*/}}
{{- define "kopt.predictionCallers" -}}
{{- include "kopt.renamed" . }}
{{- $callers := dict -}}
{{- range $component, $key := dict "webhook" "webhook" "sizing" "sizing" "reallocation" "lending" "pairs" "pairwise" "ingest" "ingest" "runs" "runs" "reservations" "reservations" "autoscaling" "autoscaling" "pages" "pages" -}}
{{- if (get $.Values $key).enabled }}{{ $_ := set $callers $component $.Release.Namespace }}{{ end -}}
{{- end -}}
{{- if .Values.logtail.enabled }}{{ $_ := set $callers "logtail" (include "kopt.logtailNamespace" .) }}{{ end -}}
{{- toJson $callers -}}
{{- end }}

{{- define "kopt.egressFurther" -}}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The port of a URL. */}}
{{- define "kopt.port" -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $usual := dict "https" "443" "redis" "6379" "rediss" "6379" "postgresql" "5432" -}}
{{- $port | default (get $usual $url.scheme) | default "80" -}}
{{- end }}
