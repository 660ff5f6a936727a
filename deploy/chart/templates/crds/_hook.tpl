{{/* Annotations of what exists during an upgrade alone; call with the weight, by which they are created. */}}
{{- define "kopt.crdsHook" -}}
helm.sh/hook: pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Whether it runs. With `--reuse-values` the values of an earlier release have no such key. */}}
{{- define "kopt.crdsUpgrade" -}}
{{- $crds := .Values.crds | default dict -}}
{{- if ne (toString (get $crds "upgrade")) "false" }}yes{{ end -}}
{{- end }}

{{/* JSON: the names of the chart's definitions. */}}
{{- define "kopt.crdNames" -}}
{{- $names := list -}}
{{- range $path, $content := .Files.Glob "crds/*.yaml" -}}
{{- $names = append $names (toString $content | fromYaml).metadata.name -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}
