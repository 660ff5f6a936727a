{{/*
Rules that taint devices of claims: each names one device and only keeps new claims off it. Nobody else's rules, and none that
evicts. Call with a list of the root, the component, and the operations that it may do.
*/}}
{{- define "kopt.deviceTaintFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 -}}
{{- $rules := list (dict "groups" (list "resource.k8s.io") "resources" (list "devicetaintrules") "operations" (index . 2)) -}}
{{- $variables := list (dict "name" "rule" "expression" "request.operation == 'DELETE' ? oldObject : object") -}}
{{- $fence := dict "name" (printf "kopt-%s-device-taints" $component) "component" $component "rules" $rules "variables" $variables -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.deviceTaintValidations" $)) }}
{{- end }}

{{- define "kopt.deviceTaintValidations" -}}
- expression: >-
    variables.rule.metadata.name.startsWith('kopt-health-') &&
    'kaiwo.ai/gpu-unhealthy' in variables.rule.metadata.?labels.orValue({}) &&
    variables.rule.metadata.?labels[?'app.kubernetes.io/part-of'].orValue('') == 'kaiwo-optimizer'
  message: only rules of ours
- expression: >-
    variables.rule.spec.taint.key == 'kaiwo.ai/gpu-unhealthy' && variables.rule.spec.taint.effect == 'NoSchedule'
  message: only the taint of unhealthy GPUs, and no eviction
- expression: >-
    has(variables.rule.spec.deviceSelector) && has(variables.rule.spec.deviceSelector.driver) &&
    has(variables.rule.spec.deviceSelector.pool) && has(variables.rule.spec.deviceSelector.device)
  message: only one device by its name
- expression: >-
    !has(variables.rule.metadata.ownerReferences) && !has(variables.rule.metadata.finalizers)
  message: nobody else's deletion waits for it
{{- end }}
