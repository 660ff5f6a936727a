{{/* Validations: an executor reports on its own node, and signs nothing. */}}
{{- define "kopt.nodePlanValidations" -}}
# The token says which node its pod runs on (Kubernetes 1.30 or newer).
- expression: >-
    !has(request.userInfo.extra) || !('authentication.kubernetes.io/node-name' in request.userInfo.extra) ||
    request.userInfo.extra['authentication.kubernetes.io/node-name'] == [object.metadata.name]
  message: only its own node
- expression: "request.operation == 'UPDATE' ? object.spec == oldObject.spec : !has(object.spec.envelope)"
  message: no plan
- expression: >-
    !has(object.metadata.ownerReferences) || object.metadata.ownerReferences.all(owner,
    owner.kind == 'Node' && owner.name == object.metadata.name)
  message: owned by its node
{{- end }}
