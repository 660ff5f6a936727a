{{/*
Workloads and queues of others, held and given back as `cluster/holds/hold.py` says: labels and annotations of ours, and of the
spec what a hold changes, only with the mark by which anybody can give it back. Call with a list of the root, the
component and a dictionary: `rules` ({groups, resources}), `affinity` (a Job's pods may be kept to nodes), `priority` (a
Workload's may be raised), `order` (`written`: it may be its rank in the order of a queue, with the label of that; `left`:
it may be given back), `release` (what is not held is not touched).
*/}}
{{- define "kopt.heldFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $may := index . 2 -}}
{{- $fence := dict "name" (printf "kopt-%s-held" $component) "component" $component -}}
{{- $rules := list -}}
{{- $kinds := list -}}
{{- range $may.rules }}
{{- $rules = append $rules (dict "groups" .groups "resources" .resources "operations" (list "UPDATE")) -}}
{{- range $group := .groups }}{{ $kinds = append $kinds $group }}{{ end -}}
{{- end }}
{{- $_ := set $fence "rules" $rules -}}
{{- $variables := include "kopt.metadataVariables" . | fromYamlArray -}}
{{- $variables = concat $variables (include "kopt.heldVariables" $may | fromYamlArray) -}}
{{- $_ := set $fence "variables" $variables -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.heldValidations" (list $may $kinds))) }}
{{- end }}

{{- define "kopt.heldVariables" -}}
- {name: kind, expression: "request.resource.group + '/' + request.resource.resource"}
# What a hold changes of each kind; what is not in here may not be changed at all.
- name: open
  expression: >-
    {'batch/jobs': ['suspend', 'backoffLimit', 'template'], 'batch/cronjobs': ['suspend'],
    'jobset.x-k8s.io/jobsets': ['suspend'], 'trainer.kubeflow.org/trainjobs': ['suspend'],
    'ray.io/rayjobs': ['suspend'], 'ray.io/rayclusters': ['suspend'],
    'kubeflow.org/pytorchjobs': ['runPolicy'], 'kubeflow.org/mpijobs': ['runPolicy'],
    'kueue.x-k8s.io/workloads': ['active'{{ if or .priority .order }}, 'priority'{{ end }}], 'batch.volcano.sh/jobs': [],
    'kueue.x-k8s.io/clusterqueues': ['resourceGroups'], 'kueue.x-k8s.io/localqueues': ['stopPolicy'], 'scheduling.run.ai/queues': ['resources'],
    'scheduling.volcano.sh/queues': ['capability'], '/nodes': ['taints', 'unschedulable']}[variables.kind]
# A Job without a label of its own gets its pods' from the API server, whoever writes it.
- {name: podLabels, expression: "variables.kind == 'batch/jobs' ? object.spec.template.?metadata.?labels.orValue({}) : {}"}
- name: marked
  expression: >-
    'kaiwo.ai/held' in variables.labelsBefore || 'kaiwo.ai/held' in variables.labelsAfter ||
    'kaiwo.ai/sizing-state' in variables.notesBefore
{{- if .order }}
{{- $before := "'kaiwo.ai/queue-order' in variables.labelsBefore" }}
{{- $after := "'kaiwo.ai/queue-order' in variables.labelsAfter" }}
{{- $order := ternary (printf "(%s || %s)" $before $after) (printf "%s && !(%s)" $before $after) (eq .order "written") }}
# Its priority is its rank in the order of a queue, and nothing else of it changes.
- name: ordered
  expression: >-
    variables.kind == 'kueue.x-k8s.io/workloads' && {{ $order }} &&
    {{ include "kopt.sameBut" (list "object.spec" "oldObject.spec" "['priority']") }}
{{- end }}
# A queue of `kopt queues apply` that is left to its other owners.
- name: left
  expression: {{ ternary "'kaiwo.ai/queue-tree' in variables.labelsBefore && !('kaiwo.ai/queue-tree' in variables.labelsAfter)" "false" (default false .release) | quote }}
{{- end }}

{{- define "kopt.heldValidations" -}}
{{- $may := index . 0 }}{{ $groups := index . 1 -}}
{{- if $may.release }}
- expression: "'kaiwo.ai/held' in variables.labelsBefore || variables.left{{ if $may.order }} || variables.ordered{{ end }}"
  message: only what is held
{{- end }}
- expression: {{ printf "variables.left || %s" (include "kopt.sameBut" (list "object.spec" "oldObject.spec" "variables.open")) | quote }}
  message: only what a hold changes
- expression: variables.left || variables.marked || object.spec == oldObject.spec{{ if $may.order }} || variables.ordered{{ end }}
  message: only with the mark of a hold
{{- if and $may.order (not $may.priority) }}
- expression: >-
    variables.ordered || variables.kind != 'kueue.x-k8s.io/workloads' || object.spec.?priority == oldObject.spec.?priority
  message: its priority only with the mark of an order
{{- end }}
- expression: object.?status == oldObject.?status
  message: not its status
{{ include "kopt.ourMetadata" (include "kopt.parkedLabel" .) }}
{{- if has "" $groups }}
- expression: >-
    variables.kind != '/nodes' || object.spec.?taints.orValue([]).filter(t, t.key != 'amd-dcm') ==
    oldObject.spec.?taints.orValue([]).filter(t, t.key != 'amd-dcm')
  message: of its taints only that of AMD's device config manager
{{- end }}
{{- if has "batch" $groups }}
{{ include "kopt.heldJob" $may }}
{{- end }}
{{- if has "kubeflow.org" $groups }}
- expression: >-
    !variables.kind.startsWith('kubeflow.org/') ||
    {{ include "kopt.sameBut" (list "object.spec.?runPolicy.orValue({})" "oldObject.spec.?runPolicy.orValue({})" "['suspend']") }}
  message: only whether it runs
{{- end }}
{{- if has "scheduling.run.ai" $groups }}
{{ include "kopt.heldQueues" . }}
{{- end }}
{{- end }}

{{/*
What waits in a queue is parked in one that does not exist; Kueue itself may write that of a namespace's default. A node's
configuration is what mig-manager, or AMD's device config manager, cuts it by, or NVIDIA's device plugin shares its GPUs by.
*/}}
{{- define "kopt.parkedLabel" -}}
variables.podLabels[?name].hasValue() && variables.podLabels[?name] == variables.labelsAfter[?name] || name == 'kueue.x-k8s.io/queue-name' && (variables.labelsBefore[?name].orValue('') == 'kaiwo-held' || variables.labelsAfter[?name].orValue('') == 'kaiwo-held' || variables.labelsBefore[?name].orValue('') == '' && variables.labelsAfter[?name].orValue('') == 'default') || name in ['nvidia.com/mig.config', 'nvidia.com/device-plugin.config', 'dcm.amd.com/gpu-config-profile', 'dcm.amd.com/gpu-config-profile-state'] && variables.kind == '/nodes'
{{- end }}

{{/* A Job asks for something else while its size is found out (`cluster/holds/original_request.py`), and its pods go where its data is. */}}
{{- define "kopt.heldJob" -}}
{{- $now := "object.spec.template" }}{{ $before := "oldObject.spec.template" -}}
- expression: >-
    variables.kind != 'batch/jobs' ||
    {{ include "kopt.sameBut" (list $now $before "['metadata', 'spec']") }} &&
    {{ include "kopt.sameBut" (list (printf "%s.spec" $now) (printf "%s.spec" $before) (ternary "['containers', 'affinity']" "['containers']" (default false .affinity))) }}
  message: of its pods only what they ask for
- expression: >-
    variables.kind != 'batch/jobs' ||
    {{ include "kopt.sameBut" (list (printf "%s.?metadata.orValue({})" $now) (printf "%s.?metadata.orValue({})" $before) "['annotations', 'creationTimestamp']") }} &&
    {{ include "kopt.sameBut" (list (printf "%s.?metadata.?annotations.orValue({})" $now) (printf "%s.?metadata.?annotations.orValue({})" $before) "['kaiwo.ai/gpu-fraction', 'gpu-memory']") }}
  message: of its pods' metadata only the fraction of a GPU
- expression: >-
    variables.kind != 'batch/jobs' ||
    {{ $now }}.spec.containers.map(c, c.name) == {{ $before }}.spec.containers.map(c, c.name) &&
    {{ $now }}.spec.containers.all(c, {{ $before }}.spec.containers.exists(o, o.name == c.name &&
    {{ include "kopt.sameBut" (list "c" "o" "['resources']") }}))
  message: of its containers only what they ask for
{{- end }}

{{/* What a queue owns, and nothing else of it. */}}
{{- define "kopt.heldQueues" -}}
- expression: >-
    variables.left || variables.kind != 'kueue.x-k8s.io/clusterqueues' ||
    object.spec.?resourceGroups.orValue([]).map(g, g.flavors.map(f, f.resources.map(r, r.name))) ==
    oldObject.spec.?resourceGroups.orValue([]).map(g, g.flavors.map(f, f.resources.map(r, r.name))) &&
    object.spec.?resourceGroups.orValue([]).all(g, oldObject.spec.?resourceGroups.orValue([]).exists(og,
    {{ include "kopt.sameBut" (list "g" "og" "['flavors']") }} &&
    g.flavors.all(f, og.flavors.exists(of, {{ include "kopt.sameBut" (list "f" "of" "['resources']") }} &&
    f.resources.all(r, of.resources.exists(o, {{ include "kopt.sameBut" (list "r" "o" "['nominalQuota', 'lendingLimit']") }}))))))
  message: only quotas
- expression: >-
    variables.left || variables.kind != 'scheduling.run.ai/queues' ||
    {{ include "kopt.sameBut" (list "object.spec.?resources.orValue({})" "oldObject.spec.?resources.orValue({})" "['gpu']") }} &&
    {{ include "kopt.sameBut" (list "object.spec.?resources.?gpu.orValue({})" "oldObject.spec.?resources.?gpu.orValue({})" "['limit', 'quota']") }}
  message: only quotas of GPUs
- expression: >-
    variables.left || variables.kind != 'scheduling.volcano.sh/queues' ||
    {{ include "kopt.sameBut" (list "object.spec.?capability.orValue({})" "oldObject.spec.?capability.orValue({})" "object.spec.?capability.orValue({}).map(k, k).filter(k, k.contains('/'))") }}
  message: only quotas of GPUs
{{- end }}

{{/* Volcano's Jobs are stopped and go on by Commands; call with a list of the root, the component and the actions. */}}
{{- define "kopt.commandFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $actions := index . 2 -}}
{{- $fence := dict "name" (printf "kopt-%s-commands" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "bus.volcano.sh") "operations" (list "CREATE") "resources" (list "commands")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.commandValidations" $actions)) }}
{{- end }}

{{- define "kopt.commandValidations" -}}
- expression: object.?action.orValue('') in {{ include "kopt.celList" . }} && object.?target.?kind.orValue('') == 'Job'
  message: only {{ join ", " . }} of Jobs
{{- end }}

{{/* StagedData are people's: only our finalizer comes and goes, and what a workload asks for is made. */}}
{{- define "kopt.stagedDataFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $operations := index . 2 -}}
{{- $fence := dict "name" (printf "kopt-%s-data" $component) "component" $component -}}
{{- $rules := list (dict "groups" (list "kaiwo.ai") "operations" $operations "resources" (list "stageddata")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.stagedDataValidations" (list $ $operations))) }}
{{- end }}

{{- define "kopt.stagedDataValidations" -}}
- expression: >-
    request.operation == 'CREATE' || object.spec == oldObject.spec &&
    object.metadata.?labels == oldObject.metadata.?labels &&
    {{ include "kopt.onlyOurs" (list "object.metadata.?annotations.orValue({})" "oldObject.metadata.?annotations.orValue({})" "") }} &&
    object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
    object.metadata.?finalizers.orValue([]).filter(f, f != 'kaiwo.ai/staged-copies') ==
    oldObject.metadata.?finalizers.orValue([]).filter(f, f != 'kaiwo.ai/staged-copies')
  message: only its finalizer, and whose term it is
{{- if has "CREATE" (index . 1) }}
- expression: >-
    request.operation != 'CREATE' || object.metadata.?finalizers.orValue([]).size() == 0 &&
    object.metadata.?ownerReferences.orValue([]).size() == 0 && object.metadata.?labels.orValue({}).size() == 0
  message: only what workloads ask for
- expression: >-
    request.operation != 'CREATE' || namespaceObject.metadata.?labels[?'kaiwo.ai/managed'].orValue('') == 'true'
  message: only in namespaces that have opted in
{{- end }}
{{- end }}
