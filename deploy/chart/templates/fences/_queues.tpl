{{/*
Queues of others: only those that `kopt queues apply` wrote are changed or deleted. Call with a list of the root, the component
and rules ({groups, resources, operations}).
*/}}
{{- define "kopt.queuesFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $rules := index . 2 -}}
{{- $fence := dict "name" (printf "kopt-%s-queues" $component) "component" $component "rules" $rules -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.queuesValidations" .)) }}
{{- end }}

{{- define "kopt.queuesValidations" -}}
{{- $component := index . 1 }}
{{- if eq $component "off" }}
- expression: "'kaiwo.ai/queue-tree' in oldObject.metadata.?labels.orValue({})"
  message: only queues of KaiwoQueues
{{- else }}
- expression: >-
    'kaiwo.ai/queue-tree' in (request.operation == 'DELETE' ? oldObject : object).metadata.?labels.orValue({})
  message: only queues of KaiwoQueues
- expression: >-
    request.operation != 'UPDATE' || object.metadata.?finalizers == oldObject.metadata.?finalizers &&
    object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences && object.?status == oldObject.?status
  message: not its status, owners and finalizers
{{- end }}
{{- end }}
