{{/*
Jobs that we create: who may create Jobs may run anything. Call with a list of the root, a dictionary as of `kopt.fence`
without its rules and variables, and the validations of the component's own. The variables `job`, `pod`, `containers`
and `ends` (a Job that is taken away may be of any making) are there for them.
*/}}
{{- define "kopt.jobFence" -}}
{{- $ := index . 0 }}{{ $fence := index . 1 }}{{ $own := index . 2 -}}
{{- $rules := list (dict "groups" (list "batch") "operations" (list "CREATE" "DELETE") "resources" (list "jobs")) -}}
{{- $_ := set $fence "rules" $rules -}}
{{- $_ := set $fence "variables" (include "kopt.jobVariables" $ | fromYamlArray) -}}
{{- include "kopt.fence" (list $ $fence $own) }}
{{- end }}

{{- define "kopt.jobVariables" -}}
- {name: ends, expression: "request.operation == 'DELETE'"}
- {name: job, expression: "request.operation == 'DELETE' ? oldObject : object"}
- {name: pod, expression: variables.job.spec.template.spec}
- {name: containers, expression: "variables.pod.containers + variables.pod.?initContainers.orValue([])"}
- {name: volumes, expression: "variables.pod.?volumes.orValue([])"}
- {name: mounts, expression: "variables.containers.map(c, c.?volumeMounts.orValue([]))"}
{{- end }}

{{/* Validations: one Job of ours by its label, in a namespace that has opted in. */}}
{{- define "kopt.jobsOf" -}}
- expression: "'{{ index . 0 }}' in variables.job.metadata.?labels.orValue({})"
  message: only {{ index . 1 }} Jobs
- expression: >-
    variables.ends || namespaceObject.metadata.?labels[?'kaiwo.ai/managed'].orValue('') == 'true'
  message: only in namespaces that have opted in
{{- end }}

{{/* Validations: what the baseline pod security standard asks, whatever the namespace does. */}}
{{- define "kopt.jobBaseline" -}}
- expression: >-
    variables.ends || !variables.pod.?hostNetwork.orValue(false) && !variables.pod.?hostPID.orValue(false) &&
    !variables.pod.?hostIPC.orValue(false)
  message: not in the host's namespaces
- expression: >-
    variables.ends || variables.containers.all(c, !c.?securityContext.?privileged.orValue(false) &&
    !c.?securityContext.?windowsOptions.hasValue() && c.?securityContext.?procMount.orValue('Default') == 'Default' &&
    c.?securityContext.?seccompProfile.?type.orValue('') != 'Unconfined' &&
    c.?securityContext.?appArmorProfile.?type.orValue('') != 'Unconfined' &&
    !c.?securityContext.?seLinuxOptions.hasValue() &&
    c.?securityContext.?capabilities.?add.orValue([]).all(name, name in ['AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE',
    'FOWNER', 'FSETID', 'KILL', 'MKNOD', 'NET_BIND_SERVICE', 'SETFCAP', 'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT']))
  message: no privileged container, nor capabilities beyond the usual ones
- expression: >-
    variables.ends || !variables.pod.?securityContext.?sysctls.hasValue() &&
    !variables.pod.?securityContext.?windowsOptions.hasValue() &&
    !variables.pod.?securityContext.?seLinuxOptions.hasValue() &&
    variables.pod.?securityContext.?seccompProfile.?type.orValue('') != 'Unconfined' &&
    variables.pod.?securityContext.?appArmorProfile.?type.orValue('') != 'Unconfined'
  message: no weaker security of the pod
- expression: >-
    variables.ends || variables.containers.all(c, c.all(k, k in ['name', 'image', 'imagePullPolicy', 'workingDir',
    'command', 'args', 'env', 'envFrom', 'resources', 'securityContext', 'volumeMounts', 'terminationMessagePath',
    'terminationMessagePolicy']))
  message: of its containers only what a program needs
- expression: >-
    variables.ends || !has(variables.pod.nodeName) && !has(variables.pod.resourceClaims)
  message: its node is chosen by a scheduler
{{- end }}

{{/* Validations: no token of the cluster, by whatever way. */}}
{{- define "kopt.jobTokens" -}}
- expression: >-
    variables.ends || variables.pod.?automountServiceAccountToken.orValue(true) == false &&
    variables.volumes.all(v, !has(v.projected) ||
    v.projected.?sources.orValue([]).all(s, !has(s.serviceAccountToken) && !has(s.podCertificate)))
  message: only without a token
- expression: >-
    variables.ends || variables.pod.?serviceAccountName.orValue('') in ['', 'default'] &&
    variables.pod.?serviceAccount.orValue('') in ['', 'default']
  message: only without a service account
{{- end }}

{{/* Validations: nothing is read from a Secret, by whatever way. */}}
{{- define "kopt.jobSecrets" -}}
- expression: >-
    variables.ends || variables.containers.all(c, c.?env.orValue([]).all(e, !has(e.valueFrom) ||
    !has(e.valueFrom.secretKeyRef)) && c.?envFrom.orValue([]).all(e, !has(e.secretRef)))
  message: no Secret in the environment
- expression: >-
    variables.ends || variables.volumes.all(v, v.all(k, k in ['name', 'emptyDir', 'ephemeral', 'configMap',
    'downwardAPI', 'projected', 'persistentVolumeClaim', 'nfs', 'image', 'hostPath']) && (!has(v.projected) ||
    v.projected.?sources.orValue([]).all(s, s.all(k, k in ['configMap', 'downwardAPI']))))
  message: no Secret in a volume
{{- end }}

{{/* Validation: a class that preempts others is not for these pods. */}}
{{- define "kopt.jobPriority" -}}
- expression: variables.ends || variables.pod.?priorityClassName.orValue('') == '{{ . }}'
  message: only with the priority of ours
{{- end }}
