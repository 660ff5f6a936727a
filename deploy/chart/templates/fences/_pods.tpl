{{/*
Pods of others: labels and annotations of ours; call with a list of the root, the component and a dictionary: `open`,
the keys of the spec that may change beside (schedulingGates, affinity), and `only`, a validation of its own.
*/}}
{{- define "kopt.podFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $may := index . 2 -}}
{{- $open := $may.open | default list -}}
{{- $fence := dict "name" (printf "kopt-%s-pods" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "") "operations" (list "UPDATE") "resources" (list "pods")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- $_ := set $fence "variables" (include "kopt.metadataVariables" . | fromYamlArray) -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.podValidations" (list $open $may.only))) }}
{{- end }}

{{- define "kopt.podValidations" -}}
{{- $open := index . 0 }}{{ $only := index . 1 -}}
{{- with $only }}
{{ . }}
{{- end }}
{{- if has "schedulingGates" $open }}
- expression: >-
    object.spec.containers.map(c, c.image) == oldObject.spec.containers.map(c, c.image) &&
    object.spec.?initContainers.orValue([]).map(c, c.image) ==
    oldObject.spec.?initContainers.orValue([]).map(c, c.image)
  message: no other image
# Others have theirs for reasons of their own: a queue's keeps a pod from nodes that it has no quota for.
- expression: >-
    oldObject.spec.?schedulingGates.orValue([]).all(g, g.name.startsWith('kaiwo.ai/') ||
    object.spec.?schedulingGates.orValue([]).exists(n, n.name == g.name))
  message: no gate of others
{{- end }}
- expression: {{ include "kopt.sameBut" (list "object.spec" "oldObject.spec" (include "kopt.celList" $open)) | quote }}
  message: only labels, annotations{{ range $open }}, {{ . }}{{ end }}
{{ include "kopt.ourMetadata" "" }}
{{- end }}

{{/* CEL: a list of strings. */}}
{{- define "kopt.celList" -}}
[{{ range $number, $one := . }}{{ if $number }}, {{ end }}'{{ $one }}'{{ end }}]
{{- end }}

{{/* What a pod's status tells others: of it only the node that a pod is to get, while it has none. */}}
{{- define "kopt.podStatusFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 -}}
{{- $fence := dict "name" (printf "kopt-%s-status" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "") "operations" (list "UPDATE") "resources" (list "pods/status")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.podStatusValidations" $)) }}
{{- end }}

{{- define "kopt.podStatusValidations" -}}
- expression: >-
    object.spec == oldObject.spec && object.metadata.?labels == oldObject.metadata.?labels &&
    object.metadata.?annotations == oldObject.metadata.?annotations &&
    object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
    object.metadata.?finalizers == oldObject.metadata.?finalizers &&
    {{ include "kopt.sameBut" (list "object.?status.orValue({})" "oldObject.?status.orValue({})" "['nominatedNodeName']") }}
  message: only the node that it is to get
- expression: object.spec.?nodeName.orValue('') == ''
  message: only of pods that wait for a node
{{ include "kopt.managedNamespace" . }}
{{- end }}

{{/* Evictions of pods, which disruption budgets may refuse as well. */}}
{{- define "kopt.evictionFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 -}}
{{- $fence := dict "name" (printf "kopt-%s-evictions" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "") "operations" (list "CREATE") "resources" (list "pods/eviction")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.evictionValidations" $)) }}
{{- end }}

{{- define "kopt.evictionValidations" -}}
# A pod that was made anew under its name was not chosen.
- expression: object.?deleteOptions.?preconditions.?uid.orValue('') != ''
  message: only a pod that was looked at
- expression: object.?deleteOptions.?gracePeriodSeconds.orValue(1) != 0
  message: only with the time that a pod has to end
{{ include "kopt.managedNamespace" . }}
{{- end }}

{{/*
Resizes of running pods, of which the API server itself lets only CPU and memory through; call with a list of the root, the
component, and whether only in namespaces that have opted in.
*/}}
{{- define "kopt.resizeFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $managed := index . 2 -}}
{{- $fence := dict "name" (printf "kopt-%s-resizes" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "") "operations" (list "UPDATE") "resources" (list "pods/resize")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.resizeValidations" $managed)) }}
{{- end }}

{{- define "kopt.resizeValidations" -}}
# The record comes first: whoever finds it knows what to put back. Whether a change would be let through may be asked before.
- expression: request.?dryRun.orValue(false) || oldObject.metadata.?labels[?'kaiwo.ai/resizing'].orValue('') == 'open'
  message: only of a pod on which the change is recorded
- expression: >-
    object.metadata.?labels == oldObject.metadata.?labels &&
    object.metadata.?annotations == oldObject.metadata.?annotations &&
    {{ include "kopt.sameBut" (list "object.spec" "oldObject.spec" "['containers']") }} &&
    object.spec.containers.map(c, c.name) == oldObject.spec.containers.map(c, c.name) &&
    object.spec.containers.map(c, c.image) == oldObject.spec.containers.map(c, c.image)
  message: only resources of containers
{{- if . }}
{{ include "kopt.managedNamespace" "" }}
{{- end }}
{{- end }}

{{- define "kopt.managedNamespace" -}}
- expression: namespaceObject.metadata.?labels[?'kaiwo.ai/managed'].orValue('') == 'true'
  message: only in namespaces that have opted in
{{- end }}

{{/* Bindings carry the leader's term, so that the fence of the Lease looks at them; the server copies their metadata. */}}
{{- define "kopt.bindingFence" -}}
{{- $fence := dict "name" "kopt-extender-bindings" "component" "extender" -}}
{{- $rules := list (dict "groups" (list "") "operations" (list "CREATE") "resources" (list "pods/binding")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- include "kopt.fence" (list . $fence (include "kopt.bindingValidations" .)) }}
{{- end }}

{{- define "kopt.bindingValidations" -}}
- expression: >-
    object.metadata.?annotations[?'kaiwo.ai/term'].orValue('').startsWith('{{ .Release.Namespace }}/kopt-extender/')
  message: only in the leader's term
- expression: >-
    object.metadata.?annotations.orValue({}).all(name, name in ['kaiwo.ai/term', 'kaiwo.ai/gpu-indices']) &&
    object.metadata.?labels.orValue({}).size() == 0
  message: only with its term and its GPUs
- expression: object.target.?kind.orValue('Node') == 'Node' && object.metadata.?uid.orValue('') != ''
  message: only a pod that was looked at, to a node
{{- end }}
