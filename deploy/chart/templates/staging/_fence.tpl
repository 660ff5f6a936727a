{{/* What a download may be: our own image and command, and of a node the folder of the namespace's copies. */}}
{{- define "kopt.stagingValidations" -}}
{{ include "kopt.jobsOf" (list "kaiwo.ai/staging-of" "staging") }}
- expression: >-
    variables.ends || variables.pod.containers.all(c, c.image == '{{ include "kopt.image" (list . "staging") }}') &&
    !has(variables.pod.initContainers)
  message: only with the image of staging
- expression: >-
    variables.ends || variables.containers.all(c, !has(c.command) && c.?args.orValue([]).size() > 0 &&
    c.args[0] == 'stage')
  message: only a download
{{ include "kopt.jobTokens" . }}
{{ include "kopt.jobBaseline" . }}
{{ include "kopt.jobPriority" .Values.staging.download.priorityClassName }}
- expression: >-
    variables.ends || variables.volumes.all(v, !has(v.hostPath) || !v.hostPath.path.contains('..') &&
    v.hostPath.path.startsWith('{{ .Values.staging.cachePath | trimSuffix "/" }}/' + request.namespace + '/'))
  message: on nodes only in the folder of the cache
- expression: >-
    variables.ends || variables.volumes.all(v, v.all(k, k in ['name', 'emptyDir', 'persistentVolumeClaim', 'secret',
    'hostPath']))
  message: only volumes of a download
{{- end }}
