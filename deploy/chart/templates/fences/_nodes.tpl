{{/*
Nodes: our taint and our condition come and go, with labels and annotations of ours, and nothing else of them changes. Call with
a list of the root, the component, and whether it gives back: only what is marked or held, and also what mig-manager cuts it by.
*/}}
{{- define "kopt.nodeFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 -}}
{{- $fence := dict "name" (printf "kopt-%s-nodes" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "") "operations" (list "UPDATE") "resources" (list "nodes" "nodes/status")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- $_ := set $fence "variables" (include "kopt.metadataVariables" . | fromYamlArray) -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.nodeValidations" (index . 2))) }}
{{- end }}

{{- define "kopt.nodeValidations" -}}
- expression: {{ include "kopt.sameBut" (list "object.spec" "oldObject.spec" (ternary "['taints', 'unschedulable']" "['taints']" .)) | quote }}
  message: only taints{{ if . }}, and whether it takes pods{{ end }}
- expression: >-
    object.spec.?taints.orValue([]).filter(t, !(t.key in [{{ if . }}'amd-dcm', {{ end }}'kaiwo.ai/gpu-unhealthy'])) ==
    oldObject.spec.?taints.orValue([]).filter(t, !(t.key in [{{ if . }}'amd-dcm', {{ end }}'kaiwo.ai/gpu-unhealthy'])) &&
    object.spec.?taints.orValue([]).all(t, t.key != 'kaiwo.ai/gpu-unhealthy' || t.effect == 'NoSchedule')
  message: only the taint of unhealthy GPUs, and no eviction
- expression: >-
    'kaiwo.ai/gpu-unhealthy' in variables.labelsAfter ||
    !object.spec.?taints.orValue([]).exists(t, t.key == 'kaiwo.ai/gpu-unhealthy')
  message: a taint only with the mark by which it is taken away
- expression: {{ include "kopt.sameBut" (list "object.?status.orValue({})" "oldObject.?status.orValue({})" "['conditions']") | quote }}
  message: of its status only conditions
- expression: >-
    object.?status.?conditions.orValue([]).filter(c, c.type != 'GPUHealthy') ==
    oldObject.?status.?conditions.orValue([]).filter(c, c.type != 'GPUHealthy')
  message: only the condition GPUHealthy
{{- if . }}
- expression: >-
    ('kaiwo.ai/gpu-unhealthy' in variables.labelsBefore || 'kaiwo.ai/held' in variables.labelsBefore) &&
    !object.spec.?taints.orValue([]).exists(t, t.key in ['amd-dcm', 'kaiwo.ai/gpu-unhealthy'] &&
    !oldObject.spec.?taints.orValue([]).exists(o, o.key == t.key))
  message: only what is held, to give it back
- expression: "'kaiwo.ai/held' in variables.labelsBefore || object.spec.?unschedulable == oldObject.spec.?unschedulable"
  message: it takes pods again only where we have cordoned it
{{- end }}
{{ include "kopt.ourMetadata" (ternary "name in ['nvidia.com/mig.config', 'nvidia.com/device-plugin.config']" "false" .) }}
{{- end }}
