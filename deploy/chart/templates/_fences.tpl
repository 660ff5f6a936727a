{{/*
RBAC says whose objects a component may change, and no rule of it says which fields. Each right over objects of others
therefore has a fence, an admission policy for this one account that lets exactly those fields change that the component
changes. One template per kind of right: `_fences.tpl` has what all share, `fences/` the rights.
*/}}

{{/*
A policy and its binding; call with a list of the root, a dictionary and the validations as YAML. The dictionary has
`name` and `component`, `rules` ({groups, resources, operations}), `variables` (name, expression; optional), `namespace`
of the account where it is another than the release's.
*/}}
{{- define "kopt.fence" -}}
{{- $ := index . 0 }}{{ $fence := index . 1 }}{{ $validations := index . 2 -}}
{{- $account := printf "system:serviceaccount:%s:kopt-%s" ($fence.namespace | default $.Release.Namespace) $fence.component -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $fence.name }}
  labels: {{- include "kopt.labels" (list $ $fence.component) | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      {{- range $fence.rules }}
      - apiGroups: {{ toJson .groups }}
        apiVersions: ["*"]
        operations: {{ toJson .operations }}
        resources: {{ toJson .resources }}
      {{- end }}
  matchConditions:
    - {name: by-us, expression: "request.userInfo.username == '{{ $account }}'"}
  {{- with $fence.variables }}
  variables: {{- toYaml . | nindent 4 }}
  {{- end }}
  validations: {{- $validations | trim | nindent 4 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $fence.name }}
  labels: {{- include "kopt.labels" (list $ $fence.component) | nindent 4 }}
spec:
  policyName: {{ $fence.name }}
  validationActions: [Deny]
{{- end }}

{{/* CEL: two mappings are equal but for these keys; call with a list of the two and the keys, as CEL. */}}
{{- define "kopt.sameBut" -}}
{{- $now := index . 0 }}{{ $before := index . 1 }}{{ $open := index . 2 -}}
({{ $now }}.all(k, k in {{ $open }} || k in {{ $before }} && {{ $now }}[k] == {{ $before }}[k]) && {{ $before }}.all(k, k in {{ $open }} || k in {{ $now }}))
{{- end }}

{{/* CEL: of two mappings of strings only keys of ours differ, and those for which the third expression holds. */}}
{{- define "kopt.onlyOurs" -}}
{{- $now := index . 0 }}{{ $before := index . 1 }}{{ $but := index . 2 | default "false" -}}
({{ $now }}.all(name, name.startsWith('kaiwo.ai/') || name in {{ $before }} && {{ $before }}[name] == {{ $now }}[name] || {{ $but }}) && {{ $before }}.all(name, name.startsWith('kaiwo.ai/') || name in {{ $now }} || {{ $but }}))
{{- end }}

{{/* The variables that the validations of metadata read. */}}
{{- define "kopt.metadataVariables" -}}
- {name: notesBefore, expression: "oldObject.metadata.?annotations.orValue({})"}
- {name: notesAfter, expression: "object.metadata.?annotations.orValue({})"}
- {name: labelsBefore, expression: "oldObject.metadata.?labels.orValue({})"}
- {name: labelsAfter, expression: "object.metadata.?labels.orValue({})"}
{{- end }}

{{/* Validations: of the metadata only labels and annotations of ours change; call with the label, as CEL, that may too. */}}
{{- define "kopt.ourMetadata" -}}
- expression: >-
    object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
    object.metadata.?finalizers == oldObject.metadata.?finalizers
  message: only labels and annotations
- expression: >-
    {{ include "kopt.onlyOurs" (list "variables.notesAfter" "variables.notesBefore" "") }} &&
    {{ include "kopt.onlyOurs" (list "variables.labelsAfter" "variables.labelsBefore" .) }}
  message: only labels and annotations of ours
{{- end }}
