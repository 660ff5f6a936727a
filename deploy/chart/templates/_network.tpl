{{/* Flows that several components share. Probes of the kubelet are let through by network plugins themselves. */}}

{{- define "kopt.apiServerPeers" -}}
{{- range .Values.networkPolicy.apiServer.cidrs }}
- ipBlock: {cidr: {{ . | quote }}}
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

{{/* Names have to be looked up only where something other than the API server is asked. */}}
{{- define "kopt.egressToPredictions" -}}
{{- if or (include "kopt.predictions" .) .Values.tracing.endpoint }}
{{ include "kopt.egressToDns" . }}
{{- end }}
{{- if and .Values.predictions.deploy (not .Values.predictions.url) }}
- to:
    - podSelector:
        matchLabels: {{- include "kopt.selector" "predictions" | nindent 10 }}
  ports: [{port: 8000}]
{{- end }}
{{- with .Values.predictions.url }}
- ports: [{port: {{ include "kopt.port" . }}}]
{{- end }}
{{- with .Values.tracing.endpoint }}
- ports: [{port: {{ include "kopt.port" . }}}]
{{- end }}
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
{{- $port | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end }}
