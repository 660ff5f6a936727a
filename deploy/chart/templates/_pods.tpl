{{/* What the restricted pod security standard asks of a pod. */}}
{{- define "kopt.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What it asks of a container, and a file system that cannot be written to. */}}
{{- define "kopt.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* On which nodes pods run, and before whom; call with a list of the root and a component's values. */}}
{{- define "kopt.nodes" -}}
{{- $root := index . 0 -}}
{{- $own := index . 1 -}}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.priorityClassName | default $root.Values.pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector: {{- toYaml (merge dict ($own.nodeSelector | default dict) $root.Values.pods.nodeSelector) | nindent 2 }}
{{- with concat $root.Values.pods.tolerations ($own.tolerations | default list) }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity | default $root.Values.pods.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where the replicas of a component run; call with a list of the root, the component's name and its values. */}}
{{- define "kopt.placement" -}}
{{- $root := index . 0 -}}
{{- $ray := "" -}}
{{- if gt (len .) 3 }}{{ $ray = index . 3 }}{{ end -}}
{{ include "kopt.nodes" (list $root (index . 2)) }}
topologySpreadConstraints:
  # Two replicas on one node would die together; zones are a wish, as many clusters have one.
  {{- range $key, $rule := dict "kubernetes.io/hostname" $root.Values.pods.spreadOverNodes "topology.kubernetes.io/zone" "ScheduleAnyway" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: {{ $rule }}
    matchLabelKeys: [{{ if $ray }}ray.io/cluster{{ else }}pod-template-hash{{ end }}]
    labelSelector:
      matchLabels:
        {{- include "kopt.selector" (index $ 1) | nindent 8 }}
        {{- with $ray }}
        ray.io/node-type: {{ . }}
        {{- end }}
  {{- end }}
{{- end }}

{{/* Variables that every process of ours gets; call with a list of the root and a component's values. */}}
{{- define "kopt.environment" -}}
{{- $root := index . 0 -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{- with $root.Values.workloadClasses }}
- {name: KOPT_WORKLOAD_CLASSES, value: {{ toJson . | quote }}}
{{- end }}
{{- range $name, $value := (index . 1).env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Of those who act, or tell others what to do: what they do goes into the audit log as well. */}}
{{- define "kopt.actingEnvironment" -}}
{{ include "kopt.environment" . }}
{{- if include "kopt.audit" (index . 0) }}
- {name: KOPT_AUDIT_URL, value: {{ include "kopt.predictions" (index . 0) | quote }}}
{{- end }}
{{- end }}

{{/* Where those who trace send it. */}}
{{- define "kopt.tracing" -}}
{{- with .Values.tracing.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/*
The token that callers show the prediction endpoint: for its audience only, so that whoever sees it there cannot use it
at the API server. The kubelet renews it; the client reads the file for every call.
*/}}
{{- define "kopt.predictionsMount" -}}
{{- if and (include "kopt.predictions" .) (eq .Values.predictions.auth "token") -}}
- {name: predictions-token, mountPath: /var/run/secrets/kaiwo.ai/predictions, readOnly: true}
{{- end }}
{{- end }}

{{- define "kopt.predictionsVolume" -}}
{{- if and (include "kopt.predictions" .) (eq .Values.predictions.auth "token") -}}
- name: predictions-token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, audience: {{ .Values.predictions.audience | quote }}, expirationSeconds: 3600}
{{- end }}
{{- end }}

{{/* The same for those who call it for the audit log alone. */}}
{{- define "kopt.auditMount" -}}
{{- if include "kopt.audit" . }}{{ include "kopt.predictionsMount" . }}{{ end -}}
{{- end }}

{{- define "kopt.auditVolume" -}}
{{- if include "kopt.audit" . }}{{ include "kopt.predictionsVolume" . }}{{ end -}}
{{- end }}

{{/* Whether the annotation of a workload may ask for less than its namespace's: one rule for all components. */}}
{{- define "kopt.workloadMode" -}}
- {{ printf "--workload-mode=%s" (.Values.policy.spec.workloadMode | default "") | quote }}
{{- end }}
