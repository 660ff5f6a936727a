{{/* Where the log agent runs: host paths need a namespace that allows them. */}}
{{- define "kopt.logtailNamespace" -}}
{{- ternary .Values.logtail.namespace .Release.Namespace (eq .Values.logtail.form "node") -}}
{{- end }}

{{/* What users put into their own pod templates. */}}
{{- define "kopt.logtailSidecar" -}}
# A trainer writes its log into /logs as well (python train.py 2>&1 | tee /logs/train.log); the sidecar reads it there.
spec:
  template:
    spec:
      # Needed only to annotate the pod (--mode=annotate), with the Role below; leave both out otherwise.
      serviceAccountName: kopt-sidecar
      initContainers:
        - name: kopt-logtail
          image: {{ include "kopt.image" (list . "agents") }}
          # Runs beside the trainer and ends after it.
          restartPolicy: Always
          args:
            - agent
            - logtail
            - sidecar
            - /logs/train.log
            - --job=$(POD_NAMESPACE)/my-job
            - --gpus=8
            - --checkpoints=/checkpoints
            - --state=/logs/.kopt-logtail.json
            - --mode=annotate
            - --predictions={{ include "kopt.predictions" . | default "http://kopt.example.com:8700" }}
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
          securityContext:
            runAsNonRoot: true
            runAsUser: 65532
            seccompProfile: {type: RuntimeDefault}
            {{- include "kopt.containerSecurity" . | nindent 12 }}
          resources:
            requests: {cpu: 10m, memory: 64Mi}
            limits: {memory: 160Mi}
          volumeMounts:
            - {name: logs, mountPath: /logs}
            # The trainer's own volume: - {name: checkpoints, mountPath: /checkpoints, readOnly: true}
            {{- if and (include "kopt.predictions" .) (eq .Values.predictions.auth "token") }}
            {{- include "kopt.predictionsMount" . | nindent 12 }}
            {{- end }}
      volumes:
        - {name: logs, emptyDir: {}}
        {{- if and (include "kopt.predictions" .) (eq .Values.predictions.auth "token") }}
        {{- include "kopt.predictionsVolume" . | nindent 8 }}
        {{- end }}
{{- end }}

{{/* The rights of the account that annotates; a name cannot be given, as pods' names are made. */}}
{{- define "kopt.logtailSidecarRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: kopt-sidecar}
rules:
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, patch]
  # With guard.enabled: what a program beside the trainer says of its checkpoints is its user's word.
  - apiGroups: [kaiwo.ai]
    resources: [evictions]
    verbs: [annotate]
{{- end }}
