{{/* Validations of changes to pods by those who may take scheduling gates away. */}}
{{- define "kopt.imagesAndGates" -}}
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

{{/* Who may patch pods could give them other images: rules of RBAC cannot say that labels and annotations of ours are meant
and, for those who hold pods back, gates of ours. Takes (list $ component gates). */}}
{{- define "kopt.podFence" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $gates := index . 2 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kopt-{{ $component }}-pods
  labels: {{- include "kopt.labels" (list $ $component) | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}
  matchConditions:
    - name: by-us
      expression: request.userInfo.username == 'system:serviceaccount:{{ $.Release.Namespace }}:kopt-{{ $component }}'
  variables:
    - {name: notesBefore, expression: "oldObject.metadata.?annotations.orValue({})"}
    - {name: notesAfter, expression: "object.metadata.?annotations.orValue({})"}
    - {name: labelsBefore, expression: "oldObject.metadata.?labels.orValue({})"}
    - {name: labelsAfter, expression: "object.metadata.?labels.orValue({})"}
  validations:
    {{- if $gates }}
    # What the API server lets anybody change in a pod that is there, but gates.
    - expression: >-
        object.spec.?activeDeadlineSeconds == oldObject.spec.?activeDeadlineSeconds &&
        object.spec.?terminationGracePeriodSeconds == oldObject.spec.?terminationGracePeriodSeconds &&
        object.spec.?tolerations == oldObject.spec.?tolerations &&
        object.spec.?nodeSelector == oldObject.spec.?nodeSelector && object.spec.?affinity == oldObject.spec.?affinity
      message: only labels, annotations and gates
    {{- include "kopt.imagesAndGates" . | nindent 4 }}
    {{- else }}
    - expression: object.spec == oldObject.spec
      message: only labels and annotations
    {{- end }}
    - expression: >-
        object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
        object.metadata.?finalizers == oldObject.metadata.?finalizers
      message: only labels and annotations
    - expression: >-
        variables.notesAfter.all(name, name.startsWith('kaiwo.ai/') ||
        name in variables.notesBefore && variables.notesBefore[name] == variables.notesAfter[name]) &&
        variables.notesBefore.all(name, name.startsWith('kaiwo.ai/') || name in variables.notesAfter) &&
        variables.labelsAfter.all(name, name.startsWith('kaiwo.ai/') ||
        name in variables.labelsBefore && variables.labelsBefore[name] == variables.labelsAfter[name]) &&
        variables.labelsBefore.all(name, name.startsWith('kaiwo.ai/') || name in variables.labelsAfter)
      message: only labels and annotations of ours
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kopt-{{ $component }}-pods
  labels: {{- include "kopt.labels" (list $ $component) | nindent 4 }}
spec:
  policyName: kopt-{{ $component }}-pods
  validationActions: [Deny]
{{- end }}
