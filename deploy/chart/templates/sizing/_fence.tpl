{{/* What a profiling Job may be. Its image is the user's, so that everything else has to be harmless. */}}
{{- define "kopt.sizingValidations" -}}
{{ include "kopt.jobsOf" (list "kaiwo.ai/profiling" "profiling") }}
{{ include "kopt.jobBaseline" . }}
{{- if not .Values.sizing.allowSecrets }}
{{ include "kopt.jobTokens" . }}
{{ include "kopt.jobSecrets" . }}
{{- end }}
{{ include "kopt.jobPriority" (ternary "kopt-profiling" "" .Values.sizing.priorityClass) }}
- expression: >-
    variables.ends || variables.volumes.all(v, !has(v.hostPath) || !v.hostPath.path.contains('..') &&
    ({{ include "kopt.celList" .Values.sizing.hostPaths }}.exists(folder,
    v.hostPath.path == folder || v.hostPath.path.startsWith(folder + '/')){{ if .Values.staging.enabled }} ||
    v.hostPath.path.startsWith('{{ .Values.staging.cachePath | trimSuffix "/" }}/' + request.namespace + '/'){{ end }}))
  message: of nodes only the folders in sizing.hostPaths
- expression: >-
    variables.ends || variables.mounts.all(of, of.all(m, m.?readOnly.orValue(false) ||
    !variables.volumes.exists(v, v.name == m.name && has(v.hostPath))))
  message: of nodes nothing is written
- expression: >-
    variables.ends || variables.job.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'Job') &&
    variables.job.spec.?parallelism.orValue(1) == 1 && has(variables.job.spec.activeDeadlineSeconds)
  message: one pod for a Job, with a deadline
{{- end }}
