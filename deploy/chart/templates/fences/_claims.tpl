{{/*
Claim templates of shares of a GPU: the webhook makes its own, gives them to their workload, and deletes those whose
workload never came. Nobody else's, and never other devices.
*/}}
{{- define "kopt.shareClaimsFence" -}}
{{- $rules := list (dict "groups" (list "resource.k8s.io") "resources" (list "resourceclaimtemplates") "operations" (list "CREATE" "UPDATE" "DELETE")) -}}
{{- $labels := "has(%s.metadata.labels) && 'kaiwo.ai/gpu-share' in %s.metadata.labels && %s.metadata.labels[?'app.kubernetes.io/part-of'].orValue('') == 'kaiwo-optimizer'" -}}
{{- $variables := list
      (dict "name" "isOurs" "expression" (printf "request.operation == 'DELETE' || %s" (printf $labels "object" "object" "object")))
      (dict "name" "wasOurs" "expression" (printf "request.operation == 'CREATE' || %s" (printf $labels "oldObject" "oldObject" "oldObject"))) -}}
{{- $fence := dict "name" "kopt-webhook-share-claims" "component" "webhook" "rules" $rules "variables" $variables -}}
{{- include "kopt.fence" (list $ $fence (include "kopt.shareClaimsValidations" $)) }}
{{- end }}

{{- define "kopt.shareClaimsValidations" -}}
- expression: variables.isOurs && variables.wasOurs
  message: only claim templates of shares
- expression: request.operation != 'UPDATE' || object.spec == oldObject.spec && object.metadata.labels == oldObject.metadata.labels
  message: only whose it is
{{- end }}
