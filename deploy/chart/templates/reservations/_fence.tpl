{{/* Validations: Jobs that hold reserved GPUs, of one image that waits, of a reservation and in its queue. */}}
{{- define "kopt.reservationsValidations" -}}
{{- include "kopt.jobsOf" (list "kaiwo.ai/reservation" "its own") }}
{{ include "kopt.jobBaseline" . }}
{{ include "kopt.jobTokens" . }}
- expression: >-
    variables.ends || variables.job.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'KaiwoReservation')
  message: only with a reservation, and as long as it is there
- expression: >-
    variables.ends || variables.containers.all(c, c.image == {{ .Values.reservations.image | quote }} &&
    !has(c.command) && !has(c.args) && !has(c.env) && !has(c.envFrom)) && size(variables.volumes) == 0
  message: only the image that waits
- expression: >-
    variables.ends || variables.job.spec.?activeDeadlineSeconds.hasValue()
  message: only what ends by itself
{{- end }}

{{/* Validations: of all Jobs those of ours alone are deleted, which hold GPUs or test nodes. */}}
{{- define "kopt.offReservationsValidations" -}}
- expression: >-
    oldObject.metadata.?labels[?'app.kubernetes.io/part-of'].orValue('') == 'kaiwo-optimizer' &&
    oldObject.metadata.?labels[?'app.kubernetes.io/component'].orValue('') in ['reservations', 'pairs']
  message: only Jobs of Kaiwo Optimizer that hold reserved GPUs or test nodes
{{- end }}
