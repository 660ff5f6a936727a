{{/* What a test may be, beside what pod security of its namespace says: the template is an administrator's. */}}
{{- define "kopt.pairsValidations" -}}
- expression: request.namespace == '{{ .Values.pairwise.namespace }}'
  message: only in the namespace of tests
- expression: >-
    variables.ends || variables.pod.?serviceAccountName.orValue('') in ['', 'default'] &&
    !variables.pod.?automountServiceAccountToken.orValue(false) && variables.volumes.all(v, !has(v.projected) ||
    v.projected.?sources.orValue([]).all(s, !has(s.serviceAccountToken) && !has(s.podCertificate)))
  message: only without a token
{{- if ne .Values.pairwise.podSecurity "privileged" }}
- expression: >-
    variables.ends || !variables.pod.?hostNetwork.orValue(false) && !variables.pod.?hostPID.orValue(false) &&
    !variables.pod.?hostIPC.orValue(false) && variables.volumes.all(v, !has(v.hostPath)) &&
    variables.containers.all(c, !c.?securityContext.?privileged.orValue(false))
  message: nothing of the host where pairwise.podSecurity is not privileged
{{- end }}
{{- end }}

{{/* By which the pods of a test find each other, and nothing from outside is led to them. */}}
{{- define "kopt.pairsServices" -}}
- expression: >-
    object.spec.?clusterIP.orValue('') == 'None' && object.spec.?type.orValue('ClusterIP') == 'ClusterIP' &&
    object.spec.?externalIPs.orValue([]).size() == 0
  message: only headless Services
{{- end }}
