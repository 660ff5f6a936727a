{{/* Where the topology agent runs: a privileged container, or a folder of the node, needs a namespace that allows it. */}}
{{- define "kopt.topologyNamespace" -}}
{{- ternary .Values.topology.namespace .Release.Namespace (or .Values.topology.privileged .Values.topology.podResources) -}}
{{- end }}

{{/* JSON: namespaces of DaemonSets that need more than the restricted standard, and whether each is to be made. */}}
{{- define "kopt.agentNamespaces" -}}
{{- $found := dict -}}
{{- if and .Values.logtail.enabled (eq .Values.logtail.form "node") -}}
{{- $_ := set $found .Values.logtail.namespace .Values.logtail.createNamespace -}}
{{- end -}}
{{- if and .Values.topology.enabled (or .Values.topology.privileged .Values.topology.podResources) -}}
{{- $_ := set $found .Values.topology.namespace (or .Values.topology.createNamespace (get $found .Values.topology.namespace)) -}}
{{- end -}}
{{- if .Values.telemetry.enabled -}}
{{- $_ := set $found .Values.telemetry.namespace (or .Values.telemetry.createNamespace (get $found .Values.telemetry.namespace)) -}}
{{- end -}}
{{- if .Values.nodeExecutor.enabled -}}
{{- $_ := set $found .Values.nodeExecutor.namespace (or .Values.nodeExecutor.createNamespace (get $found .Values.nodeExecutor.namespace)) -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}
